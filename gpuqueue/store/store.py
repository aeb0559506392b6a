"""The store: jobs, events, intents, placements and facts, in one SQLite file.

Everything that outlives a process is here or in a job's directory.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuqueue.errors import StateDirectoryError, StateRebuilt, UnknownJob
from gpuqueue.model import TERMINAL, Job, JobKind, JobState, Origin, Request
from gpuqueue.store.codec import COLUMNS, dump, job_from, plain
from gpuqueue.store.facts import Facts
from gpuqueue.store.intents import Intents
from gpuqueue.store.placements import Placements

__all__ = ["LIVE", "Draft", "Store"]

LIVE = ("queued", "starting", "running", "frozen", "evicting")
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


class Store(Facts, Intents, Placements):
    """One connection to the state database; safe to use from several threads.

    It is made as a ``Connection`` is; what each table is asked and told is in a class of its own.
    """

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

    def move(
        self,
        db: sqlite3.Connection,
        before: Job,
        after: Job,
        event: str,
        at: float,
        *,
        last: bool = True,
    ) -> None:
        """Change a job and record the event, within the caller's transaction.

        A job in a terminal state never changes again; such a call is an error of the caller. If it
        is not the ``last`` one about this job in the transaction, only what that one does not
        bring is written.
        """
        if after.request is not before.request:
            db.execute(
                "UPDATE jobs SET priority = ?, request = ? WHERE id = ?",
                (after.request.priority, dump(plain(after.request)), after.id),
            )
        if last:
            self._write_state(db, after, event)
        data: dict[str, Any] = {"state": str(after.state)}
        if after.reason and after.reason != before.reason:
            data["reason"] = after.reason
        if after.returncode is not None:
            data["returncode"] = after.returncode
        self.record(db, at, after.id, event, data)

    def _write_state(self, db: sqlite3.Connection, after: Job, event: str) -> None:
        cursor = db.execute(
            "UPDATE jobs SET state = ?, position = ?, attempt = ?, placement = ?, started = ?, "
            "ended = ?, returncode = ?, reason = ?, process = ?, asked = ?, peak = ?, "
            "learned_memory = ?, lacked = ?, frozen = ?, frozen_at = ? "
            "WHERE id = ? AND state NOT IN ('succeeded', 'failed', 'cancelled')",
            (
                str(after.state), after.position, after.attempt,
                None if after.placement is None else dump(plain(after.placement)),
                after.started, after.ended, after.returncode, after.reason,
                None if after.process is None else dump(plain(after.process)),
                after.asked, after.peak, after.learned_memory, after.lacked, after.frozen,
                after.frozen_at, after.id,
            ),
        )  # fmt: skip
        if cursor.rowcount != 1:
            raise StateDirectoryError(f"job {after.id} is gone or has ended; it cannot {event}")
        if after.state in TERMINAL and after.kind is not JobKind.SCRIPT:  # it is in a file too
            db.execute("DELETE FROM specs WHERE job = ?", (after.id,))

    def promise(self, db: sqlite3.Connection, job: Job) -> None:
        """Keep what is known of a job besides its state, within the caller's transaction.

        What the scheduler told of it, what earlier runs taught, how much memory it was seen to use.
        """
        db.execute(
            "UPDATE jobs SET expected = ?, latest = ?, learned = ?, sound = ?, peak = ?, "
            "learned_memory = ? WHERE id = ?",
            (
                job.expected, job.latest, job.learned, job.sound, job.peak, job.learned_memory,
                job.id,
            ),
        )  # fmt: skip

    def set_clock(self, job_ids: Iterable[int], by: float) -> None:
        """Move the times of live jobs, and of what they hold: the clock has been set ``by`` s."""
        ids = json.dumps(sorted(job_ids))
        live = "(SELECT value FROM json_each(?))"
        with self.transaction() as db:
            db.execute(
                "UPDATE jobs SET submitted = submitted + ?, started = started + ?, "
                "expected = expected + ?, latest = latest + ?, frozen_at = frozen_at + ? "
                f"WHERE id IN {live}",
                (by, by, by, by, by, ids),
            )
            db.execute(
                f"UPDATE placements SET since = since + ? WHERE until IS NULL AND job IN {live}",
                (by, ids),
            )

    def take_in(self, db: sqlite3.Connection, job: Job, at: float) -> None:
        """Enter a job that the database has lost, within the caller's transaction."""
        db.execute(
            "INSERT INTO jobs (id, kind, state, priority, position, request, tag, owner, command, "
            "cwd, origin, submitted) VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                job.id, job.kind, job.request.priority, job.position, dump(plain(job.request)),
                job.tag, job.owner, job.command, job.cwd, dump(plain(job.origin)), job.submitted,
            ),
        )  # fmt: skip
        self.move(db, replace(job, reason=""), job, "recovered", at)
        if job.placement is not None and job.state not in TERMINAL:
            self.vacate(db, job, at)  # what is open of it, of before
            self.occupy(db, job, job.placement, at)

    def job(self, job_id: int) -> Job:
        """One job.

        Raises
        ------
        UnknownJob
            There is none with that number.
        """
        rows = self._rows(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (job_id,))
        if not rows:
            raise UnknownJob(f"there is no job {job_id}; `jupyter gpuqueue status` lists them")
        return job_from(rows[0])

    def spec(self, job_id: int) -> str | None:
        """The spec that was committed with a job; None once it ended, if it is in a file too."""
        rows = self._rows("SELECT spec FROM specs WHERE job = ?", (job_id,))
        return str(rows[0][0]) if rows else None

    def live(self, newer_than: int = 0) -> list[Job]:
        """Jobs that have not ended, with an id above ``newer_than``, by id."""
        marks = ", ".join(f"'{state}'" for state in LIVE)
        return [
            job_from(row)
            for row in self._rows(
                f"SELECT {COLUMNS} FROM jobs WHERE state IN ({marks}) AND id > ? ORDER BY id",
                (newer_than,),
            )
        ]

    def jobs(
        self,
        *,
        states: Iterable[str] | None = None,
        owner: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """Jobs, newest first; ``before`` is the id to page on from."""
        where, values = ["1"], []
        if states is not None:
            wanted = [str(state) for state in states]
            where.append(f"state IN ({', '.join('?' * len(wanted))})")
            values += wanted
        if owner is not None:
            where.append("owner = ?")
            values.append(owner)
        if before is not None:
            where.append("id < ?")
            values.append(str(before))
        rows = self._rows(
            f"SELECT {COLUMNS} FROM jobs WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
            [*values, limit],
        )
        return [job_from(row) for row in rows]

    def lessons(self, limit: int) -> list[Job]:
        """The newest jobs that teach something, oldest first, ``limit`` of each kind at most.

        Those that succeeded, and those that ran out of the memory that was learned for them.
        """
        found: dict[int, Job] = {}
        for which in ("state = 'succeeded'", "lacked IS NOT NULL"):
            rows = self._rows(
                f"SELECT {COLUMNS} FROM jobs WHERE {which} ORDER BY id DESC LIMIT ?", (limit,)
            )
            found |= {row[0]: job_from(row) for row in rows}
        return [found[job_id] for job_id in sorted(found)]

    def states(self, job_ids: Iterable[int]) -> dict[int, JobState]:
        """The states of these jobs; ids that do not exist are missing."""
        ids = json.dumps(sorted(set(job_ids)))
        rows = self._rows(
            "SELECT id, state FROM jobs WHERE id IN (SELECT value FROM json_each(?))", (ids,)
        )
        return {job_id: JobState(state) for job_id, state in rows}

    def newest(self) -> int:
        """The highest number that a job has been given."""
        return int(
            self._rows("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'")[0][
                0
            ]
        )

    def unknown_jobs(self, directories: Iterable[int]) -> list[int]:
        """Jobs without an entry that have a directory, a spec or an event."""
        rows = self._rows(
            "SELECT value FROM json_each(?) UNION SELECT job FROM specs UNION "
            "SELECT job FROM events WHERE job IS NOT NULL EXCEPT SELECT id FROM jobs",
            (json.dumps(list(directories)),),
        )
        return sorted(int(row[0]) for row in rows)

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        return dict(self._rows("SELECT state, count(*) FROM jobs GROUP BY state"))

    def live_counts(self) -> dict[str, int]:
        """How many jobs there are in each state that has not ended."""
        marks = ", ".join(f"'{state}'" for state in LIVE)
        sql = f"SELECT state, count(*) FROM jobs WHERE state IN ({marks}) GROUP BY state"
        return dict(self._rows(sql))
