"""A damaged database is set aside, never deleted, and a new one is made of what can be read.

Whoever opens the database holds a shared lock for that moment, and whoever rescues it an exclusive
one: of two that find it damaged, one makes the new one and the other waits. A rescue that is cut
short anywhere is gone on with by the next that opens: a note says that it has begun. What the
database has lost of jobs that ran is in their directories; the next lead takes it from there
(``control/adopt.py``), as the fact ``rescue`` asks it to.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuqueue.errors import StateDamaged, StateLocked
from gpuqueue.store.codec import dump
from gpuqueue.store.salvage import Read, lost_commits, replay, salvage, transplant
from gpuqueue.store.schema import migrate

__all__ = ["RESCUE", "file_of", "opening", "rescue", "see_if_empty", "verify", "why_damaged"]

RESCUE = "rescue"
"""Name of the fact: when, why, where the old files are, what was read, whether a lead has seen."""

_PARTS = ("-shm", "-wal", "")  # the log goes first: a new database must never meet an old log
_STEP = 0.02
_IN_FLIGHT = 0.05
_GAP = 1000
_CHECKED = 32 << 20


def file_of(path: str) -> tuple[int, int] | None:
    """What tells a file from another that took its name; None if there is none."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


@contextlib.contextmanager
def opening(path: Path, patience: float, *, alone: bool = False) -> Iterator[None]:
    """Hold the lock under which a database is opened or, ``alone``, made anew.

    Raises
    ------
    StateLocked
        Somebody else has had it for ``patience`` seconds.
    """
    if os.name != "posix":
        yield
        return
    import fcntl

    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        deadline = time.monotonic() + patience
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        while True:
            try:
                fcntl.flock(handle, how | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    words = f"{path} has been in use by a repair for {patience:.0f} s"
                    raise StateLocked(words) from None
                time.sleep(_STEP)
        yield
    finally:
        os.close(handle)


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.rescue")


def _numbers(path: Path) -> list[int]:
    try:
        names = os.listdir(path.with_name("jobs"))
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()]


def why_damaged(path: Path) -> str:
    """What can be seen of the files without opening them; empty if nothing is wrong with them."""
    if _note(path).exists():
        return "a repair of it was cut short"
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        size = -1
    if size <= 0 and _numbers(path):
        return "it is empty" if size == 0 else "it is gone"
    with contextlib.suppress(FileNotFoundError), open(f"{path}-wal", "rb") as log:
        header = log.read(4)
        if len(header) == 4 and header[:3] != b"\x37\x7f\x06":
            return "its log is damaged"
    return ""


def see_if_empty(connection: sqlite3.Connection, path: Path) -> None:
    """See that a database without tables is new.

    Raises
    ------
    StateDamaged
        There are jobs beside it.
    """
    if not connection.execute("PRAGMA user_version").fetchone()[0] and _numbers(path):
        raise StateDamaged("it is empty")


def verify(connection: sqlite3.Connection, path: Path) -> None:
    """Look for damage that has not been met yet; a long database is not looked through.

    Raises
    ------
    StateDamaged
        There is some.
    """
    if path.stat().st_size <= _CHECKED:
        answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if answer != "ok":
            raise StateDamaged(f"{path}: {answer}")

    def frames() -> int:
        return int(connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])

    if lost_commits(Path(f"{path}-wal"), frames):
        raise StateDamaged(f"{path}: a part of its log is damaged")


def _sound(path: Path) -> bool:
    """Whether the database is sound after all, or has been made anew by somebody else."""
    if why_damaged(path):
        return False
    try:
        connection = sqlite3.connect(path, timeout=1.0)
        try:
            verify(connection, path)
            connection.execute("SELECT count(*) FROM jobs").fetchone()
        finally:
            connection.close()
    except (sqlite3.DatabaseError, StateDamaged):
        return False
    return True


