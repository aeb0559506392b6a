"""The database is damaged while jobs run: they are followed to their true end."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from conftest import end_leads, until

import gpuqueue
from gpuqueue.client import Job, LocalClient, default_client
from gpuqueue.client.doctor import checks
from gpuqueue.control.lead import spawn_headless
from gpuqueue.model import Job as Record
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.store import RESCUE


def running(job: Job) -> Job:
    until(lambda: job.state is JobState.RUNNING, what=f"{job} runs")
    return job


def script(folder: Path, name: str, code: int) -> list[str]:
    """One that runs until the file ``go`` is there."""
    line = f"echo {name} >>'{folder}/ran'; until [ -e '{folder}/go' ]; do sleep 0.05; done"
    return ["sh", "-c", f"{line}; exit {code}"]


def damage(home: Home, how: str) -> None:
    if how in ("header", "middle"):
        with sqlite3.connect(home.database) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'").fetchone()
        db.close()
    for part in ("-wal", "-shm"):
        if how != "middle":
            home.database.with_name(f"state.db{part}").unlink(missing_ok=True)
    if how == "gone":
        home.database.unlink()
    elif how == "empty":
        os.truncate(home.database, 0)
    elif how == "header":
        with open(home.database, "r+b") as file:
            file.write(b"\0" * 4096)
    elif how == "middle":  # the table of jobs, and nothing else, under those who have it open
        with open(home.database, "r+b") as file:
            file.seek((page[0] - 1) * 4096)
            file.write(b"\xff" * 4096)


def lost(client: LocalClient, number: int) -> Record:
    """A job that has not begun, without its entry, is told and not run."""
    job = client.job(number)
    assert job.state is JobState.FAILED
    assert "submit it again" in job.reason
    return job


@pytest.mark.parametrize("how", ["gone", "empty", "header", "middle", "no log"])
def test_running_jobs_are_followed_to_their_true_end(home: Home, tmp_path: Path, how: str) -> None:
    home.config.write_text("slots = 3\ngpus = [0, 1]\n")
    done = gpuqueue.submit(["sh", "-c", "exit 4"])
    done.wait(60)
    called = gpuqueue.submit(len, "four")
    assert called.result(60) == 4
    first = running(gpuqueue.submit(script(tmp_path, "first", 7), gpus=1, slots=1))
    shared = running(gpuqueue.submit(script(tmp_path, "shared", 0), share=0.5, mem="2G", slots=1))
    killed = running(gpuqueue.submit(["sh", "-c", "sleep 600"], preset="cpu"))
    waiting = gpuqueue.submit(script(tmp_path, "waiting", 0), gpus=2, slots=1)
    function = gpuqueue.submit(len, "five!", preset="exclusive")
    until((home.job(waiting.id) / "spec.json").exists, what="its command is copied")
    numbers = [job.id for job in (done, called, first, shared, killed, waiting, function)]
    if how != "middle":
        default_client().close()
        end_leads(home, signal.SIGKILL)  # which leaves its log
    damage(home, how)
    client = LocalClient(home)
    if how != "middle":
        spawn_headless(home)
    client.store.jobs()  # whoever meets the damage mends it
    until(lambda: (client.store.fact(RESCUE) or {}).get("seen"), what="a lead has taken it in")
    told = gpuqueue.status().warning
    assert "made anew" in told
    assert any(check.name == "database repair" for check in checks(home)) == (how != "gone")
    # nothing is given their GPUs meanwhile
    new = Job(client, client.submit([_work(["true"], gpus=2)])[0].id)
    assert new.id > max(numbers)
    until(lambda: client.job(first.id).state is JobState.RUNNING)
    until(lambda: client.job(shared.id).state is JobState.RUNNING)
    assert client.job(new.id).state is JobState.QUEUED
    held = {gpu for number in (first.id, shared.id) for gpu in client.job(number).placement.gpus}
    assert len(held) == 2
    Job(client, killed.id).cancel()
    (tmp_path / "go").touch()
    for job in (first, shared, new):
        client.wait(job.id, 60)
    assert client.job(first.id).returncode == 7
    assert client.job(shared.id).state is JobState.SUCCEEDED
    assert client.job(new.id).returncode == 0
    assert client.job(done.id).returncode == 4
    assert client.job(called.id).state is JobState.SUCCEEDED
    assert client.wait(killed.id, 60).state is JobState.CANCELLED
    if how == "header":  # all of it could be read
        assert client.wait(waiting.id, 60).returncode == 0
        assert client.wait(function.id, 60).returncode == 0
    else:  # what they asked for is lost with their entries
        assert "echo waiting" in lost(client, waiting.id).command
        lost(client, function.id)
    once = ["first", "shared", *(["waiting"] if how == "header" else [])]
    assert sorted((tmp_path / "ran").read_text().split()) == once
    client.close()


@pytest.mark.parametrize("how", ["gone", "middle"])
def test_frozen_jobs_stay_frozen_until_resume(home: Home, tmp_path: Path, how: str) -> None:
    frozen = running(gpuqueue.submit(script(tmp_path, "frozen", 7), mem="2G"))
    until((tmp_path / "ran").exists)
    gpuqueue.free()
    until(lambda: frozen.state is JobState.FROZEN)
    end_leads(home, signal.SIGKILL)
    client = LocalClient(home)
    client.store.set_fact("mode", None)
    client.close()
    default_client().close()
    damage(home, how)
    client = LocalClient(home)
    client.store.jobs()
    spawn_headless(home)
    until(lambda: (client.store.fact(RESCUE) or {}).get("seen"), what="a lead has taken it in")
    until(lambda: client.job(frozen.id).state is JobState.FROZEN)
    new = Job(client, client.submit([_work(["true"], mem="2G")])[0].id)
    until(lambda: "free mode" in new.why())
    (tmp_path / "go").touch()
    gpuqueue.resume()
    assert client.wait(frozen.id, 60).returncode == 7
    assert client.wait(new.id, 60).returncode == 0
    client.close()


def test_one_whose_command_is_lost_is_frozen_rather_than_put_back(
    home: Home, tmp_path: Path
) -> None:
    code = (
        "import os, pathlib, sys, time; from gpuqueue import checkpoint; go = pathlib.Path('go')\n"
        "checkpoint.should_stop(); pathlib.Path('heard').touch()\n"
        "while not go.exists():\n"
        "    time.sleep(0.01)\n"
        "    if checkpoint.should_stop(): sys.exit(0)\n"
        "sys.exit(7)"
    )
    job = running(gpuqueue.submit([sys.executable, "-c", code], cwd=tmp_path, mem="2G"))
    until((tmp_path / "heard").exists)
    end_leads(home, signal.SIGKILL)
    default_client().close()
    damage(home, "gone")
    client = LocalClient(home)
    client.store.jobs()
    spawn_headless(home)
    until(lambda: (client.store.fact(RESCUE) or {}).get("seen"), what="a lead has taken it in")
    until(lambda: client.job(job.id).state is JobState.RUNNING)
    gpuqueue.free()
    until(lambda: client.job(job.id).state is JobState.FROZEN)
    gpuqueue.resume()
    (tmp_path / "go").touch()
    assert client.wait(job.id, 60).returncode == 7
    client.close()


def _work(words: list[str], **options: object) -> tuple:
    from gpuqueue.client.payload import script_payload
    from gpuqueue.client.request import options_from

    return script_payload(words), options_from(options)
