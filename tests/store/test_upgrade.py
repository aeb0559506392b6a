"""A state of every earlier release opens, with its queue."""

import sqlite3
from pathlib import Path

import pytest
from conftest import until

import gpuqueue
from gpuqueue.control.lead import spawn_headless
from gpuqueue.model import JobState
from gpuqueue.store.schema import VERSION

STATES = sorted((Path(__file__).parent / "states").glob("v*.sql"))


def test_there_is_a_state_of_this_release():
    assert f"v{VERSION}.sql" in {path.name for path in STATES}


@pytest.mark.parametrize("dump", STATES, ids=lambda path: path.stem)
def test_an_earlier_state_keeps_its_queue(dump, home):
    db = sqlite3.connect(home.database)
    db.executescript(dump.read_text())
    db.close()
    before = int(dump.stem[1:])
    jobs = {job.tag: job for job in gpuqueue.jobs()}
    assert set(jobs) == {
        f"was-{s}" for s in ("queued", "running", "succeeded", "failed", "cancelled")
    }
    kept = home.database.with_name(f"state.db.v{before}.bak")
    assert kept.exists() == (before < VERSION)
    spawn_headless(home)
    assert jobs["was-queued"].wait(60) == 0
    lost = jobs["was-running"]
    until(lambda: lost.state is JobState.FAILED)
    assert "machine restarted" in lost.reason
    assert jobs["was-succeeded"].returncode == 0
    assert jobs["was-succeeded"].record.peak == (2**33 if before >= 3 else None)
