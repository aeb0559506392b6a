"""The person takes the GPUs back and gives them again, with real jobs."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import lead_process, leads_of, until

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
from gpuqueue.run.files import is_resumable
from gpuqueue.run.freezing import are_frozen, freeze
from gpuqueue.run.process import alive, descendants, identify, marked, send_signal
from gpuqueue.settings import Settings

TRAIN = """
import os, sys
from pathlib import Path
from gpuqueue import checkpoint

folder = checkpoint.checkpoint_dir()
last = checkpoint.latest_checkpoint(folder, "step*.txt")
step = int(Path(last).read_text()) if last else 0
with open("seen", "a") as file:
    print(step, os.environ["GPUQUEUE_RESUME"], checkpoint.resuming(), file=file)
while not Path("go").exists():
    step += 1
    if checkpoint.should_stop():
        with checkpoint.atomic_path(folder / f"step{step}.txt") as path:
            Path(path).write_text(str(step))
        sys.exit(0)
"""
DEAF = """
import time
from pathlib import Path
from gpuqueue import checkpoint
checkpoint.should_stop()
Path("looked").touch()
while not Path("go").exists():
    time.sleep(0.01)
"""
COUNT = """
import os, time
number = 0
while not os.path.exists("go"):
    number += 1
    with open("count.new", "w") as file:
        file.write(str(number))
    os.rename("count.new", "count")
    time.sleep(0.005)
"""
FAMILY = """
import os, sys, time
def daemon():
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    daemon()
os.wait()
if os.fork() == 0:
    time.sleep(600)
