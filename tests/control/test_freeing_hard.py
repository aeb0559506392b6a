"""Free mode where something dies or gets away: leads, machines, jobs, daemons."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import end_leads, lead_process, until
from freeing_jobs import (
    COUNT,
    FAMILY,
    count,
    free,
    python,
    resume,
    stands_still,
)

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.client.freeing import wait_for
from gpuqueue.control.evicting import Evictor
from gpuqueue.control.freeing import Freer
from gpuqueue.control.lead import spawn_headless
from gpuqueue.control.turn import Turn
from gpuqueue.model import (
    Grant,
    Job,
    JobKind,
    JobState,
    Mode,
    ModeName,
    Origin,
    Placement,
    Request,
)
from gpuqueue.run import freezing
from gpuqueue.run.freezing import are_frozen, freeze
from gpuqueue.run.process import alive, descendants, identify, marked, send_signal
from gpuqueue.settings import Settings


@pytest.fixture
def mode(home):
    return default_client().store.mode


def test_a_whole_tree_stands_still(home, tmp_path, mode):
    job = python(tmp_path / "a", FAMILY)
    until((tmp_path / "a" / "up").exists)
    until(lambda: len(descendants(job.record.process.pid)) == 3)
    free()
    assert stands_still(job)
    below = descendants(job.record.process.pid)
    sessions = {os.getsid(pid) for pid in below}
    assert (len(below), len(sessions)) == (3, 2)
    # a cancel of it leaves nobody, the daemon included, though all of them stood still
    folder = str(home.attempt(job.id, 1))
    later = gpuqueue.submit(["true"])
    job.cancel()
    job.wait(60)
    assert job.state is JobState.CANCELLED
    assert marked("GPUQUEUE_ATTEMPT_DIR", folder) == []
    until(lambda: mode().name is ModeName.FREE)
    assert later.state is JobState.QUEUED
    assert not default_client().store.live()[0].uses_gpu
    resume()
    assert later.wait(60) == 0


def test_a_frozen_job_that_is_cancelled_may_end_in_its_own_way(home, tmp_path, mode):
    home.config.write_text("grace = 60\n")
    text = """
import os, signal, sys, time
reader, writer = os.pipe()
if os.fork() == 0:  # what it ends with needs its child
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(reader, 1)
    open("saved", "w").close()
    os._exit(0)
def end(*_):
    os.write(writer, b"x")
    os.wait()
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
open("up", "w").close()
while True:
    time.sleep(1)
