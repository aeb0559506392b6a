"""Usage records: who held what of which GPU, from when until when."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from gpuqueue.model import Grant, Job, JobState, Placement
from gpuqueue.store.connection import Connection

__all__ = ["Placements", "Stay"]


@dataclass(frozen=True, slots=True)
class Stay:
    """One usage record with whose it is: a job on a GPU, with one size, for a time.

    ``compute`` in thousandths, ``memory`` in bytes, times in seconds since the epoch; ``until`` is
    None while it lasts. ``notebook`` is the path of the notebook or script that it came from and
    ``agent`` the coding agent that asked for it, where that is known. ``frozen``: it only stood
    still and held its memory. ``lent`` thousandths of its compute were used by others meanwhile.
    """

    job: int
    owner: str
    tag: str
    notebook: str
    gpu: str
    compute: int
    memory: int
    since: float
    until: float | None
    frozen: bool = False
    agent: str = ""
    lent: int = 0


class Placements(Connection):
    """The table ``placements``: a row for each GPU of an attempt, open while it is held."""

    def occupy(self, db: sqlite3.Connection, job: Job, placement: Placement, at: float) -> None:
        """Open the usage records of an attempt, within the caller's transaction."""
        db.executemany(
            "INSERT INTO placements "
            "(job, attempt, gpu, compute, memory, whole, slots, since, frozen, lent) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    job.id,
                    job.attempt,
                    g.gpu,
                    g.compute,
                    g.memory,
                    g.whole,
                    placement.slots,
                    at,
                    job.state is JobState.FROZEN,
                    0 if job.loan is None else job.loan.on(g.gpu),
                )
                for g in placement.grants
            ],
        )

    def vacate(self, db: sqlite3.Connection, job: Job, at: float) -> None:
        """Close the usage records of a job's attempt, within the caller's transaction."""
        db.execute(
            "UPDATE placements SET until = max(since, ?) "
            "WHERE job = ? AND attempt = ? AND until IS NULL",
            (at, job.id, job.attempt),
        )

    def held(self, job_id: int, attempt: int) -> Placement | None:
        """What an attempt holds by its usage records; None if there are none."""
        rows = self._rows(
            "SELECT gpu, compute, memory, whole, slots FROM placements "
            "WHERE job = ? AND attempt = ? AND until IS NULL",
            (job_id, attempt),
        )
        grants = tuple(Grant(gpu, c, m, bool(whole)) for gpu, c, m, whole, _ in rows)
        return Placement(grants, rows[0][4]) if rows else None

    def usage(self, since: float) -> list[tuple[str, str, int, int, int, float, float | None]]:
        """Who held what of which GPU after ``since``.

        Owner, GPU, compute, what others used of that, memory, from, until; the last is None for
        those that still hold it.
        """
        return self._rows(
            "SELECT jobs.owner, gpu, compute, lent, memory, since, until FROM placements "
            "JOIN jobs ON jobs.id = placements.job WHERE until IS NULL OR until > ?",
            (since,),
        )

    def stays(self, since: float, *, job: int | None = None) -> list[Stay]:
        """The usage records that have not ended before ``since``, of all jobs or of one.

        They are in the order of their begin.
        """
        of, more = ("", ()) if job is None else (" AND placements.job = ?", (job,))
        rows: list[tuple[Any, ...]] = self._rows(
            "SELECT jobs.id, owner, tag, coalesce(json_extract(origin, '$.path'), ''), gpu, "
            "compute, memory, since, until, placements.frozen, "
            "coalesce(json_extract(origin, '$.agent'), ''), lent FROM placements "
            "JOIN jobs ON jobs.id = placements.job "
            f"WHERE (until IS NULL OR until > ?){of} ORDER BY seq",
            (since, *more),
        )
        return [Stay(*(*row[:9], bool(row[9]), *row[10:])) for row in rows]

    def occupied(
        self, since: float, limit: int
    ) -> list[tuple[int, str, str, str, int, float, float | None]]:
        """The latest ``limit`` stays on a GPU that have not ended before ``since``.

        Each is a job's number, tag and state, the GPU, compute, from, and until (None for now).
        """
        return self._rows(
            "SELECT jobs.id, tag, state, gpu, compute, since, until FROM placements "
            "JOIN jobs ON jobs.id = placements.job WHERE until IS NULL OR until > ? "
            "ORDER BY seq DESC LIMIT ?",
            (since, limit),
        )
