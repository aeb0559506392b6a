"""Usage records of real jobs: split, closed when they should be, and never counted twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import until

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.clock import Clock
from gpuqueue.control.controller import Controller
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, since_boot
from gpuqueue.store import Stay

HOUR = 3600.0
G = 2**30


@contextmanager
def leading(home: Home, later: float = 0.0) -> Iterator[Controller]:
    """A controller in this process, for which it is so many seconds later."""
    clock = Clock(lambda: time.time() + later, lambda: since_boot() + later)
    controller = Controller(home, clock=clock)
    thread = threading.Thread(target=controller.run)
    thread.start()
    try:
        yield controller
    finally:
        controller.stop()
        thread.join(30)
        controller.close()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")


def stays(client: LocalClient, job: gpuqueue.Job) -> list[Stay]:
    return [stay for stay in client.store.stays(0.0) if stay.job == job.id]


def running(job: gpuqueue.Job) -> gpuqueue.Job:
    until(lambda: job.state is JobState.RUNNING)
    return job


def test_the_end_is_that_of_the_job_though_nobody_led_then(
    home: Home, client: LocalClient, tmp_path
) -> None:
    go = tmp_path / "go"
    with leading(home):
        words = ["sh", "-c", f"until [ -e '{go}' ]; do sleep 0.05; done"]
        job = running(gpuqueue.submit(words, share=0.5))
    go.write_text("")
    until(lambda: (home.attempt(job.id, 1) / "exit.json").read_text().find("ended") > 0)
    with leading(home, later=5 * HOUR):
        until(job.done)
    (stay,) = stays(client, job)
    assert job.record.ended is not None
    assert stay.until == pytest.approx(job.record.ended)
    assert stay.until < time.time() + 1


def test_an_end_that_nobody_saw_is_the_last_sign_of_life(home: Home, client: LocalClient) -> None:
    with leading(home) as first:
        job = running(gpuqueue.submit(["sleep", "600"], share=0.5))
        until(lambda: (home.root / "lead.beat").exists())
        first.signs.beat(time.time())
    process = job.record.process
    assert process is not None
    # the runner and all below it die, and for hours nobody is there to see it
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not alive(process))
    died = time.time()
    with leading(home, later=5 * HOUR):
        until(job.done, what="it is lost")
    assert job.state is JobState.FAILED
    (stay,) = stays(client, job)
    assert stay.since <= (job.record.started or 0) <= stay.until <= died + 1
    # another lead counts nothing more
    with leading(home, later=6 * HOUR):
        again = gpuqueue.submit(["true"], share=0.5)
        until(again.done)
    assert stays(client, job) == [stay]


def test_a_restartable_one_that_was_lost_holds_nothing_in_between(
    home: Home, client: LocalClient
) -> None:
    with leading(home):
        job = running(gpuqueue.submit(["sleep", "600"], share=0.5, restartable=True))
        until(lambda: (home.root / "lead.beat").exists())
    process = job.record.process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not alive(process))
    with leading(home, later=5 * HOUR):
        until(lambda: job.record.attempt == 2 and job.state is JobState.RUNNING)
        first, second = stays(client, job)
        assert first.until is not None
        assert second.since - first.until > 4 * HOUR
        job.cancel()
        until(job.done)


def test_freezing_and_resizing_split_the_record(home: Home, client: LocalClient) -> None:
    with leading(home):
        job = running(gpuqueue.submit(["sleep", "600"], share=0.5, mem="8G"))
        gpuqueue.free(soft=True)
        until(lambda: job.state is JobState.FROZEN)
        job.resize(share=0.25)
        gpuqueue.resume()
        until(lambda: job.state is JobState.RUNNING)
        job.cancel()
        until(job.done)
    found = stays(client, job)
    assert [(stay.compute, stay.frozen) for stay in found] == [
        (500, False), (500, True), (250, True), (250, False),
    ]  # fmt: skip
    # one after the other, without a gap
    assert [stay.until for stay in found[:-1]] == [stay.since for stay in found[1:]]
    assert found[-1].until is not None


def test_usage_as_people_ask_for_it(home: Home, client: LocalClient) -> None:
    with leading(home):
        mine = running(gpuqueue.submit(["sleep", "600"], share=0.25, mem="6G", tag="mine"))
        done = gpuqueue.submit(["true"], tag="done")
        until(done.done)
        until(lambda: client.store.fact("cards"))
        found = gpuqueue.usage(since="1h", by="tag")
        assert {row["tag"] for row in found} == {"mine", "done"}
        row = next(row for row in found if row["tag"] == "mine")
        (stay,) = stays(client, mine)
        held = found.until - stay.since
        assert row["held_hours"] == pytest.approx(held / HOUR)
        assert row["gpu_hours"] == pytest.approx(0.25 * held / HOUR)
        assert row["gib_hours"] == pytest.approx(6 * held / HOUR)
        assert [row["vendor"] for row in gpuqueue.usage(by="vendor")] == ["nvidia"]
        assert all("Pretend GPU" in row["name"] for row in gpuqueue.usage(by="gpu"))
        with pytest.raises(gpuqueue.InvalidRequest, match="owner, notebook"):
            gpuqueue.usage(by="colour")
        mine.cancel()
        until(mine.done)
