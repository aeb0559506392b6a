"""What happened, in the order in which it was committed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from gpuqueue.model import Event
from gpuqueue.store.codec import dump, load
from gpuqueue.store.connection import Connection

__all__ = ["Events"]


class Events(Connection):
    """The table ``events``: rows are only ever added."""

    def record(
        self,
        db: sqlite3.Connection,
        at: float,
        job_id: int | None,
        kind: str,
        data: Mapping[str, Any],
    ) -> int:
        """Append an event within the caller's transaction; return its number."""
        cursor = db.execute(
            "INSERT INTO events (at, job, kind, data) VALUES (?, ?, ?, ?)",
            (at, job_id, kind, dump(data)),
        )
        return int(cursor.lastrowid or 0)

    def events(
        self, since: int = 0, *, job_id: int | None = None, limit: int = 1000
    ) -> list[Event]:
        """Events after number ``since``, oldest first."""
        where, values = "seq > ?", [since]
        if job_id is not None:
            where += " AND job = ?"
            values.append(job_id)
        rows = self._rows(
            f"SELECT seq, at, job, kind, data FROM events WHERE {where} ORDER BY seq LIMIT ?",
            [*values, limit],
        )
        return [Event(seq, at, job, kind, load(data)) for seq, at, job, kind, data in rows]

    def last_event(self) -> int:
        """Number of the newest event."""
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])
