"""What is wished of a kernel with a share: cancel, free mode, retry; and a lost database."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import end_leads, lead_process, until
from freeing_jobs import free, resume
from kernel_shares import QUARTER, check_books, held_folder, kernel, until_state
from mps_control import put_under_mps

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.client.shares import acquire
from gpuqueue.control import kernels
from gpuqueue.control.controller import Controller
from gpuqueue.control.turn import Turn
from gpuqueue.errors import GpuqueueError, NotAllowedNow
from gpuqueue.model import IntentKind, Job, JobKind, JobState, ModeName, Origin, ProcessId, Request
from gpuqueue.paths import Home
from gpuqueue.run.files import read_claim
from gpuqueue.run.freezing import are_frozen
from gpuqueue.run.kernelshare import Busy, is_busy, is_coming_up, keep_for_restart, name_kernel
from gpuqueue.run.process import identify
from gpuqueue.run.wake import ring

if os.name != "posix":
    pytest.skip("signals and /proc", allow_module_level=True)

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")


def ended(client: LocalClient, job: int, state: JobState, words: str = "") -> None:
    """A job has ended so, and its share is free."""
    record = until_state(client, job, *ENDED)
    assert (record.state, words in record.reason) == (state, True), record
    check_books(client)


def test_a_cancel_ends_the_kernel(client: LocalClient) -> None:
    made = kernel(client)
    gpuqueue.job(made.job).cancel()
    made.process.wait(60)
    ended(client, made.job, JobState.CANCELLED, "cancelled; its kernel was ended")


def test_a_kernel_that_does_not_hear_is_killed_after_the_grace(
    home: Home, client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.config.write_text("grace = 0.2\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lease = acquire(client, QUARTER)
    deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"],
                            env=lease.environment(os.environ), stdout=subprocess.PIPE)  # fmt: skip
    assert deaf.stdout is not None
    deaf.stdout.readline()
    lease.name(identify(deaf.pid))
    until_state(client, lease.job, JobState.RUNNING)
    was_let_go = put_under_mps(lease.folder, deaf.pid, tmp_path)
    gpuqueue.job(lease.job).cancel()
    assert deaf.wait(60) == -signal.SIGKILL
    assert was_let_go()
    ended(client, lease.job, JobState.CANCELLED)


def test_the_number_of_a_kernel_in_another_container_is_somebody_else_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hit: list[int] = []
    monkeypatch.setattr(kernels, "descendants", lambda pid: [os.getpid()])
    monkeypatch.setattr(kernels, "send_signal", lambda process, number: hit.append(process.pid))
    here = identify(os.getpid())
    assert here is not None
    kernels._kill(ProcessId(1234, 1, f"{here.boot.partition(':')[0]}:7777"))
    assert hit == []
    kernels._kill(ProcessId(1234, 1, here.boot))
    assert hit == [1234, os.getpid()]


def test_a_kernel_is_not_run_again(client: LocalClient) -> None:
    made = kernel(client)
    made.end()
    ended(client, made.job, JobState.SUCCEEDED)
    with pytest.raises(GpuqueueError, match="notebook's kernel"):
        gpuqueue.job(made.job).retry()


def test_free_mode_freezes_the_busy_and_leaves_the_idle(client: LocalClient) -> None:
    idle, busy = kernel(client, path="/books/idle.ipynb"), kernel(client, path="/books/busy.ipynb")
    Busy(held_folder(client, idle.job)).tell(busy=False)
    answer = free()
    assert {job["id"]: job["does"] for job in answer.jobs} == {idle.job: "idle", busy.job: "freeze"}
    assert "notebook idle.ipynb is idle and lets go of what it can" in str(answer)
    held = f"Notebook idle.ipynb (job {idle.job}) still holds memory of GPU 0; its restart lets go"
    assert held in str(answer)
    assert client.store.mode().name is ModeName.FREE
    assert client.job(busy.job).state is JobState.FROZEN
    assert client.job(idle.job).state is JobState.RUNNING
    process = client.job(busy.job).process
    assert are_frozen([process], whole=[process])
    # one that begins to work is frozen as well
    Busy(held_folder(client, idle.job)).tell(busy=True)
    until_state(client, idle.job, JobState.FROZEN)
    resume()
    for each in (idle, busy):
        until_state(client, each.job, JobState.RUNNING)
        process = client.job(each.job).process
        assert not are_frozen([process], whole=[process])
        each.end()


def test_what_one_kernel_told_says_nothing_of_the_next(client: LocalClient) -> None:
    """The next one may not have the extension that tells whether a cell runs."""
    made = kernel(client)
    folder = held_folder(client, made.job)
    Busy(folder).tell(busy=False)
    assert not is_busy(folder)
    made.kill()
    made.lease.hold_on()
    made.start()
    assert is_busy(folder)
    made.end()


def test_a_kernel_started_again_in_free_mode_comes_up(client: LocalClient) -> None:
    made = kernel(client)
    free()
    assert client.job(made.job).state is JobState.FROZEN
    made.kill()
    made.lease.hold_on()
    made.start()
    folder = held_folder(client, made.job)
    Busy(folder).tell(busy=False)
    again = until_state(client, made.job, JobState.RUNNING)
    assert (again.process, again.frozen_at, again.reason) == (identify(made.process.pid), None, "")
    until(lambda: client.store.mode().name is ModeName.FREE)
    assert again.process is not None
    assert not are_frozen([again.process], whole=[again.process])
    Busy(folder).tell(busy=True)
    until_state(client, made.job, JobState.FROZEN)
    resume()
    made.end()


def test_one_that_comes_up_is_not_taken_for_busy_for_a_while(tmp_path: Path) -> None:
    began = time.time() - 100
    me = identify(os.getpid())
    assert me is not None
    name_kernel(tmp_path, me)
    assert is_coming_up(tmp_path, began, 50)
    assert not is_coming_up(tmp_path, time.time() + 1, 50)  # it is the first one
    os.utime(tmp_path / "kernel.json", (began + 20, began + 20))
    assert not is_coming_up(tmp_path, began, 50)
    keep_for_restart(tmp_path)
    assert is_coming_up(tmp_path, began, 50)
    Busy(tmp_path).tell(busy=True)
    assert not is_coming_up(tmp_path, began, 50)


def test_a_frozen_kernel_can_be_shut_down(client: LocalClient) -> None:
    made = kernel(client)
    free()
    until_state(client, made.job, JobState.FROZEN)
    made.end()
    ended(client, made.job, JobState.SUCCEEDED)
    resume()


def test_a_kernel_that_is_lost_with_the_database_is_followed_all_the_same(
    home: Home, client: LocalClient
) -> None:
    made = kernel(client)
    claim = read_claim(held_folder(client, made.job))
    assert claim == identify(os.getpid())
    end_leads(home)
    client.store.close()
    for path in home.root.glob("state.db*"):
        path.unlink()
    fresh = LocalClient(home)
    job = gpuqueue.submit(["true"], preset="cpu")
    job.wait(60)
    found = fresh.job(made.job)
    assert (found.kind, found.state) == (JobKind.KERNEL, JobState.RUNNING)
    assert [grant.compute for grant in found.placement.grants] == [250]
    made.end()
    until_state(fresh, made.job, *ENDED)
    fresh.close()


def test_moving_a_kernel_in_the_queue_means_nothing(client: LocalClient) -> None:
    made = kernel(client)
    with pytest.raises(NotAllowedNow, match="only a waiting job can move"):
        client.intend(IntentKind.PRIORITY, made.job, 3)
    made.end()


@pytest.mark.parametrize(
    "text",
    ['{"pid": 1, "start": 2, "boot": "x", "name": "of a later version"}', '{"pid": 1}', "[7]"],
)
def test_a_note_of_another_version_costs_nobody_the_lead(
    home: Home, client: LocalClient, text: str
) -> None:
    made = kernel(client)
    lead = lead_process(home)
    note = held_folder(client, made.job) / "kernel.json"
    good = note.read_text()
    note.write_text(text)
    ring(home.wake, f"kernel {made.job}")
    assert gpuqueue.submit(["true"], preset="cpu").wait(60) == 0
    note.write_text(good)
    assert lead_process(home) == lead
    made.end()
    until_state(client, made.job, *ENDED)


def test_what_is_not_foreseen_of_one_job_costs_nobody_the_lead(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    controller = Controller(home)

    def odd(*_: object, **__: object) -> bool:
        raise TypeError("a word that nobody knows")

    monkeypatch.setattr(controller.follower, "follow", odd)
    try:
        job = Job(
            1, JobKind.KERNEL, JobState.RUNNING, Request(), "a", "me", "", "/", Origin(), 0, 1,
            attempt=1,
        )  # fmt: skip
        turn = Turn({1: job}, 0.0)
        assert [controller._follow(turn, job, look=True) for _ in range(2)] == [False, False]
    finally:
        controller.close()
    assert len([each for each in caplog.records if "cannot be followed" in each.message]) == 1