def rescue(path: Path, why: str, patience: float, *, sure: bool = False) -> str:
    """Set the damaged files aside and make a new database of what can be read.

    Unless ``sure``, it looks again first, for somebody else may have done it meanwhile. Returns
    what to tell the person; empty if there was nothing to do.

    Raises
    ------
    OSError
        There is no room for a new database. Nothing is lost; the next that opens it tries again.
    """
    with opening(path, patience, alone=True):
        if not sure and _sound(path):
            return ""
        note = _note(path)
        if not note.exists():
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            _write(note, json.dumps({"aside": f"{path.name}.damaged-{stamp}", "why": why}))
        begun = json.loads(note.read_text(encoding="utf-8"))
        aside = path.with_name(begun["aside"])
        for part in _PARTS:
            source, target = Path(f"{path}{part}"), Path(f"{aside}{part}")
            if source.exists() and not target.exists():
                source.rename(target)
        # whoever was writing sees, before or after, that this is no longer the database
        time.sleep(_IN_FLIGHT)
        work, made = Path(f"{path}.work"), Path(f"{path}.made")
        try:
            words = _make(path, aside, work, made, begun["why"])
            for part in _PARTS[:2]:
                Path(f"{path}{part}").unlink(missing_ok=True)
            made.rename(path)
        finally:
            _remove(work)
            _remove(made)
        note.unlink()
    return words


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _remove(path: Path) -> None:
    for part in (*_PARTS, "-journal"):
        Path(f"{path}{part}").unlink(missing_ok=True)


def _make(path: Path, aside: Path, work: Path, made: Path, why: str) -> str:
    _remove(work)
    _remove(made)
    os.close(os.open(made, os.O_CREAT | os.O_WRONLY, 0o600))
    new = sqlite3.connect(made, isolation_level=None)
    try:
        migrate(new, path)  # beside it are the job directories, above which numbers go on
        found: dict[str, Read] = {}
        if aside.exists():
            os.close(os.open(work, os.O_CREAT | os.O_WRONLY, 0o600))
            shutil.copyfile(aside, work)
            if Path(f"{aside}-wal").exists():
                replay(work, Path(f"{aside}-wal"))
            old, transplanted = _readable(work, made)
            try:
                new.execute("BEGIN")
                found = salvage(old, new, transplanted=transplanted)
                new.execute("COMMIT")
            finally:
                old.close()
        return _finish(new, path, aside, why, found)
    finally:
        new.close()
        handle = os.open(made, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _readable(work: Path, sound: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the copy of a damaged database; whether it needed another first page than its own."""
    for again in (False, True):
        old = sqlite3.connect(work, isolation_level=None)
        try:
            # in the copy everything is in this one file
            with open(work, "r+b") as file:
                if file.read(16).startswith(b"SQLite format 3"):
                    file.seek(18)
                    file.write(b"\1\1")
            old.execute("PRAGMA cell_size_check = ON")
            names = {row[0] for row in old.execute("SELECT name FROM sqlite_master")}
            if {"jobs", "events", "specs"} <= names or again:
                return old, again
        except sqlite3.DatabaseError:
            if again:
                return old, again
        old.close()
        transplant(work, sound)
    raise AssertionError("not reached")


_HIGHEST = {
    "jobs": "SELECT max(n) FROM (SELECT max(id) n FROM jobs UNION SELECT max(job) FROM events "
    "UNION SELECT max(job) FROM specs UNION SELECT max(job) FROM placements UNION "
    "SELECT max(job) FROM intents)",
    "events": "SELECT max(seq) FROM events",
}
"""The highest number that is known to have been given, by table."""


def _finish(
    new: sqlite3.Connection, path: Path, aside: Path, why: str, found: dict[str, Read]
) -> str:
    now = time.time()
    whole = bool(found) and all(read.whole for table, read in found.items() if table != "facts")
    new.execute("BEGIN")
    new.execute(
        "UPDATE placements SET until = ? WHERE until IS NULL AND job IN (SELECT id FROM jobs "
        "WHERE state IN ('succeeded', 'failed', 'cancelled', 'queued'))",
        (now,),
    )
    for table, select in _HIGHEST.items():
        highest = max(_numbers(path), default=0) if table == "jobs" else 0
        highest = max(highest, new.execute(select).fetchone()[0] or 0)
        # there may have been more of them than can be seen: a lost log leaves no trace
        highest = (highest // _GAP + 1) * _GAP
        new.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        new.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, highest))
    told = _words(new, path, aside, why, whole=whole)
    fact: dict[str, Any] = {
        "at": now, "why": why, "aside": aside.name, "words": told, "seen": False,
        "read": {table: [read.rows, read.whole] for table, read in found.items()},
    }  # fmt: skip
    new.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (RESCUE, dump(fact)))
    new.execute("COMMIT")
    return told


def _words(new: sqlite3.Connection, path: Path, aside: Path, why: str, *, whole: bool) -> str:
    jobs = int(new.execute("SELECT count(*) FROM jobs").fetchone()[0])
    words = f"the state database {path} was damaged ({why}) and has been made anew"
    words += f", with {jobs} job{'' if jobs == 1 else 's'}"
    if not whole:
        words += "; not all of it could be read, and what ran is taken from the job directories"
    kept = f". The old files are kept: {aside}*" if aside.exists() else ""
    return words + kept
