"""``verify --state``: what a checkpoint lacks, whoever wrote it, and what is not read."""

from __future__ import annotations

import json
import pickle
import random

import numpy as np
import pytest
import torch
from cli_program import gq, refused

from gpuqueue import checkpoint
from gpuqueue.checkpoint import save_state
from gpuqueue.integrations.state import PARTS, state_parts

LACKING = ["optimizer", "scheduler", "scaler", "ema", "random", "step", "sampler", "best"]


def test_weights_only_lack_the_other_eight(tmp_path):
    model = torch.nn.Linear(3, 2)
    path = tmp_path / "wéights only.pt"
    torch.save(model.state_dict(), path)
    assert state_parts(path).missing == LACKING
    done = gq("verify", "--state", str(path))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["model", "weights", "only"]
    assert lines[-1] == f"8 of 9 parts are missing: {', '.join(LACKING)}"
    torch.save({"model": model.state_dict()}, path)
    assert state_parts(path).missing == LACKING
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert state_parts(tmp_path / "model.safetensors").missing == LACKING


def test_what_save_state_writes(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    ema = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = {"scale": 1.0}
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    save_state(
        tmp_path / "step7.pt", **parts, ema=ema, step=7, epoch=2, best=0.5, sampler={"at": 40}
    )
    found = checkpoint.state_parts(tmp_path)
    assert found.path.endswith("step7.pt")
    assert found.missing == []
    assert found.found["step"] == "step 7, epoch 2"
    assert found.found["random"].startswith("python, numpy, torch")
    assert tuple(found.found) == PARTS
    assert gq("verify", "--state", str(tmp_path)).returncode == 0
    save_state(tmp_path / "step8.pt", model=model, optimizer=optimizer, step=8)
    words = ("verify", "--json", "--state", str(tmp_path), "--without", "scaler, ema,sampler")
    told = json.loads(gq(*words).stdout)
    assert told["path"].endswith("step8.pt")
    assert told["missing"] == ["scheduler", "best"]
    spared = gq(*words[:-1], "scaler,ema,sampler,scheduler,best")
    assert (spared.returncode, json.loads(spared.stdout)["missing"]) == (0, [])
    assert "is not one of model, optimizer" in refused(*words[:-1], "modle")


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (
            {"epoch": 3, "model_state_dict": {"w": 1}, "optimizer_state_dict": {"s": 1}},
            {"model", "optimizer", "step"},
        ),
        (
            # as Lightning writes
            {
                "state_dict": {"w": 1}, "optimizer_states": [{}], "lr_schedulers": [],
                "MixedPrecision": {"scale": 1}, "global_step": 9, "loops": {}, "callbacks": {},
                "gpuqueue_random_states": [{"python": [1], "torch": 2}],
            },
            {"model", "optimizer", "scaler", "step", "random"},
        ),
        (
            {"net": {"w": 1}, "cuda_rng_state": [1], "rng_state": 2, "best_acc1": 0.5, "lr": 1},
            {"model", "random", "best"},
        ),
        ({"scheduler": None, "ema_state": {}, "data_state": {"at": 1}, 5: 6}, {"sampler"}),
    ],
)  # fmt: skip
def test_what_others_write(tmp_path, state, found):
    torch.save(state, tmp_path / "a.pt")
    assert set(state_parts(tmp_path / "a.pt").found) == found


def test_generators_by_name(tmp_path):
    for state, words in (
        ({"random": {"python": 1, "cpu": 2}}, "python, torch"),
        ({"rng_state": torch.get_rng_state(), "numpy_rng_state": [1]}, "numpy, torch"),
        ({"rng_states": {}, "random_state": random.getstate()}, "random_state"),
    ):
        torch.save(state, tmp_path / "a.pt")
        assert state_parts(tmp_path / "a.pt").found["random"] == words


def test_folders_by_the_names_of_their_files(tmp_path):
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    for name in ("model-00001-of-00002", "model-00002-of-00002"):
        (folder / f"{name}.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        torch.save({}, folder / name)
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    state = {"global_step": 500, "epoch": 1.5, "best_metric": None}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    found = state_parts(tmp_path)
    assert found.missing == ["scaler", "ema", "sampler", "best"]
    assert found.found["model"].endswith("and 1 more")
    assert found.found["step"] == "global_step 500, epoch 1.5"
    (folder / "trainer_state.json").write_text("{")
    assert "not complete: trainer_state.json" in refused("verify", "--state", str(folder))


class Evil:
    """Runs code where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_what_cannot_be_read_safely_is_refused(tmp_path):
    trap, path = tmp_path / "trap", tmp_path / "step1.pt"
    torch.save({"model": Evil(str(trap))}, path)
    assert "holds more than plain data" in refused("verify", "--state", str(path))
    path.write_bytes(pickle.dumps(Evil(str(trap))))
    refused("verify", "--state", str(path))
    assert not trap.exists()
    np.savez(tmp_path / "a.npz", a=np.ones(2))
    for name, words in (("a.npz", "cannot be read as"), ("nowhere", "there is no checkpoint")):
        assert words in refused("verify", "--state", str(tmp_path / name))
    path.unlink()
    (tmp_path / "a.npz").unlink()
    assert "no complete checkpoint in" in refused("verify", "--state", str(tmp_path))
    (tmp_path / ".metadata").write_bytes(b"x")
    assert "torch.distributed.checkpoint" in refused("verify", "--state", str(tmp_path))
