"""Wishes about jobs, which clients write down and the controller carries out."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from typing import Any

from gpuqueue.errors import UnknownJob
from gpuqueue.model import Intent, IntentKind
from gpuqueue.store.codec import dump, load
from gpuqueue.store.connection import Connection

__all__ = ["Intents"]


class Intents(Connection):
    """The table ``intents``: a row waits until it is marked as done."""

    def intend(
        self, kind: IntentKind, job_ids: Iterable[int | None], value: Any = None
    ) -> list[int]:
        """Write down a wish about jobs (None: no one job) for the controller; give its numbers."""
        with self.transaction() as db:
            return [
                int(
                    db.execute(
                        "INSERT INTO intents (kind, job, value, at) VALUES (?, ?, ?, ?)",
                        (str(kind), job_id, dump(value), time.time()),
                    ).lastrowid
                    or 0
                )
                for job_id in job_ids
            ]

    def open_intents(self) -> list[Intent]:
        """Intents that wait for the controller, oldest first."""
        rows = self._rows(
            "SELECT id, kind, job, value, at, done, error FROM intents "
            "WHERE done IS NULL ORDER BY id"
        )
        return [_intent_from(row) for row in rows]

    def intent(self, intent_id: int) -> Intent:
        """One intent, with what became of it."""
        rows = self._rows(
            "SELECT id, kind, job, value, at, done, error FROM intents WHERE id = ?",
            (intent_id,),
        )
        if not rows:
            raise UnknownJob(f"there is no intent {intent_id}")
        return _intent_from(rows[0])

    def finish_intent(
        self, db: sqlite3.Connection, intent: Intent, at: float, error: str = ""
    ) -> None:
        """Mark an intent as carried out or refused, within the caller's transaction."""
        db.execute("UPDATE intents SET done = ?, error = ? WHERE id = ?", (at, error, intent.id))


def _intent_from(row: tuple[Any, ...]) -> Intent:
    number, kind, job, value, *rest = row
    known = kind if kind in set(IntentKind) else IntentKind.UNKNOWN
    return Intent(number, IntentKind(known), job, load(value), *rest)
