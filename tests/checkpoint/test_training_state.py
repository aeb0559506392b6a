"""The whole state of a training: saved as plain data, and back bit by bit; what it lacks."""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from gpuqueue import checkpoint
from gpuqueue.checkpoint import load_state, missing_parts, save_state
from gpuqueue.integrations.torch import random_states, restore_random_states

ROOT = Path(__file__).resolve().parent.parent.parent
LACKING = ["optimizer", "scheduler", "scaler", "ema", "random", "step", "sampler", "best"]


def draws():
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3)]


def same(one, other):
    return all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(autouse=True)
def seeds():
    """Leave the generators of the test process as they were."""
    before = random_states()
    yield
    restore_random_states(before)


def parts(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": lr_scheduler.MultiStepLR(optimizer, [3, 6]),  # its state holds a Counter
        "scaler": torch.amp.GradScaler("cpu"),
        "ema": torch.optim.swa_utils.AveragedModel(model),
    }


def train(made, steps):
    for _ in range(steps):
        loss = made["model"](torch.rand(5, 4)).square().mean() * random.random() + np.random.rand()
        made["optimizer"].zero_grad()
        made["scaler"].scale(loss).backward()
        made["scaler"].step(made["optimizer"])
        made["scaler"].update()
        made["scheduler"].step()
        made["ema"].update_parameters(made["model"])


def weights(made):
    return [value for name in ("model", "ema") for value in made[name].state_dict().values()]


def test_carries_on_bit_by_bit(tmp_path):
    made = parts(0)
    train(made, 4)
    path = tmp_path / "step4.pt"
    lacking = save_state(path, **made, step=4, epoch=1, best=0.5, sampler=4, extra={"lr": [1, "a"]})
    assert lacking == []
    train(made, 4)
    after = draws()

    other = parts(1)
    found = load_state(path, **other)
    train(other, 4)
    assert same(weights(made), weights(other))
    assert same(after, draws())
    assert made["scheduler"].get_last_lr() == other["scheduler"].get_last_lr()
    assert found == {
        "step": 4, "epoch": 1, "best": 0.5, "sampler": 4, "extra": {"lr": [1, "a"]}, "missing": [],
    }  # fmt: skip


SCHEDULERS = {
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=50),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 5),
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 0.9**step),
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)], [5]
    ),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, cycle_momentum=False),
}
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), capturable=False),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
    "NAdam": torch.optim.NAdam,
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_are_plain_data(tmp_path, name):
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    optimizer.step()
    scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    save_state(tmp_path / "a.pt", scheduler=scheduler)
    load_state(tmp_path / "a.pt", scheduler=scheduler)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_plain_data(tmp_path, name):
    model = nn.Linear(2, 1)
    optimizer = OPTIMIZERS[name](model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_state(tmp_path / "a.pt", optimizer=optimizer)
    load_state(tmp_path / "a.pt", optimizer=optimizer)


def test_says_what_is_missing(tmp_path):
    model = nn.Linear(2, 1)
    lacking = save_state(tmp_path / "a.pt", model=model, step=0)
    assert lacking == ["optimizer", "scheduler", "scaler", "ema", "sampler", "best"]
    assert missing_parts(tmp_path / "a.pt") == lacking
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    assert missing_parts(tmp_path / "weights.pt") == LACKING
    assert missing_parts({"model": model.state_dict()}) == LACKING


def test_asked_for_what_is_not_there(tmp_path):
    model = nn.Linear(2, 1)
    before = [value.clone() for value in model.state_dict().values()]
    save_state(tmp_path / "a.pt", model=nn.Linear(2, 1), step=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="has no optimizer; it lacks: optimizer, scheduler"):
        load_state(tmp_path / "a.pt", model=model, optimizer=optimizer)
    assert same(before, model.state_dict().values())  # nothing was half done


def test_numpy_numbers_become_plain(tmp_path):
    save_state(tmp_path / "a.pt", best=np.float32(0.5), step=np.int64(3), extra=[np.float64(1)])
    found = load_state(tmp_path / "a.pt")
    assert (found["best"], found["step"], found["extra"]) == (0.5, 3, [1.0])
    assert type(found["best"]) is float


@pytest.mark.parametrize(
    ("extra", "where"),
    [
        ({"args": argparse.Namespace(lr=1)}, "extra.args is a argparse.Namespace"),
        ({"rows": [np.zeros(3)]}, "extra.rows[0] is a numpy.ndarray"),
        ({"log": re.compile("x")}, "extra.log is a re.Pattern"),
    ],
)
def test_refuses_what_the_safe_loader_would(tmp_path, extra, where):
    with pytest.raises(TypeError, match=re.escape(where)):
        save_state(tmp_path / "a.pt", extra=extra)
    assert list(tmp_path.iterdir()) == []


def test_a_distributed_checkpoint_of_torch(tmp_path):
    import torch.distributed.checkpoint as dcp

    for step in (9, 10, 11):
        with checkpoint.atomic_dir(tmp_path / f"step{step}") as path:
            dcp.save({"w": torch.full((3,), float(step))}, checkpoint_id=path, no_dist=True)
    (tmp_path / "step11" / ".metadata").unlink()
    found = checkpoint.latest_checkpoint(tmp_path)
    assert found == tmp_path / "step10"
    state = {"w": torch.zeros(3)}
    dcp.load(state, checkpoint_id=found, no_dist=True)
    assert state["w"].tolist() == [10.0] * 3


class Planted:
    """What an unsafe pickle would run."""

    def __reduce__(self):
        return exec, ("raise SystemExit('the planted code ran')",)


def test_no_code_is_run_from_a_file(tmp_path):
    torch.save({"model": {}, "extra": Planted()}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="more than plain data"):
        load_state(tmp_path / "a.pt")
    with pytest.raises(SystemExit, match="planted"):
        load_state(tmp_path / "a.pt", trusted=True)


def test_the_names_are_in_checkpoint_too():
    assert checkpoint.random_states is random_states
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = checkpoint.nonsense


def test_the_ten_lines_of_the_guide(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^## Ten lines\n\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("GPUQUEUE_CHECKPOINT_DIR", str(tmp_path))
    asked_at = iter((3, 5, None))
    trained = []

    def attempt():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        stop = next(asked_at)
        monkeypatch.setattr(checkpoint, "should_stop", lambda: trained[-1:] == [stop])
        names = {"model": model, "optimizer": optimizer, "steps": 8, "sys": sys}
        exec(code, {**names, "train_one": lambda step: trained.append(step + 1)})

    for _ in range(2):
        with pytest.raises(SystemExit) as left:
            attempt()
        assert left.value.code == 0
    attempt()
    assert trained == [1, 2, 3, 4, 5, 6, 7, 8]
