"""Jobs of the queue under the memory cap, end to end: a real controller, a driver without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import until
from share_cards import HERE, MIB, ONE, TWO, drivers, needs_compiler

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.holding import FACT
from gpuqueue.model import JobState
from gpuqueue.paths import Home

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers"]


@pytest.fixture
def machine(
    home: Home, drivers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: LocalClient
) -> LocalClient:
    """A machine whose GPUs have a driver, and a controller that has tried the cap on it."""
    card = tmp_path / "card"
    card.write_bytes(bytes(4096))
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", f"24G/uuid={ONE},24G/uuid={TWO}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(drivers))
    monkeypatch.setenv("FAKE_CUDA_CARD", str(card))
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    client.wake("hold")
    told = until(lambda: (client.store.fact(FACT) or {}).get("standings"), 120, "the cap is tried")
    assert told["memory"] == "capped", client.store.fact(FACT)
    return client


def program(code: str) -> list[str]:
    return [sys.executable, "-c", f"from cudalike import *\n{code}"]


def test_a_job_is_refused_at_its_cap(machine: LocalClient) -> None:
    code = "use()\nsay(alloc(64 * MIB + 1), alloc(62 * MIB) > 0, alloc(2 * MIB) > 0, alloc(1))"
    job = gpuqueue.submit(program(code), mem="64M")
    assert job.wait(120) == 0
    assert job.logs() == "-2 True True -2\n"
    assert job.hold is not None
    assert job.hold.memory == "capped"
    assert job.hold.by == ("memory cap", "framework settings")
    # what it needed at the most is known to the byte, though no reading has seen it
    assert job.record.peak == 64 * MIB
    # its ledger is gone with it
    ledger = machine.home.attempt(job.id, 1) / "memcap"
    until(lambda: not ledger.exists())
    # a whole GPU is nobody's to cap
    whole = gpuqueue.submit(program("use()\nsay(alloc(640 * MIB) > 0)"))
    assert whole.wait(120) == 0
    assert whole.logs() == "True\n"


def test_a_job_that_runs_is_held_to_another_size(machine: LocalClient, tmp_path: Path) -> None:
    code = """
import os, time
use()
first = alloc(60 * MIB)
say("ready")
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.05)
wait("grown")
say(alloc(60 * MIB) > 0)
wait("shrunk")
say(alloc(1), free(first))
"""
    job = gpuqueue.submit(program(code), mem="64M", cwd=tmp_path)
    until(lambda: "ready" in job.logs(), 120)
    assert job.resize(mem="128M").applied == {"mem": "now"}
    (tmp_path / "grown").write_text("")
    until(lambda: "True" in job.logs(), 120)
    answer = job.resize(mem="32M")
    assert (answer.applied, answer.over) == ({"mem": "now"}, 88 * MIB)
    assert job.state is JobState.RUNNING
    (tmp_path / "shrunk").write_text("")
    assert job.wait(120) == 0
    assert job.logs().split() == ["ready", "True", "-2", "0"]


def test_a_job_of_a_job_has_its_own_cap_or_none(machine: LocalClient) -> None:
    def outer() -> list[int]:
        from cudalike import alloc, use

        use()
        assert alloc(65 << 20) == -2
        free = gpuqueue.submit(program("use()\nsay(alloc(640 * MIB) > 0)"))
        small = gpuqueue.submit(
            program("use()\nsay(alloc(32 * MIB + 1), alloc(MIB) > 0)"), mem="32M"
        )
        return [free.id, small.id]

    outside = gpuqueue.submit(outer, mem="64M")
    free, small = (gpuqueue.job(number) for number in outside.result(120))
    assert free.wait(120) == 0
    assert free.logs() == "True\n"
    assert small.wait(120) == 0
    assert small.logs() == "-2 True\n"


def test_memory_that_is_to_be_hard_is(machine: LocalClient) -> None:
    job = gpuqueue.submit(["true"], mem="64M", require="memory=hard")
    assert job.wait(120) == 0
    with pytest.raises(gpuqueue.GpuqueueError, match="requires compute=hard"):
        gpuqueue.submit(["true"], share=0.25, mem="64M", require="compute=hard")
