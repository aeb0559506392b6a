"""The database's schema, and how an older one becomes the present one.

Each entry of ``MIGRATIONS`` takes the database from the version of its index to the next. A
released entry never changes; a change of the schema is a new entry.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from gpuqueue.errors import StateVersionError

__all__ = ["MIGRATIONS", "VERSION", "migrate"]

_FIRST = """
CREATE TABLE jobs (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    kind      TEXT NOT NULL,
    state     TEXT NOT NULL,
    priority  INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    request   TEXT NOT NULL,
    tag       TEXT NOT NULL,
    owner     TEXT NOT NULL,
    command   TEXT NOT NULL,
    cwd       TEXT NOT NULL,
    origin    TEXT NOT NULL,
    submitted REAL NOT NULL,
    attempt   INTEGER NOT NULL DEFAULT 0,
    placement TEXT,
    started   REAL,
    ended     REAL,
    returncode INTEGER,
    reason    TEXT NOT NULL DEFAULT '',
    process   TEXT,
    asked     TEXT NOT NULL DEFAULT '',
    key       TEXT,
    retry_of  INTEGER
);
CREATE INDEX jobs_live ON jobs (state, id)
    WHERE state IN ('queued', 'starting', 'running', 'frozen', 'evicting');
CREATE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;

CREATE TABLE events (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    at   REAL NOT NULL,
    job  INTEGER,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX events_job ON events (job, seq);

CREATE TABLE intents (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    kind  TEXT NOT NULL,
    job   INTEGER,
    value TEXT,
    at    REAL NOT NULL,
    done  REAL,
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX intents_open ON intents (id) WHERE done IS NULL;

CREATE TABLE placements (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job     INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    gpu     TEXT NOT NULL,
    compute INTEGER NOT NULL,
    memory  INTEGER NOT NULL,
    whole   INTEGER NOT NULL,
    slots   INTEGER NOT NULL,
    since   REAL NOT NULL,
    until   REAL
);
CREATE INDEX placements_open ON placements (job) WHERE until IS NULL;

CREATE TABLE specs (
    job  INTEGER PRIMARY KEY,
    spec TEXT NOT NULL
);

CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
"""

_SECOND = """
ALTER TABLE jobs ADD COLUMN expected REAL;
ALTER TABLE jobs ADD COLUMN latest REAL;
ALTER TABLE jobs ADD COLUMN learned REAL;
ALTER TABLE jobs ADD COLUMN sound INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_succeeded ON jobs (id) WHERE state = 'succeeded';
"""

_THIRD = """
ALTER TABLE jobs ADD COLUMN peak INTEGER;
ALTER TABLE jobs ADD COLUMN learned_memory INTEGER;
ALTER TABLE jobs ADD COLUMN lacked INTEGER;
CREATE INDEX jobs_lacked ON jobs (id) WHERE lacked IS NOT NULL;
"""

_FOURTH = """
ALTER TABLE jobs ADD COLUMN frozen REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN frozen_at REAL;
"""

_FIFTH = """
ALTER TABLE jobs ADD COLUMN resized TEXT;
ALTER TABLE jobs ADD COLUMN hold TEXT;
ALTER TABLE placements ADD COLUMN frozen INTEGER NOT NULL DEFAULT 0;
CREATE INDEX placements_until ON placements (until) WHERE until IS NOT NULL;
"""

_SIXTH = """
CREATE INDEX jobs_ended ON jobs (ended, id, state) WHERE ended IS NOT NULL;
"""

_SEVENTH = """
ALTER TABLE jobs ADD COLUMN loan TEXT;
ALTER TABLE placements ADD COLUMN lent INTEGER NOT NULL DEFAULT 0;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH)
VERSION = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the database at ``path`` to ``VERSION``, keeping a copy of an older one.

    The copy is ``state.db.v<old>.bak`` beside it. All steps happen in one transaction, so that a
    kill in the middle leaves the old version.

    Raises
    ------
    StateVersionError
        The database was written by a newer gpuqueue.
    """
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found == VERSION:
        return
    if found > VERSION:
        raise StateVersionError(
            f"{path} was written by a newer gpuqueue (its version is {found}, this one knows "
            f"{VERSION}). Upgrade this environment (pip install -U jupyter-gpuqueue) or set "
            "GPUQUEUE_HOME to another directory. Nothing was changed."
        )
    if found:
        _keep_copy(connection, path.with_name(f"{path.name}.v{found}.bak"))
    connection.execute("BEGIN EXCLUSIVE")
    try:
        # another process may have migrated while this one waited for the lock
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        for script in MIGRATIONS[found:]:
            for statement in script.split(";"):
                if statement.strip():
                    connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _keep_copy(connection: sqlite3.Connection, target: Path) -> None:
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, 0o600))
    copy = sqlite3.connect(partial)
    try:
        connection.backup(copy)
    finally:
        copy.close()
    partial.replace(target)
