"""The callbacks for Trainer and Lightning, called as those call them (5.24 and 2.6.6).

Stand-ins have what the callbacks use of the libraries; the notebooks that test_notebooks.py runs,
and ``bench/checkpoint_libraries.py``, have the real ones.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from gpuqueue import checkpoint
from gpuqueue.run import files


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    folder = tmp_path / "7" / "1"
    folder.mkdir(parents=True)
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", str(folder))
    monkeypatch.delenv("GPUQUEUE_CHECKPOINT_DIR", raising=False)
    monkeypatch.setattr(checkpoint, "_state", checkpoint._State())
    monkeypatch.setattr(checkpoint, "_listen", lambda: None)
    checkpoint._state.hooked = True
    return folder


def stand_in(monkeypatch, names, base):
    """Importable modules, the last of which has a class of this name."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for above, below in itertools.pairwise(names):
        setattr(sys.modules[above], below.rpartition(".")[2], sys.modules[below])
    setattr(sys.modules[names[-1]], base, type(base, (), {}))


def metrics(folder):
    lines = (folder / "progress.jsonl").read_text().splitlines()
    return [(r["step"], r["metrics"]) for r in map(json.loads, lines)]


def test_trainer(attempt, monkeypatch, tmp_path):
    stand_in(monkeypatch, ["transformers", "transformers.trainer_callback"], "TrainerCallback")
    monkeypatch.delitem(sys.modules, "gpuqueue.integrations.hf", raising=False)
    hf = importlib.import_module("gpuqueue.integrations.hf")
    assert hf.ResumeCallback.__base__.__name__ == "TrainerCallback"
    callback = hf.ResumeCallback()
    args = SimpleNamespace(output_dir=str(tmp_path))
    state = SimpleNamespace(global_step=5, is_world_process_zero=True)
    control = SimpleNamespace(should_save=False, should_training_stop=False)

    callback.on_train_begin(args, state, control, model=None)
    assert files.is_resumable(attempt)
    callback.on_step_end(args, state, control, model=None)
    callback.on_log(args, state, control, logs={"loss": 0.5, "note": "x"}, model=None)
    assert not control.should_save
    assert not control.should_training_stop
    assert metrics(attempt) == [(5, {"loss": 0.5})]
    hf.leave_if_stopped()
    files.ask_to_stop(attempt)
    callback.on_step_end(args, state, control, model=None)
    assert control.should_save
    assert control.should_training_stop
    with pytest.raises(SystemExit) as left:
        hf.leave_if_stopped()
    assert left.value.code == 0

    assert hf.last_checkpoint(tmp_path) is None
    for step in (90, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert hf.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")


class FakeTrainer(SimpleNamespace):
    """What the callback uses of Lightning's."""

    is_global_zero, should_stop, log_every_n_steps, global_step = True, False, 5, 10
    world_size, global_rank = 1, 0

    def save_checkpoint(self, path):
        torch.save({"global_step": self.global_step}, path)


def test_lightning(attempt, monkeypatch):
    names = ["lightning", "lightning.pytorch", "lightning.pytorch.callbacks"]
    stand_in(monkeypatch, names, "Callback")
    monkeypatch.delitem(sys.modules, "gpuqueue.integrations.lightning", raising=False)
    lightning = importlib.import_module("gpuqueue.integrations.lightning")
    assert lightning.ResumeCallback.__base__.__name__ == "Callback"
    callback = lightning.ResumeCallback()
    trainer = FakeTrainer(callback_metrics={"loss": torch.tensor(0.5)})

    assert lightning.last_checkpoint() is None
    callback.on_train_batch_end(trainer, None, None, None, 9)
    assert files.is_resumable(attempt)
    assert metrics(attempt) == [(10, {"loss": 0.5})]
    assert not trainer.should_stop
    files.ask_to_stop(attempt)
    trainer.global_step = 11
    callback.on_train_batch_end(trainer, None, None, None, 10)
    assert trainer.should_stop
    found = lightning.last_checkpoint()
    assert found == str(attempt.parent / "checkpoints" / "step=11.ckpt")
    assert torch.load(found) == {"global_step": 11}
    assert len(metrics(attempt)) == 1
    with pytest.raises(SystemExit):
        lightning.leave_if_stopped()


@pytest.mark.parametrize("distributed", [False, True])
def test_lightning_goes_on_with_the_same_random_numbers(monkeypatch, tmp_path, distributed):
    names = ["lightning", "lightning.pytorch", "lightning.pytorch.callbacks"]
    stand_in(monkeypatch, names, "Callback")
    monkeypatch.delitem(sys.modules, "gpuqueue.integrations.lightning", raising=False)
    lightning = importlib.import_module("gpuqueue.integrations.lightning")
    trainer, saved = FakeTrainer(), {}
    if distributed:
        store = f"file://{tmp_path / 'store'}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        torch.manual_seed(7)
        lightning.ResumeCallback().on_save_checkpoint(trainer, None, saved)
        expected = [torch.rand(1) for _ in range(2)]
    finally:
        if distributed:
            torch.distributed.destroy_process_group()
    torch.save(saved, tmp_path / "step=1.ckpt")
    saved = torch.load(tmp_path / "step=1.ckpt", weights_only=True)

    callback = lightning.ResumeCallback()
    torch.manual_seed(8)
    callback.on_load_checkpoint(trainer, None, saved)
    assert torch.rand(1) == expected[0]  # the order of an epoch that begins
    callback.on_train_batch_start(trainer, None, None, 0)
    assert torch.rand(1) == expected[1]

    callback.on_load_checkpoint(trainer, None, saved)
    torch.rand(3)  # a loader that begins, where in the middle of an epoch none began
    callback.on_train_batch_start(trainer, None, None, 5)
    assert torch.rand(1) == expected[0]
    callback.on_train_batch_start(trainer, None, None, 6)
    assert torch.rand(1) == expected[1]

    torch.manual_seed(9)
    ahead = torch.rand(1)
    torch.manual_seed(9)
    trainer.world_size = 2  # these are another number of processes
    callback.on_load_checkpoint(trainer, None, saved)
    callback.on_load_checkpoint(trainer, None, {})
    callback.on_train_batch_start(trainer, None, None, 5)
    assert torch.rand(1) == ahead
