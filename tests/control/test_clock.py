"""Somebody sets the clock: no job starts early or late for it, and no time is negative."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import until

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control import lead
from gpuqueue.control.clock import CLOCK, Clock, mode_moved
from gpuqueue.control.controller import Controller
from gpuqueue.model import JobState, Mode, ModeName
from gpuqueue.paths import Home
from gpuqueue.run.files import read_exit
from gpuqueue.run.process import identify
from gpuqueue.run.runner import Runner

HOUR = 3600.0


class Wall:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.off = 0.0

    def __call__(self) -> float:
        return time.time() + self.off


@contextmanager
def leading(home: Home, clock: Clock) -> Iterator[Controller]:
    controller = Controller(home, clock=clock)
    thread = threading.Thread(target=controller.run)
    thread.start()
    try:
        yield controller
    finally:
        controller.stop()
        thread.join(30)
        controller.close()


def test_a_small_step_is_slewing_and_adds_up() -> None:
    wall, boot = 1000.0, 50.0
    clock = Clock(lambda: wall, lambda: boot)
    assert clock.set_by() == 0
    wall += 1.5
    assert clock.set_by() == 0
    wall += 1.0
    assert clock.set_by() == 2.5
    assert clock.set_by() == 0
    wall, boot = wall + 500, boot + 500  # a while, or suspended
    assert clock.set_by() == 0


def test_the_next_lead_sees_what_happened_while_nobody_led() -> None:
    first = Clock(lambda: 1000.0, lambda: 50.0)
    first.set_by()
    second = Clock(lambda: 1000.0 + HOUR + 5, lambda: 55.0)
    second.go_on(first.as_fact())
    assert second.set_by() == HOUR
    after_a_reboot = Clock(lambda: 9000.0, lambda: 1.0)
    after_a_reboot.go_on({"ahead": 950.0, "boot": "another"})
    assert after_a_reboot.set_by() == 0


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_jobs_take_no_notice(
    home: Home, tmp_path: Path, by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    home.config.write_text("gpus = [0]\nslots = 1\n")
    wall = Wall()
    client = LocalClient(home)
    go = tmp_path / "go"
    with leading(home, Clock(wall)):
        line = f"until [ -e '{go}' ]; do sleep 0.05; done; exit 3"
        first = gpuqueue.submit(["sh", "-c", line], eta="10m")
        until(lambda: first.state is JobState.RUNNING)
        waits = gpuqueue.submit(["true"], eta="5m")
        until(lambda: waits.record.expected, what="it has been promised a start")
        before, promised = first.record, waits.record
        wall.off = by
        until(lambda: (client.store.fact(CLOCK) or {}).get("ahead", 0) and moved(first, before, by))
        assert first.record.started == pytest.approx(before.started + by, abs=1)
        assert waits.record.expected == pytest.approx(promised.expected + by, abs=1)
        assert waits.record.latest == pytest.approx(promised.latest + by, abs=1)
        newcomer = gpuqueue.submit(["true"], eta="5m")  # its time is not of the old clock
        newcomer_at = newcomer.record.submitted
        until(lambda: newcomer.record.expected)
        assert newcomer.record.submitted == newcomer_at
        assert {waits.state, newcomer.state} == {JobState.QUEUED}
        go.touch()
        for job, code in ((first, 3), (waits, 0), (newcomer, 0)):
            assert job.wait(60) == code
            took = job.record.ended - job.record.started
            assert 0 <= took < 60
            assert job.record.attempt == 1
    with sqlite3.connect(home.database) as db:
        rows = db.execute("SELECT since, until FROM placements").fetchall()
    db.close()
    assert len(rows) == 3
    assert all(since <= end for since, end in rows)
    seqs = [event.seq for event in client.store.events()]
    assert seqs == sorted(seqs)
    client.close()


def moved(job: gpuqueue.Job, before: object, by: float) -> bool:
    return abs(job.record.started - before.started) > abs(by) / 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_how_long_a_job_took_is_measured(tmp_path: Path, by: float) -> None:
    """What runs teach comes from these two times."""
    folder = tmp_path / "1"
    spec = (
        '{"program": "/bin/sh", "argv": ["sh", "-c", "sleep 0.3; exit 5"], "cwd": "/", "env": {}}'
    )
    order = {
        "job": 1, "job_dir": str(tmp_path), "attempt_dir": str(folder), "env": {},
        "wake": str(tmp_path / "wake"), "grace": 1.0, "log_limit": 1 << 20, "spec": spec,
    }  # fmt: skip
    child = os.fork()
    if not child:
        try:
            true, began = time.time, time.monotonic()
            time.time = lambda: true() + (by if time.monotonic() - began > 0.15 else 0)
            Runner(order).run()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    record = read_exit(folder)
    assert record["returncode"] == 5
    assert 0.25 < record["ended"] - record["started"] < 30
    assert record["ended"] == pytest.approx(time.time() + by, abs=30)


def test_whoever_starts_a_lead_is_not_held_up(home: Home) -> None:
    """The mark of somebody who has just started one may be of any time."""
    mark = home.root / "starting"
    for off in (HOUR, -HOUR):
        mark.touch()
        os.utime(mark, (time.time() + off, time.time() + off))
        assert lead._first_to_start(home)
        assert not lead._first_to_start(home)
        mark.unlink()


def test_a_process_is_known_by_ticks_since_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identify(os.getpid())
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert identify(os.getpid()) == before


def test_when_the_gpus_were_taken_and_a_job_frozen_follows_the_clock():
    mode = Mode(ModeName.FREE, "person", since=100.0)
    assert mode_moved(mode, -30.0) == Mode(ModeName.FREE, "person", since=70.0)
    assert mode_moved(Mode(), 5.0) == Mode()