"""
    job = python(tmp_path / "a", text)
    until((tmp_path / "a" / "up").exists)
    free()
    assert stands_still(job)
    job.cancel()
    assert job.wait(60) == 5
    assert job.state is JobState.CANCELLED
    assert (tmp_path / "a" / "saved").exists()


def test_a_frozen_job_that_is_killed_is_recorded(home, tmp_path, mode):
    job = python(tmp_path / "a", COUNT)
    free()
    (payload,) = descendants(job.record.process.pid)
    os.kill(payload, signal.SIGKILL)
    assert job.wait(60) == -signal.SIGKILL
    assert job.state is JobState.FAILED
    assert gpuqueue.status().to_dict()["mode"]["holding"] == []


def test_a_lead_that_dies_while_they_are_frozen(home, tmp_path, mode):
    job = python(tmp_path / "a", COUNT)
    until(lambda: count(tmp_path / "a"))
    free()
    before = count(tmp_path / "a")
    lead = lead_process(home)
    send_signal(lead, signal.SIGKILL)
    (payload,) = descendants(job.record.process.pid)
    os.kill(payload, signal.SIGCONT)  # as if the lead had died before it froze it
    spawn_headless(home)
    until(lambda: lead_process(home) not in (None, lead))
    until(lambda: stands_still(job))
    assert (mode().name, job.state) == (ModeName.FREE, JobState.FROZEN)
    resume()
    until(lambda: count(tmp_path / "a") > before + 20)
    (tmp_path / "a" / "go").touch()
    assert job.wait(60) == 0
    assert job.record.attempt == 1


def test_free_mode_outlives_a_reboot(home, tmp_path, mode):
    job = python(tmp_path / "a", COUNT, restartable=True)
    waiting = gpuqueue.submit(["true"], gpus=2)
    free(soft=True)
    process = job.record.process
    end_leads(home, signal.SIGKILL)
    for pid in (process.pid, *descendants(process.pid)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(process))
    db = sqlite3.connect(home.database)
    with db:
        earlier = "json_set(process, '$.boot', 'earlier')"
        db.execute(f"UPDATE jobs SET process = {earlier} WHERE process IS NOT NULL")
    db.close()
    spawn_headless(home)
    until(lambda: job.state is JobState.QUEUED)
    assert "machine restarted" in job.reason
    assert (mode().name, mode().by) == (ModeName.FREE, "person")
    turns = default_client().store.last_event()
    later = gpuqueue.submit(["true"], preset="cpu")
    free()  # has been heard: the lead has seen all of it
    assert default_client().store.last_event() >= turns
    assert {waiting.state, later.state, job.state} == {JobState.QUEUED}
    resume()
    assert later.wait(60) == 0
    (tmp_path / "a" / "go").touch()
    assert job.wait(60) == 0
    assert waiting.wait(60) == 0


def test_one_that_is_about_to_start_goes_back(home, tmp_path, mode):
    """Free and a submit in one moment, again and again: it runs after resume, and once."""
    for number in range(6):
        job = gpuqueue.submit(["sh", "-c", f"echo x >> '{tmp_path}/{number}'"], restartable=True)
        free()
        assert job.state in {JobState.QUEUED, JobState.SUCCEEDED}
        resume()
        assert job.wait(60) == 0
        lines = (tmp_path / str(number)).read_text().count("x")
        assert lines == 1 or job.record.attempt == 2


def test_without_a_controller_it_is_noted(home, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    answer = gpuqueue.free()
    assert not answer.settled
    assert "as soon as a controller runs" in answer.message
    spawn_headless(home)
    assert wait_for(default_client(), answer, 60).message.startswith("The GPUs are yours.")
    assert default_client().store.mode().name is ModeName.FREE


@pytest.fixture
def runner():
    """A process with a child."""
    process = subprocess.Popen(["sh", "-c", "sleep 600; true"])
    until(lambda: descendants(process.pid))
    yield identify(process.pid)
    for pid in (*descendants(process.pid), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def pursued(home, runner, **how):
    """The job after a turn of free mode, acted on, with this process as its runner."""
    placement = Placement((Grant("FAKE-0", 1000, 0),))
    job = replace(_queued(), attempt=1, process=runner, placement=placement, **how)
    parking = SimpleNamespace(  # nothing of it is on a GPU
        look=lambda *_: None, any_out=False, is_out=lambda _: False, is_coming=lambda _: False,
        move=lambda _: "",
    )  # fmt: skip
    turn = Turn({job.id: job}, 1.0, Mode(ModeName.FREEING, "person", since=1.0))
    Freer(home, Evictor(home), bool, print, parking).pursue(turn, Settings(), look=True)
    for action in turn.actions:
        action()
    return turn.jobs[job.id]


def test_one_that_was_to_be_let_go_when_the_lead_died_is_let_go(home, runner):
    folder = home.attempt(1, 1)
    folder.mkdir(parents=True)
    (folder / "stop").write_bytes(b"\0\0")
    freeze([runner])
    job = pursued(home, runner, state=JobState.EVICTING, asked="free")
    assert job.state is JobState.EVICTING
    until(lambda: not are_frozen([runner]))
    assert (folder / "stop").read_bytes() == b"\1\0"


def test_one_that_cannot_be_stopped_is_told(home, runner, monkeypatch):
    """As a job's process of another user cannot."""
    monkeypatch.setattr(freezing, "send_signal", _refused)
    job = pursued(home, runner, state=JobState.RUNNING)
    assert job.state is JobState.FROZEN
    assert job.reason == "frozen by free mode; some of its processes could not be stopped"


def _refused(*_):
    raise PermissionError


def _queued():
    return Job(
        id=1, kind=JobKind.SCRIPT, state=JobState.QUEUED, request=Request(), tag="", owner="",
        command="", cwd="/", origin=Origin(), submitted=0.0, position=1,
    )  # fmt: skip
