"""Single values under a name: the machine's GPUs, who leads, who has the GPUs."""

from __future__ import annotations

import sqlite3
from typing import Any

from gpuqueue.model import Mode
from gpuqueue.store.codec import dump, load, mode_from, plain
from gpuqueue.store.events import Events

__all__ = ["Facts"]

_MODE = "mode"


class Facts(Events):
    """The table ``facts``: JSON values; the mode is one of them, and a change of it is an event."""

    def set_fact(self, name: str, value: Any) -> None:
        """Keep one JSON value under a name (the machine's GPUs, who leads)."""
        with self.transaction() as db:
            self._put_fact(db, name, value)

    def _put_fact(self, db: sqlite3.Connection, name: str, value: Any) -> None:
        db.execute(
            "INSERT INTO facts (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, dump(value)),
        )

    def fact(self, name: str) -> Any:
        """The value under a name; None if there is none."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", (name,))
        return load(rows[0][0]) if rows else None

    def set_mode(self, db: sqlite3.Connection, mode: Mode, at: float, data: Any) -> None:
        """Keep who has the GPUs and record it as an event, within the caller's transaction."""
        self._put_fact(db, _MODE, plain(mode))
        told = {"name": mode.name, "by": mode.by, "soft": mode.soft, "program": mode.program}
        self.record(db, at, None, "mode", told | data)

    def keep_mode(self, mode: Mode) -> None:
        """Keep who has the GPUs, without an event."""
        self.set_fact(_MODE, plain(mode))

    def mode(self) -> Mode:
        """Who has the GPUs: the queue unless somebody has taken them."""
        return mode_from(self.fact(_MODE))