open("up", "w").close()
time.sleep(600)
"""


@pytest.fixture
def mode(home):
    return default_client().store.mode


def free(**options):
    """Take the GPUs back; the answer once nothing is left to be done, however slow the machine."""
    return wait_for(default_client(), gpuqueue.free(**options), 60)


def resume():
    """Give them to the queue again; the answer once that has been done."""
    return wait_for(default_client(), gpuqueue.resume(), 60)


def python(folder, text, **options):
    """A job of this script in a folder of its own, once it runs."""
    folder.mkdir()
    (folder / "job.py").write_text(text)
    job = gpuqueue.submit(["python", "job.py"], cwd=folder, **options)
    until(lambda: job.state is JobState.RUNNING)
    return job


def resumable(folder, text, **options):
    job = python(folder, text, **options)
    until(lambda: is_resumable(default_client().home.attempt(job.id, 1)))
    # a question that came during its first look it would hear
    until(lambda: text is TRAIN or (folder / "looked").exists())
    return job


def count(folder):
    return int((folder / "count").read_text()) if (folder / "count").exists() else 0


def stands_still(job):
    return are_frozen([job.record.process]) and bool(descendants(job.record.process.pid))


def kinds(job):
    return [event.kind for event in default_client().store.events(job_id=job.id)]


def test_each_kind_of_job_and_back(home, tmp_path, mode, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "4x24G")
    home.config.write_text("slots = 9\n")
    saves = resumable(tmp_path / "saves", TRAIN)
    again = python(tmp_path / "again", COUNT, restartable=True)
    plain = python(tmp_path / "plain", COUNT, tag="plain")
    until(lambda: count(tmp_path / "plain"))
    no_gpu = python(tmp_path / "cpu", COUNT, preset="cpu")
    behind = gpuqueue.submit(["true"], preset="two")

    answer = free()
    assert {job["id"]: job["does"] for job in answer.jobs} == {
        saves.id: "evict", again.id: "restart", plain.id: "freeze",
    }  # fmt: skip
    assert mode().name is ModeName.FREE
    assert answer.mode["holding"] == [{"job": plain.id, "tag": "plain", "gpu": 2, "memory": None}]
    for text in (answer.message, str(gpuqueue.status())):
        assert f"ob {plain.id} (plain) still holds memory of GPU 2" in text
        assert f"`jupyter gpuqueue cancel {plain.id}` releases it" in text
    # those that stepped aside are in front, and have not failed
    for job in (saves, again):
        assert (job.state, job.returncode, job.record.attempt) == (JobState.QUEUED, None, 1)
        assert job.reason.startswith("evicted: ")
        assert job.record.order < behind.record.order
    assert plain.reason == "frozen by free mode"
    assert stands_still(plain)
    before = count(tmp_path / "plain")
    # nothing starts, whatever it is
    small = gpuqueue.submit(["true"], preset="cpu")
    assert "free mode" in small.why()
    assert default_client().plan().waits[small.id].reason == "free mode"
    with pytest.raises(gpuqueue.DoesNotFit, match="free mode"):
        gpuqueue.submit(["true"], preset="cpu", wait=False)
    going = count(tmp_path / "cpu")
    until(lambda: count(tmp_path / "cpu") > going)  # a job without a GPU goes on
    assert count(tmp_path / "plain") == before

    answer = resume()
    assert answer.settled
    assert {job["id"]: job["does"] for job in answer.jobs} == {
        plain.id: "continue", saves.id: "start", again.id: "start",
    }  # fmt: skip
    until(lambda: count(tmp_path / "plain") > before)
    assert plain.record.attempt == 1
    assert small.wait(60) == 0
    seen = tmp_path / "saves" / "seen"
    until(lambda: len(seen.read_text().splitlines()) == 2)
    first, second = (line.split() for line in seen.read_text().splitlines())
    assert first == ["0", "0", "False"]
    assert int(second[0]) > 0
    assert second[1:] == ["1", "True"]
    for name in ("saves", "again", "plain", "cpu"):
        (tmp_path / name / "go").touch()
    for job in (saves, again, plain, no_gpu, behind):
        assert job.wait(60) == 0
    assert (saves.record.attempt, again.record.attempt) == (2, 2)
    assert kinds(saves).count("evicting") == 1
    assert [event.data["name"] for event in default_client().store.events()
            if event.kind == "mode"] == ["freeing", "free", "normal"]  # fmt: skip


def test_one_that_does_not_step_aside_in_time_is_frozen_and_named(home, tmp_path, mode):
    home.config.write_text("evict_timeout = 1\n")
    deaf = resumable(tmp_path / "deaf", DEAF, tag="deaf")
    answer = free()
    assert deaf.state is JobState.FROZEN
    assert alive(deaf.record.process)
    assert stands_still(deaf)
    assert deaf.reason == "frozen by free mode: it did not save and exit within 1s"
    assert "1 (deaf) still holds" in answer.message
    assert "did not save and exit" in str(gpuqueue.status())
    resume()
    # the question is taken back: it runs to its end as if it had not been asked
    (tmp_path / "deaf" / "go").touch()
    assert deaf.wait(60) == 0
    assert (deaf.state, deaf.record.attempt) == (JobState.SUCCEEDED, 1)


def test_softly_all_are_frozen_at_once(home, tmp_path, mode):
    saves = resumable(tmp_path / "a", TRAIN)
    other = python(tmp_path / "b", COUNT, restartable=True)
    until(lambda: count(tmp_path / "b"))
    answer = free(soft=True)
    assert answer.settled
    assert [job["does"] for job in answer.jobs] == ["freeze", "freeze"]
    assert (mode().name, mode().soft) == (ModeName.FREE, True)
    for job in (saves, other):
        assert job.state is JobState.FROZEN
        assert stands_still(job)
        assert "evicting" not in kinds(job)
    resume()
    going = count(tmp_path / "b")
    until(lambda: count(tmp_path / "b") > going)
    assert (tmp_path / "a" / "seen").read_text().count("\n") == 1
    for job in (saves, other):
        job.cancel()


def test_what_was_frozen_softly_steps_aside_when_more_is_wanted(home, tmp_path, mode):
    saves = resumable(tmp_path / "a", TRAIN)
    other = python(tmp_path / "b", COUNT, restartable=True)
    free(soft=True)
    assert {saves.state, other.state} == {JobState.FROZEN}
    answer = free()
    assert [job["does"] for job in answer.jobs] == ["evict", "restart"]
    assert not mode().soft
    assert {saves.state, other.state} == {JobState.QUEUED}
    assert free(soft=True).mode["soft"] is False  # they are free already


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
    for pid in leads_of(home):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not leads_of(home))
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


def test_time_frozen_is_no_run_time(home, tmp_path, mode):
    job = python(tmp_path / "a", COUNT, eta="1h")
    blocked = gpuqueue.submit(["true"], gpus=2)
    until(lambda: blocked.record.latest)
    promised = blocked.record.latest
    free()
    began = job.record.frozen_at
    until(lambda: time.time() > began + 1)
    assert job.record.ran(began + 100) == job.record.ran(began)
    assert default_client().plan().expected == {}
    resume()
    record = job.record
    assert record.frozen_at is None
    assert record.frozen >= 1
    expected = default_client().plan().expected[blocked.id]
    assert expected == pytest.approx(record.started + record.frozen + 3600, abs=0.5)
    assert blocked.record.latest >= promised + 1
    (tmp_path / "a" / "go").touch()
    job.wait(60)
    assert job.record.ran(0) == pytest.approx(
        job.record.ended - job.record.started - record.frozen, abs=0.01
    )


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


def test_a_free_that_is_taken_back_while_a_job_still_runs(home, tmp_path, mode):
    """One that has not heard yet goes on as if nothing had been; none is lost."""
    home.config.write_text("evict_timeout = 600\n")
    deaf = resumable(tmp_path / "deaf", DEAF)
    answer = gpuqueue.free()
    until(lambda: deaf.state is JobState.EVICTING)
    assert not answer.settled
    assert mode().name is ModeName.FREEING
    resume()
    assert deaf.state is JobState.RUNNING
    (tmp_path / "deaf" / "go").touch()
    assert deaf.wait(60) == 0
    assert (deaf.state, deaf.record.attempt) == (JobState.SUCCEEDED, 1)


def test_nothing_to_free_and_nothing_to_resume(home, mode):
    assert "The queue has the GPUs again" in resume().message
    answer = free()
    assert answer.settled
    assert answer.message.startswith("The GPUs are yours.")
    since = mode().since
    assert free().mode["since"] == since
    resume()
    assert mode().normal


def test_without_a_controller_it_is_noted(home, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    answer = gpuqueue.free()
    assert not answer.settled
    assert "as soon as a controller runs" in answer.message
    spawn_headless(home)
    assert wait_for(default_client(), answer, 60).message.startswith("The GPUs are yours.")
    assert default_client().store.mode().name is ModeName.FREE


def test_only_the_person_may(home, monkeypatch):
    monkeypatch.setenv("CLAUDECODE", "1")
    for ask in (gpuqueue.free, gpuqueue.resume):
        with pytest.raises(gpuqueue.GpuqueueError, match=r"for the person .* Claude Code"):
            ask()
    monkeypatch.delenv("CLAUDECODE")
    job = gpuqueue.submit(["python", "-c", "import gpuqueue; gpuqueue.resume()"])
    assert job.wait(60) == 1
    assert f"asked by job {job.id}" in job.logs()
    assert default_client().store.open_intents() == []
    assert Path(home.root).exists()


def test_what_it_holds_is_told_where_the_driver_tells(home, tmp_path, mode, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(tmp_path / "procs"))
    (tmp_path / "procs").touch()
    job = python(tmp_path / "a", COUNT, tag="big", gpus=2)
    (payload,) = descendants(job.record.process.pid)
    (tmp_path / "procs").write_text(f"{payload}:0:6144\n{payload}:1:1024\n{payload + 1}:1:3\n")
    until(lambda: (default_client().machine().used or {}).get(job.id))
    answer = free()
    assert answer.jobs == [{"id": job.id, "tag": "big", "does": "freeze", "memory": 7 << 30}]
    assert (
        f"Job {job.id} (big) still holds 6G of GPU 0 and 1G of GPU 1; "
        f"`jupyter gpuqueue cancel {job.id}` releases it."
    ) in answer.message.splitlines()
    assert [each["memory"] for each in answer.mode["holding"]] == [6 << 30, 1 << 30]


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
    turn = Turn({job.id: job}, 1.0, Mode(ModeName.FREEING, "person", since=1.0))
    Freer(home, Evictor(home), bool, print).pursue(turn, Settings(), look=True)
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
