"""Scripts that save on SIGTERM by themselves: they are told apart from those that are done."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import until
from freeing_jobs import free, kinds, resume
from typer.testing import CliRunner

import gpuqueue
from gpuqueue.cli.app import app
from gpuqueue.client import default_client
from gpuqueue.errors import InvalidRequest
from gpuqueue.model import JobState
from gpuqueue.run.files import read_exit

SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").write_text("7")
    sys.exit(int(os.environ.get("CODE", 0)))
signal.signal(signal.SIGTERM, save)
with open("seen", "a") as file:
    print(os.environ["GPUQUEUE_RESUME"], os.path.exists("saved"), file=file)
print("second" if os.path.exists("saved") else "first", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
with open("seen", "a") as file:
    print("here", file=file)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def script(home, tmp_path):
    def submit(source=SAVES, work=("python", "script.py"), **options):
        (tmp_path / "script.py").write_text(source)
        job = gpuqueue.submit(list(work), cwd=tmp_path, resumable="sigterm", **options)
        until(lambda: (tmp_path / "seen").exists() and job.state is JobState.RUNNING)
        return job

    return submit


def seen(folder):
    return (folder / "seen").read_text().splitlines()


def ended(job):
    """The exit record of its first attempt."""
    return read_exit(default_client().home.attempt(job.id, 1))


def test_one_that_saves_and_exits_with_0_is_not_done(script, tmp_path):
    job = script()
    behind = gpuqueue.submit(["true"], preset="exclusive")
    answer = free()
    assert [each["does"] for each in answer.jobs] == ["evict"]
    assert (job.state, job.returncode) == (JobState.QUEUED, None)
    assert job.reason == "evicted: saved its state and stepped aside for free mode"
    assert job.record.order < behind.record.order
    assert (tmp_path / "saved").exists()
    assert ended(job)["returncode"] == 0
    resume()
    until(lambda: len(seen(tmp_path)) == 2)
    assert seen(tmp_path) == ["0 False", "1 True"]
    (tmp_path / "go").touch()
    assert job.wait(60) == 0
    assert (job.state, job.record.attempt) == (JobState.SUCCEEDED, 2)
    for number, words in ((1, "first"), (2, "second")):
        done = CliRunner().invoke(app, ["logs", str(job.id), "--attempt", str(number)])
        assert done.stdout == f"{words}\n"
    assert behind.wait(60) == 0


def test_the_signal_is_a_setting(home, script, tmp_path):
    home.config.write_text('save_signal = "SIGUSR1"\n')
    job = script(SAVES.replace("SIGTERM", "SIGUSR1"))
    free()
    assert job.reason == "evicted: saved its state and stepped aside for free mode"
    assert ended(job)["returncode"] == 0
    resume()
    until(lambda: len(seen(tmp_path)) == 2)
    job.cancel()  # by SIGTERM, as ever
    job.wait(60)
    assert job.state is JobState.CANCELLED


def test_it_makes_room_for_one_of_higher_priority(home, script, tmp_path):
    home.config.write_text("gpus = [0]\n")
    low = script(preemptible=True)
    high = gpuqueue.submit(["true"], priority=1)
    assert high.wait(60) == 0
    until(lambda: len(seen(tmp_path)) == 2)
    (tmp_path / "go").touch()
    assert low.wait(60) == 0
    assert seen(tmp_path) == ["0 False", "1 True"]
    assert high.record.started < low.record.started


def test_however_it_exits_when_asked_it_goes_on_later(script, tmp_path):
    job = script(env={"CODE": "3"})
    free()
    assert job.state is JobState.QUEUED
    assert job.reason == "evicted: was stopped for free mode"
    assert ended(job)["returncode"] == 3
    resume()
    until(lambda: len(seen(tmp_path)) == 2)
    (tmp_path / "go").touch()
    assert job.wait(60) == 0


def test_a_shell_that_dies_of_the_asking_leaves_its_program_time(home, script, tmp_path):
    # the grace would be over before it has begun; what a resumable job has is evict_timeout
    home.config.write_text("grace = 0\nevict_timeout = 60\n")
    slow = SAVES.replace('pathlib.Path("saved")', 'time.sleep(0.5); pathlib.Path("saved")')
    job = script(slow, ["sh", "-c", "python script.py; true"])
    free()
    assert job.state is JobState.QUEUED
    assert (tmp_path / "saved").exists()
    job.cancel()


def test_one_that_does_not_go_in_time_is_frozen_and_goes_on_where_it_was(home, script, tmp_path):
    home.config.write_text("evict_timeout = 0.5\n")
    job = script(DEAF)
    free()
    assert job.state is JobState.FROZEN
    assert "did not save and exit" in job.reason
    resume()
    (tmp_path / "go").touch()
    # it was asked and exits with 0: nobody can tell this from having saved
    until(lambda: len(seen(tmp_path)) == 2)
    assert job.wait(60) == 0
    assert job.record.attempt == 2
    assert "cancelled" not in kinds(job)


def test_unasked_an_end_is_an_end(script, tmp_path):
    job = script()
    (tmp_path / "go").touch()
    assert job.wait(60) == 0
    assert (job.state, job.record.attempt) == (JobState.SUCCEEDED, 1)


def test_a_cancel_is_a_cancel(script):
    job = script()
    job.cancel()
    job.wait(60)
    assert (job.state, job.returncode) == (JobState.CANCELLED, 0)
    assert (job.record.attempt, ended(job)["asked"]) == (1, "cancel")


def test_it_goes_on_after_its_runner_was_killed(script, tmp_path):
    job = script()
    os.kill(job.record.process.pid, signal.SIGKILL)
    until(lambda: len(seen(tmp_path)) == 2)
    assert seen(tmp_path)[1].startswith("1 ")
    (tmp_path / "go").touch()
    assert job.wait(60) == 0


@pytest.mark.parametrize("value", ["usr1", 3, "True"])
def test_other_ways_are_refused(home, value):
    with pytest.raises(InvalidRequest, match=r'resumable.*"sigterm"'):
        gpuqueue.submit(["true"], resumable=value)


def test_a_notebook_cannot_do_it(home, tmp_path):
    empty = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    (tmp_path / "n.ipynb").write_text(empty)
    with pytest.raises(InvalidRequest, match="a notebook has no way to save itself on SIGTERM"):
        gpuqueue.submit(str(tmp_path / "n.ipynb"), resumable="sigterm")
