"""Notebooks' kernels that idle in free mode: caches emptied, GPU memory moved, nothing stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import lead_process, until
from freeing_jobs import free, resume
from kernel_shares import check_books, held_folder, kernel, until_state
from parking_stage import *  # noqa: F403
from parking_stage import is_proven
from stub_checkpoint import Stub

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.lead import spawn_headless
from gpuqueue.model import JobState, ModeName
from gpuqueue.paths import Home
from gpuqueue.run.freezing import are_frozen
from gpuqueue.run.kernelshare import TIDY, Busy
from gpuqueue.run.parked import parked_in
from gpuqueue.run.process import alive, identify, send_signal
from gpuqueue.run.wake import Doorbell

if os.name != "posix":
    pytest.skip("signals and /proc", allow_module_level=True)

OUT = ["lock moves", "checkpoint moves"]
BACK = ["restore moves", "unlock moves"]
ON_HOST = "6G of its GPU memory are on the host"


@pytest.fixture
def idle(client: LocalClient, stub: Stub):
    """An idle kernel that holds 6 GiB of GPU 0, and its end of the file that says so."""
    made = kernel(client)
    busy = Busy(held_folder(client, made.job))
    busy.tell(busy=False)
    until(is_proven)
    stub.procs.write_text("")
    stub.hold(made.process.pid, 0, 6 * 1024)
    until(lambda: (client.machine().used or {}).get(made.job))
    return made, busy


def reason(client: LocalClient, job: int) -> str:
    return client.job(job).reason


def test_its_memory_is_moved_and_comes_back_and_it_is_never_stopped(client, stub, idle):
    made, _ = idle
    answer = free()
    assert client.store.mode().name is ModeName.FREE
    assert stub.done(made.process.pid) == OUT
    assert client.job(made.job).state is JobState.RUNNING
    assert not are_frozen([identify(made.process.pid)], whole=[identify(made.process.pid)])
    assert reason(client, made.job) == ON_HOST
    assert answer.mode["holding"] == []
    assert [(one["job"], one["notebook"]) for one in answer.mode["moved"]] == [(made.job, True)]
    (row,) = answer.rows
    assert (row["notebook"], row["words"], row["holds"]) == (
        True,
        "is idle and lets go of what it can",
        "",
    )
    assert row["moved"] == "6G of GPU 0 on the host"

    answer = resume()
    assert [(one["id"], one["does"]) for one in answer.jobs] == [(made.job, "back")]
    assert answer.sentence == "The queue has the GPUs again: 1 notebook gets its GPU memory back."
    until(lambda: reason(client, made.job) == "")
    assert stub.done(made.process.pid) == [*OUT, *BACK]
    assert parked_in(held_folder(client, made.job)) is None
    made.end()
    until_state(client, made.job, JobState.SUCCEEDED)
    check_books(client)


def test_a_cell_that_runs_meanwhile_is_frozen_and_goes_on_once_the_memory_is_back(
    client,
    stub,
    idle,
):
    made, busy = idle
    free()
    busy.tell(busy=True)
    until_state(client, made.job, JobState.FROZEN)
    assert reason(client, made.job) == f"frozen by free mode; {ON_HOST}"
    assert stub.done(made.process.pid) == OUT  # not moved a second time
    resume()
    until_state(client, made.job, JobState.RUNNING)
    assert stub.done(made.process.pid) == [*OUT, *BACK]


def test_one_whose_memory_cannot_be_moved_keeps_it_and_is_not_tried_again(
    client,
    stub,
    idle,
):
    made, _ = idle
    stub.tell("checkpoint", "fail")
    answer = free()
    assert client.store.mode().name is ModeName.FREE
    done = [*OUT, "unlock moves"]
    until(lambda: stub.done(made.process.pid) == done)
    (row,) = answer.rows
    assert (row["holds"], row["moved"]) == ("6G of GPU 0", "")
    assert row["release"] == f"jupyter gpuqueue cancel {made.job}"
    other = gpuqueue.submit(["true"], preset="cpu")
    beat = client.home.root / "lead.beat"
    for _ in range(2):  # two more looks
        was = beat.stat().st_mtime_ns
        until(lambda was=was: beat.stat().st_mtime_ns > was)
    assert stub.done(made.process.pid) == done
    resume()
    assert other.wait(60) == 0
    assert reason(client, made.job) == ""


def test_it_waits_for_room_and_says_so(client, stub, idle):
    made, _ = idle
    free()
    stranger = os.getpid()
    stub.hold(stranger, 0, 20 * 1024)
    until(lambda: client.machine().outside)
    resume()
    what = "its GPU memory is on the host and waits for 6G of GPU 0 to be free"
    until(lambda: reason(client, made.job) == what)
    assert client.job(made.job).state is JobState.RUNNING
    stub.let_go(stranger)
    until(lambda: reason(client, made.job) == "")
    assert stub.done(made.process.pid) == [*OUT, *BACK]


def test_a_way_back_that_fails_stops_nothing(client, stub, idle):
    made, _ = idle
    free()
    stub.tell("restore", "fail")
    resume()
    until(lambda: "could not be brought back" in reason(client, made.job))
    me = identify(made.process.pid)
    assert not are_frozen([me], whole=[me])
    stub.tell("restore", "")
    until(lambda: reason(client, made.job) == "")


def test_a_lead_that_dies_meanwhile(home: Home, client, stub, idle):
    made, _ = idle
    stub.tell("checkpoint", "wait")
    gpuqueue.free()
    until(lambda: stub.done(made.process.pid) == OUT)
    lead = lead_process(home)
    send_signal(lead, signal.SIGKILL)
    until(lambda: not alive(lead))
    stub.go("checkpoint")
    until(lambda: spawn_headless(home) or lead_process(home))
    until(lambda: reason(client, made.job) == ON_HOST)
    resume()
    until(lambda: reason(client, made.job) == "")
    assert stub.state(made.process.pid) == "running"


def test_it_is_asked_to_empty_its_caches_once(client: LocalClient) -> None:
    made = kernel(client)
    folder = Path(held_folder(client, made.job))
    Busy(folder).tell(busy=False)
    bell = Doorbell(folder / TIDY)
    try:
        free()
        assert bell.wait(60) == ["caches"]
        assert bell.wait(0) == []
    finally:
        bell.close(remove=True)
    resume()
