"""Jobs: how they are found, and how the controller changes them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuqueue.errors import StateDirectoryError, UnknownJob
from gpuqueue.model import TERMINAL, Job, JobKind, JobState
from gpuqueue.store.codec import COLUMNS, dump, job_from, plain
from gpuqueue.store.events import Events
from gpuqueue.store.placements import Placements
from gpuqueue.store.sought import Sought

__all__ = ["LIVE", "Jobs"]

LIVE = ("queued", "starting", "running", "frozen", "evicting")
_CHUNK = 5000
_BY_END = "(ended, id) < (SELECT ended, id FROM jobs WHERE id = ?)"


class Jobs(Events, Placements):
    """The tables ``jobs`` and ``specs``; a change of a job is an event."""

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
        sought: Sought | None = None,
        ended: bool = False,
    ) -> list[Job]:
        """Jobs, newest first; ``before`` is the id to page on from.

        With ``ended`` only those that have, the last to end first. Of what is ``sought`` the words
        count here; the states are in ``states``.
        """
        where, values = ["ended IS NOT NULL" if ended else "1"], []
        if states is not None:
            wanted = [str(state) for state in states]
            # the sign keeps SQLite from an index by state, after which it would sort all of them
            sign = "+" if ended else ""
            where.append(f"{sign}state IN ({', '.join('?' * len(wanted))})")
            values += wanted
        if owner is not None:
            where.append("owner = ?")
            values.append(owner)
        page, order = (_BY_END, "ended DESC, id DESC") if ended else ("id < ?", "id DESC")
        if before is not None:
            where.append(page)
            values.append(str(before))
        condition = " AND ".join(where)
        if sought is not None and sought.words:
            ids = json.dumps(self._sought(sought, limit, condition, values, page=page, order=order))
            condition, values = "id IN (SELECT value FROM json_each(?))", [ids]
        rows = self._rows(
            f"SELECT {COLUMNS} FROM jobs WHERE {condition} ORDER BY {order} LIMIT ?",
            [*values, limit],
        )
        return [job_from(row) for row in rows]

    def _sought(
        self,
        sought: Sought,
        limit: int,
        condition: str,
        values: list[str],
        *,
        page: str,
        order: str,
    ) -> list[int]:
        """Numbers of the first jobs that have the words; no lock is held for long."""
        found: list[int] = []
        further, after = "", list[str]()
        while len(found) < limit:
            rows = self._rows(
                "SELECT id, tag, owner, command, coalesce(json_extract(origin, '$.path'), '') "
                f"FROM jobs WHERE {condition}{further} ORDER BY {order} LIMIT ?",
                [*values, *after, _CHUNK],
            )
            found += [row[0] for row in rows if sought.says(*row)]
            if len(rows) < _CHUNK:
                break
            further, after = f" AND {page}", [str(rows[-1][0])]
        return found[:limit]

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

    def once_held(self, limit: int) -> list[Job]:
        """The jobs that ended last and that something had held to their shares, newest first."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM jobs WHERE ended IS NOT NULL AND hold IS NOT NULL "
            "ORDER BY ended DESC LIMIT ?",
            (limit,),
        )
        return [job_from(row) for row in rows]

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

    def live_counts(self) -> dict[tuple[str, str], int]:
        """How many jobs there are of each kind in each state that has not ended."""
        marks = ", ".join(f"'{state}'" for state in LIVE)
        sql = (
            f"SELECT state, kind, count(*) FROM jobs WHERE state IN ({marks}) GROUP BY state, kind"
        )
        return {(state, kind): count for state, kind, count in self._rows(sql)}

    # -- what the controller writes ---------------------------------------------------------

    def move(
        self,
        db: sqlite3.Connection,
        before: Job,
        after: Job,
        event: str,
        at: float,
        *,
        last: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Change a job and record the event, within the caller's transaction.

        A job in a terminal state never changes again; such a call is an error of the caller. If it
        is not the ``last`` one about this job in the transaction, only what that one does not
        bring is written. ``about`` goes into the event.
        """
        if after.request is not before.request:
            db.execute(
                "UPDATE jobs SET priority = ?, request = ? WHERE id = ?",
                (after.request.priority, dump(plain(after.request)), after.id),
            )
        if last:
            self._write_state(db, after, event)
        data: dict[str, Any] = {"state": str(after.state), **(about or {})}
        if after.reason and after.reason != before.reason:
            data["reason"] = after.reason
        if after.returncode is not None:
            data["returncode"] = after.returncode
        self.record(db, at, after.id, event, data)

    def _write_state(self, db: sqlite3.Connection, after: Job, event: str) -> None:
        cursor = db.execute(
            "UPDATE jobs SET state = ?, position = ?, attempt = ?, placement = ?, started = ?, "
            "ended = ?, returncode = ?, reason = ?, process = ?, asked = ?, peak = ?, "
            "learned_memory = ?, lacked = ?, frozen = ?, frozen_at = ?, resized = ?, hold = ?, "
            "loan = ? WHERE id = ? AND state NOT IN ('succeeded', 'failed', 'cancelled')",
            (
                str(after.state), after.position, after.attempt,
                None if after.placement is None else dump(plain(after.placement)),
                after.started, after.ended, after.returncode, after.reason,
                None if after.process is None else dump(plain(after.process)),
                after.asked, after.peak, after.learned_memory, after.lacked, after.frozen,
                after.frozen_at, None if after.resized is None else dump(plain(after.resized)),
                None if after.hold is None else dump(plain(after.hold)),
                None if after.loan is None else dump(plain(after.loan)), after.id,
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
            "learned_memory = ?, hold = ? WHERE id = ?",
            (
                job.expected, job.latest, job.learned, job.sound, job.peak, job.learned_memory,
                None if job.hold is None else dump(plain(job.hold)), job.id,
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
