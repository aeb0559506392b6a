"""Write ``states/v<VERSION>.sql``: a state of this release with jobs in every state.

Run once for each release that changes the schema; the files of earlier releases stay as they are.
"""

import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

from gpuqueue.model import Grant, JobKind, JobState, Origin, Placement, ProcessId, Request
from gpuqueue.store import Draft, Store
from gpuqueue.store.schema import VERSION

HERE = Path(__file__).parent


def main() -> None:
    path = Path(tempfile.mkdtemp()) / "state.db"
    store = Store(path)
    states = ["queued", "running", "succeeded", "failed", "cancelled"]
    drafts = [
        Draft(
            kind=JobKind.SCRIPT,
            request=Request(),
            tag=f"was-{state}",
            owner="somebody",
            command="true",
            cwd="/",
            origin=Origin("terminal", "", "tty1"),
            spec='{"kind":"script","program":"/bin/true","argv":["true"],"cwd":"/","env":{}}',
        )
        for state in states
    ]
    jobs = store.submit(drafts, lambda index, job_id: None)
    placement = Placement((Grant("FAKE-0", 1000, 2**34, whole=True),), 2)
    with store.transaction() as db:
        for job, name in zip(jobs, states, strict=True):
            state = JobState(name)
            if state is JobState.QUEUED:
                continue
            after = replace(
                job, state=state, attempt=1, placement=placement, started=2.0, peak=2**33
            )
            if state is JobState.RUNNING:
                after = replace(after, process=ProcessId(1, 1, "an-earlier-boot"))
            else:
                after = replace(after, ended=3.0, returncode=0 if name == "succeeded" else 1)
            store.move(db, job, after, "ended", 3.0)
    store.close()
    db = sqlite3.connect(path)
    text = "\n".join([*db.iterdump(), f"PRAGMA user_version = {VERSION};"])
    (HERE / "states").mkdir(exist_ok=True)
    (HERE / "states" / f"v{VERSION}.sql").write_text(text + "\n")


if __name__ == "__main__":
    main()
