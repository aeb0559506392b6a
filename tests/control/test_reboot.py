"""The machine restarts: whatever a job was doing, it ends right, and says what happened."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import gpuqueue
from gpuqueue.client import Job
from gpuqueue.control.lead import spawn_headless
from gpuqueue.model import Grant, JobState, Placement, ProcessId
from gpuqueue.paths import Home
from gpuqueue.run.files import take_claim
from gpuqueue.run.process import alive, identify
from gpuqueue.store import Store

EARLIER = "an-earlier-boot"
HELD = Placement((Grant("FAKE-0", 1000, 24 << 30, whole=True),), 1)


def left_behind(home: Home, job: Job, state: str, stranger: int, *, resumable: bool) -> None:
    """What a machine leaves that went down while the job was in this state."""
    process = ProcessId(stranger, 1, EARLIER)
    folder = home.attempt(job.id, 1)
    if state != "ordered":
        (folder / "run").mkdir(parents=True)
        take_claim(str(folder), process)
    if state not in ("ordered", "claimed"):
        payload = {"pid": stranger, "start": 1, "boot": EARLIER}
        (folder / "exit.json").write_text(json.dumps({"payload": payload}))
    if resumable and state not in ("ordered", "claimed"):
        (folder / "stop").write_bytes(b"\1\0" if state == "evicting" else b"\0\0")
    if state == "ended":
        now = time.time()
        (folder / "exit.json").write_text(
            json.dumps({"returncode": 6, "started": now - 9, "ended": now - 5, "asked": ""})
        )
    starting = state in ("ordered", "claimed")
    after = replace(
        job.record, state=JobState.STARTING, attempt=1, placement=HELD, started=None, process=None
    )
    store = Store(home.database)
    with store.transaction() as db:
        store.move(db, job.record, after, "starting", time.time())
        store.occupy(db, after, HELD, time.time())
        if not starting:
            states = {"ended": JobState.RUNNING}
            running = replace(
                after, state=states.get(state) or JobState(state), process=process,
                started=time.time() - 9, asked="evict" if state == "evicting" else "",
            )  # fmt: skip
            store.move(db, after, running, "started", time.time())
    store.close()


STATES = ["ordered", "claimed", "running", "evicting", "frozen", "ended"]


@pytest.mark.parametrize("kind", ["plain", "restartable", "resumable"])
@pytest.mark.parametrize("state", STATES)
def test_each_ends_right(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, kind: str
) -> None:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    home.config.write_text("gpus = [0]\n")
    line = f"echo $GPUQUEUE_RESUME >>'{tmp_path}/ran'; exit 4"
    options = {"plain": {}, "restartable": {"restartable": True}, "resumable": {}}[kind]
    job = gpuqueue.submit(["sh", "-c", line], gpus=1, **options)
    follower = gpuqueue.submit(["true"], gpus=1)
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        left_behind(home, job, state, stranger.pid, resumable=kind == "resumable")
        spawn_headless(home)
        job.wait(60)
        assert follower.wait(60) == 0  # the GPU is free again
        assert stranger.poll() is None  # though it has the pid that is on record
        assert alive(identify(os.getpid()))
    finally:
        stranger.kill()
        stranger.wait()
    began = state not in ("ordered", "claimed")
    ran = (tmp_path / "ran").read_text().split() if (tmp_path / "ran").exists() else []
    if state == "ended":  # its runner had told; the lead had not heard
        assert (job.returncode, ran) == (6, [])
    elif state == "ordered" or kind == "restartable" or (kind == "resumable" and began):
        assert job.returncode == 4
        # an order that nobody had claimed is given again, anything else is another attempt
        assert job.record.attempt == (1 if state == "ordered" else 2)
        goes_on = kind == "resumable" and began
        assert ran == ["1" if goes_on else ran[0]]
    else:
        # after a power cut the sign that it had begun may be missing: it is not run twice
        assert job.state is JobState.FAILED
        assert job.returncode is None
        assert "the machine restarted" in job.reason
        assert ran == []
    kinds = [event.kind for event in job._client.store.events(job_id=job.id)]
    assert kinds.count("ended") == 1
