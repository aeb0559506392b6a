"""Jobs of the queue under both caps: a real controller, an MPS and a driver without a GPU."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import until
from mps_stage import Stage, drivers, stage
from share_cards import HERE, ONE, TWO, needs_compiler

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.controller import Controller
from gpuqueue.control.holding import FACT, Holder
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.share import Ladder, MemoryCap
from gpuqueue.share.mps import PERCENTAGE

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers", "stage"]

SHOW = f"""
import os
use()
n = c_int()
cu('cuDeviceGetAttribute', byref(n), 16, 0)
say(os.environ['{PERCENTAGE}'], n.value, alloc(65 * MIB), alloc(MIB) > 0)
"""
STAY = f"{SHOW}\nheard()\n"


@pytest.fixture
def machine(
    home: Home, stage: Stage, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalClient]:
    """A machine with two such GPUs, and a controller in this process that has tried them."""
    card = stage.folder / "card"
    card.write_bytes(bytes(4096))
    stage.base["FAKE_CUDA_CARD"] = str(card)
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", f"24G/uuid={ONE},24G/uuid={TWO}")
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    for name, value in stage.base.items():
        monkeypatch.setenv(name, value)
    ladder = Ladder([MemoryCap(home.root / "memcap", ONE, stage.base), stage.mps(ONE, TWO)])
    controller = Controller(home, holder=Holder(home, lambda *_: ladder))
    thread = threading.Thread(target=controller.run)
    thread.start()
    told = until(lambda: (client.store.fact(FACT) or {}).get("standings"), 120)
    assert told == {"compute": "capped", "memory": "capped"}, client.store.fact(FACT)
    yield client
    for job in gpuqueue.jobs():
        if not job.done():
            job.cancel()
    until(lambda: all(job.done() for job in gpuqueue.jobs()))
    controller.stop()
    thread.join(60)
    controller.close()


def submit(code: str, **options: object) -> gpuqueue.Job:
    words = [sys.executable, "-c", f"from cudalike import *\n{code}"]
    return gpuqueue.submit(words, **options)


def quarter(code: str = STAY, **options: object) -> gpuqueue.Job:
    return submit(code, share=0.25, mem="64M", **options)


def test_four_quarters_of_one_gpu_have_a_quarter_each(machine: LocalClient, stage: Stage) -> None:
    jobs = [quarter(f"{SHOW}\nimport time\ntime.sleep(600)") for _ in range(4)]
    until(lambda: all(job.logs() for job in jobs), 120)
    # 33 of 132 multiprocessors, and not a byte more than 64 MiB
    assert {job.logs() for job in jobs} == {"25 33 -2 True\n"}
    assert {job.hold.by for job in jobs if job.hold} == {("memory cap", "MPS")}
    assert {(job.hold.compute, job.hold.memory) for job in jobs if job.hold} == {
        ("capped", "capped"),
    }  # fmt: skip
    assert len({job.placement.gpus for job in jobs if job.placement}) == 1
    gpu = jobs[0].placement.gpus[0] if jobs[0].placement else ""
    assert stage.daemons(gpu)
    for job in jobs:
        job.cancel()
    until(lambda: all(job.done() for job in jobs), 120)
    # with the last of them the daemon goes
    until(lambda: not stage.daemons(gpu), 60, "the daemon has ended")


def test_a_job_that_runs_keeps_its_compute_and_gets_its_memory(
    machine: LocalClient, stage: Stage
) -> None:
    job = quarter(f"{SHOW}\nimport time\ntime.sleep(600)")
    until(lambda: job.logs(), 120)
    process = job.record.process
    answer = job.resize(share=0.5, mem="128M")
    # the answer of a daemon may take longer than anybody waits for it
    until(lambda: [e for e in machine.store.events(job_id=job.id) if e.kind == "resized"], 60)
    (event,) = [e for e in machine.store.events(job_id=job.id) if e.kind == "resized"]
    assert event.data["applied"] == {"compute": "at its next start", "memory": "now"}
    if answer.settled:
        assert answer.applied == {"share": "at its next start", "mem": "now"}
    assert job.record.process == process
    assert job.state is JobState.RUNNING


def test_a_burst_may_have_all_and_takes_nothing(machine: LocalClient) -> None:
    job = quarter(f"{SHOW}\nimport time\ntime.sleep(600)", burst=True)
    until(lambda: job.logs(), 120)
    assert job.logs() == "100 132 -2 True\n"
    others = [quarter(f"{SHOW}\nimport time\ntime.sleep(600)") for _ in range(3)]
    until(lambda: all(other.logs() for other in others), 120)
    assert {other.logs() for other in others} == {"25 33 -2 True\n"}
    assert {one.placement.gpus for one in (job, *others) if one.placement} == {
        job.placement.gpus if job.placement else (),
    }  # fmt: skip


def test_a_daemon_that_does_not_answer_keeps_no_job_waiting(
    machine: LocalClient, stage: Stage, tmp_path: Path
) -> None:
    hard = {"require": "compute=hard,memory=hard"}
    assert quarter(SHOW, **hard).wait(120) == 0
    stage.behave(answer={"set_default_active_thread_percentage": "no"})
    loose = quarter("use()\nsay(alloc(65 * MIB))")
    assert loose.wait(120) == 0
    assert loose.logs() == "-2\n"
    assert loose.hold is not None
    assert (loose.hold.compute, loose.hold.memory) == ("admitted only", "capped")
    assert loose.hold.missing["MPS"]
    refused = quarter(SHOW, **hard)
    refused.wait(120)
    assert refused.state is JobState.CANCELLED
    assert "requires compute=hard" in refused.reason
