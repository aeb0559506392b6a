"""How new jobs come in, with their specs and the event of it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuqueue.errors import StateRebuilt, UnknownJob
from gpuqueue.model import Job, JobKind, JobState, Origin, Request
from gpuqueue.store.codec import COLUMNS, dump, job_from, plain
from gpuqueue.store.jobs import Jobs

__all__ = ["Draft", "Submitting"]

_GAP = 1000


@dataclass(frozen=True, slots=True)
class Draft:
    """A job before it has a number. ``spec`` is JSON: the payload and its surroundings."""

    kind: JobKind
    request: Request
    tag: str
    owner: str
    command: str
    cwd: str
    origin: Origin
    spec: str
    key: str | None = None
    retry_of: int | None = None
    to_front: bool = False


class Submitting(Jobs):
    """What clients insert into the tables ``jobs`` and ``specs``."""

    def submit(
        self,
        drafts: Sequence[Draft],
        place: Callable[[int, int], None],
        *,
        flush: bool = True,
    ) -> list[Job]:
        """Insert jobs, all or none, and return them with their numbers.

        ``place(index, job_id)`` is called inside the transaction, to move the payload of
        ``drafts[index]`` to where job ``job_id`` will look for it; if it raises, nothing was
        queued. A draft whose key belongs to a job that waits, runs or succeeded returns that job.
        Without ``flush`` the jobs survive any process, but a power cut only once somebody has
        flushed.
        """
        now = time.time()
        jobs: list[Job] = []
        try:
            with self.transaction(flush=flush) as db:
                for index, draft in enumerate(drafts):
                    same = self._same_key(db, draft.key)
                    if same is not None:
                        jobs.append(same)
                        continue
                    job = self._insert(db, draft, now)
                    place(index, job.id)
                    jobs.append(job)
        except StateRebuilt:
            # it may have been written in time to be taken over
            kept = {job.id: job.submitted for job in self.jobs(limit=len(jobs) + _GAP)}
            if len(jobs) < len(drafts) or any(kept.get(j.id) != j.submitted for j in jobs):
                raise
        return jobs

    def _same_key(self, db: sqlite3.Connection, key: str | None) -> Job | None:
        if key is None:
            return None
        row = db.execute(
            f"SELECT {COLUMNS} FROM jobs WHERE key = ? AND state NOT IN ('failed', 'cancelled') "
            "ORDER BY id DESC LIMIT 1",
            (key,),
        ).fetchone()
        return job_from(row) if row else None

    def _insert(self, db: sqlite3.Connection, draft: Draft, now: float) -> Job:
        request = draft.request
        if draft.to_front:
            top = db.execute("SELECT max(priority) FROM jobs WHERE state = 'queued' ").fetchone()[0]
            request = replace(request, priority=max(top or 0, request.priority, 0) + 1)
        for parent in request.after:
            if not db.execute("SELECT 1 FROM jobs WHERE id = ?", (parent,)).fetchone():
                raise UnknownJob(f"after: there is no job {parent}")
        cursor = db.execute(
            "INSERT INTO jobs (kind, state, priority, position, request, tag, owner, command, "
            "cwd, origin, submitted, key, retry_of) "
            "VALUES (?, 'queued', ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                draft.kind, request.priority, dump(plain(request)), draft.tag, draft.owner,
                draft.command, draft.cwd, dump(plain(draft.origin)), now, draft.key,
                draft.retry_of,
            ),
        )  # fmt: skip
        job_id = int(cursor.lastrowid or 0)
        db.execute("UPDATE jobs SET position = id WHERE id = ?", (job_id,))
        db.execute("INSERT INTO specs (job, spec) VALUES (?, ?)", (job_id, draft.spec))
        self.record(db, now, job_id, "submitted", {})
        return Job(
            id=job_id, kind=draft.kind, state=JobState.QUEUED, request=request, tag=draft.tag,
            owner=draft.owner, command=draft.command, cwd=draft.cwd, origin=draft.origin,
            submitted=now, position=job_id, key=draft.key, retry_of=draft.retry_of,
        )  # fmt: skip
