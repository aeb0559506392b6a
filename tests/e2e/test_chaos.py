"""Kill processes of ours at random instants, and see that no job is lost or started twice.

``GPUQUEUE_CHAOS_KILLS=500 pytest -m chaos`` for a long run; the seed is printed, and
``GPUQUEUE_CHAOS_SEED`` repeats its choices.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import lead_process, leads_of, until

from gpuqueue.control.lead import ensure_lead
from gpuqueue.model import ACTIVE, JobState
from gpuqueue.run.process import descendants, send_signal
from gpuqueue.store import Store

pytestmark = pytest.mark.chaos

PAYLOAD = """
exec 9>>"$1/gpu-$CUDA_VISIBLE_DEVICES.lock"
flock -n 9 || exit 99
echo start >>"$1/ran-$GPUQUEUE_JOB_ID"
sleep 0.0$((GPUQUEUE_JOB_ID % 9 + 1))
echo end >>"$1/ran-$GPUQUEUE_JOB_ID"
exit $((GPUQUEUE_JOB_ID % 7))
"""

SUBMITTER = """
import sys, time, gpuqueue
for _ in range(10_000):
    job = gpuqueue.submit(["sh", sys.argv[1], sys.argv[2]], slots=1)
    print(job.id, flush=True)
    time.sleep(0.05)
"""


class Chaos:
    """A submitter, a keeper that sees to a lead, and a killer."""

    def __init__(self, home, folder: Path, rng: random.Random) -> None:
        self.home, self.folder, self.rng = home, folder, rng
        self.script = folder / "payload.sh"
        self.script.write_text(PAYLOAD)
        self.acknowledged: set[int] = set()
        self.kills: dict[str, int] = {}
        self.done = threading.Event()
        self.submitter = self._submit()

    def _submit(self):
        return subprocess.Popen(
            [sys.executable, "-c", SUBMITTER, str(self.script), str(self.folder)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def keep(self) -> None:
        while not self.done.wait(0.05):
            ensure_lead(self.home, autostart=not leads_of(self.home), line="keep")

    def listen(self) -> None:
        while not self.done.is_set():
            process = self.submitter
            for line in process.stdout:
                if line.endswith("\n"):
                    self.acknowledged.add(int(line))
            process.wait()
            if not self.done.is_set():
                self.submitter = self._submit()

    def victims(self) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        lead = lead_process(self.home)
        if lead is not None:
            found.append(("lead", lead))
            found += [("launcher", pid) for pid in descendants(lead.pid)[:1]]
        store = Store(self.home.database)
        active = [job for job in store.live() if job.state in ACTIVE and job.process]
        store.close()
        found += [("runner", job.process) for job in active]
        found.append(("submitter", self.submitter.pid))
        return found

    def kill_one(self) -> None:
        kind, victim = self.rng.choice(self.victims())
        try:
            if isinstance(victim, int):
                os.kill(victim, signal.SIGKILL)
            else:
                send_signal(victim, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.kills[kind] = self.kills.get(kind, 0) + 1


def test_random_kills_lose_no_job_and_start_none_twice(home, tmp_path):
    kills = int(os.environ.get("GPUQUEUE_CHAOS_KILLS", "60"))
    seed = int(os.environ.get("GPUQUEUE_CHAOS_SEED", time.time_ns() % 10**6))
    print(f"seed {seed}")
    home.config.write_text("slots = 2\ngrace = 0.2\n")
    chaos = Chaos(home, tmp_path, random.Random(seed))
    threads = [threading.Thread(target=chaos.keep), threading.Thread(target=chaos.listen)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: home.database.exists() and chaos.acknowledged)
        while sum(chaos.kills.values()) < kills:
            time.sleep(chaos.rng.uniform(0, 0.3))  # the random instant
            chaos.kill_one()
        chaos.done.set()
        chaos.submitter.kill()
    finally:
        chaos.done.set()
        chaos.submitter.kill()
        for thread in threads:
            thread.join()
    print(chaos.kills)
    ensure_lead(home, autostart=not leads_of(home), line="keep")
    store = Store(home.database)
    until(lambda: not store.live(), timeout=150, what="every job has ended")
    check(home, store, chaos)
    store.close()


def check(home, store: Store, chaos: Chaos) -> None:
    jobs = store.jobs(limit=10**6)
    assert chaos.acknowledged <= {job.id for job in jobs}
    for job in jobs:
        ran = chaos.folder / f"ran-{job.id}"
        lines = ran.read_text().split() if ran.exists() else []
        assert lines.count("start") <= 1, f"{job} was started twice"
        assert home.job(job.id).is_dir(), f"{job} is half a job"
        assert job.returncode != 99, f"{job} was given a GPU that another still held"
        if job.state is JobState.FAILED and job.returncode is None:
            assert "lost" in job.reason, job
        else:
            assert lines == ["start", "end"], job
            assert job.returncode == job.id % 7, job
        events = store.events(job_id=job.id)
        kinds = [event.kind for event in events if event.kind != "code"]  # that may come later
        assert kinds[0] == "submitted"
        assert kinds[-1] == "ended"
        assert kinds.count("ended") == 1
    with sqlite3.connect(home.database) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM placements WHERE until IS NULL").fetchone() == (0,)
        overlaps = db.execute(
            "SELECT a.job, b.job FROM placements a JOIN placements b ON a.gpu = b.gpu AND "
            "(a.job, a.attempt) < (b.job, b.attempt) AND a.since < b.until AND b.since < a.until"
        ).fetchall()
    assert overlaps == []
    print(f"{len(jobs)} jobs, {sum(job.returncode is None for job in jobs)} lost with their runner")
