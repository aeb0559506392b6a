"""Reads what can still be read of a damaged database, row by row, into a new one.

The format is described in https://www.sqlite.org/fileformat2.html. A table's rows are found by
their numbers alone, never through an index, and each row must make sense before it is taken.
"""

from __future__ import annotations

import collections
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpuqueue.store.codec import COLUMNS, job_from, load

__all__ = ["Read", "lost_commits", "replay", "salvage", "transplant"]

_PAGE = 4096
_FRAME = 24
_LOG_HEADER = 32
_LOG_MAGIC = (0x377F0682, 0x377F0683)
_GUESS = 10_000
"""Row numbers tried one by one behind a place that cannot be read, if their end is not known."""
_MOST = 500_000
"""The same, if it is."""


@dataclass(slots=True)
class Read:
    """What could be read of one table: how many rows, and whether that was all there was."""

    rows: int = 0
    whole: bool = True


# -- the log --------------------------------------------------------------------------------------


def _frames(log: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Offset, page number, pages in the database after a commit (else 0), and salts of each."""
    for offset in range(_LOG_HEADER, len(log) - _FRAME - _PAGE + 1, _FRAME + _PAGE):
        number, commit = struct.unpack_from(">II", log, offset)
        yield offset, number, commit, log[offset + 8 : offset + 16]


def _salts(log: bytes) -> bytes:
    """The mark of the frames that count; older ones behind them have another."""
    if struct.unpack_from(">I", log)[0] in _LOG_MAGIC:
        return log[16:24]
    first = [salts for _, (_, _, _, salts) in zip(range(5), _frames(log), strict=False)]
    return collections.Counter(first).most_common(1)[0][0] if first else b""


def replay(database: Path, log_file: Path) -> None:
    """Move the log's pages into the database, though a part of the log may be damaged.

    SQLite itself stops at the first frame whose checksum is wrong, and takes none if the log's
    header is. Here every frame with the right mark counts, up to the last commit.
    """
    log = log_file.read_bytes()
    if len(log) < _LOG_HEADER:
        return
    salts = _salts(log)
    good = [frame for frame in _frames(log) if frame[3] == salts and 0 < frame[1] < 1 << 31]
    last = max((place for place, frame in enumerate(good) if frame[2]), default=-1)
    with open(database, "r+b") as file:
        for offset, number, _, _ in good[: last + 1]:
            file.seek((number - 1) * _PAGE)
            file.write(log[offset + _FRAME : offset + _FRAME + _PAGE])


def lost_commits(log_file: Path, valid: Callable[[], int]) -> bool:
    """Whether the log has commits that SQLite does not see, because it is damaged before them.

    ``valid`` tells how many frames SQLite sees. A process that is killed leaves frames without a
    commit at most.
    """
    seen = valid()
    try:
        with open(log_file, "rb") as file:
            last, salts = _last_commit(file, seen)
            # meanwhile others may have committed more, or begun the log anew
            return last > seen and last > valid() and _header(file)[16:24] == salts
    except FileNotFoundError:
        return False


def _header(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read(_LOG_HEADER)


def _last_commit(file: BinaryIO, after: int) -> tuple[int, bytes]:
    """The last frame behind the first ``after`` that counts and is a commit; and what counts."""
    salts, last, place = _header(file)[16:24], 0, after
    while True:
        file.seek(_LOG_HEADER + place * (_FRAME + _PAGE))
        head = file.read(16)
        if len(head) < 16:
            return last, salts
        place += 1
        if head[8:16] == salts and head[4:8] != b"\0\0\0\0":
            last = place


# -- the first page -------------------------------------------------------------------------------


def transplant(database: Path, sound: Path) -> None:
    """Give a database the first page of another that has the same tables.

    It says how long pages are and where each table begins. The tables were all made in the same
    order, in an empty database, so they begin on the same pages.
    """
    with open(sound, "rb") as file:
        page = bytearray(file.read(_PAGE))
    size = database.stat().st_size
    pages = max(1, -(-size // _PAGE))
    struct.pack_into(">I", page, 28, pages)
    page[92:96] = page[24:28]  # the size counts only if these two agree
    struct.pack_into(">II", page, 32, 0, 0)  # no list of free pages
    with open(database, "r+b") as file:
        file.write(page)
        file.truncate(pages * _PAGE)


# -- rows -----------------------------------------------------------------------------------------


def _rows(db: sqlite3.Connection, table: str, columns: str, read: Read) -> Iterator[Any]:
    select = f"SELECT rowid, {columns} FROM {table} NOT INDEXED WHERE rowid"
    last, top = 0, -1
    while True:
        try:
            for row in db.execute(f"{select} > ? ORDER BY rowid", (last,)):
                if row[0] <= last:
                    raise sqlite3.DatabaseError("rows out of order")
                last = row[0]
                yield row[1:]
        except sqlite3.DatabaseError:
            read.whole = False
        else:
            return
        if top < 0:
            top = _highest(db, table, last)
        found = _readable(db, select, range(last + 1, top + 1))
        if found is None:
            return
        # a search for what comes after the number before it may lead into the damaged page
        last = found[0]
        yield found[1:]


def _highest(db: sqlite3.Connection, table: str, last: int) -> int:
    """A number above which a table has no rows."""
    found = []
    for sql in (
        f"SELECT max(rowid) FROM {table}",
        f"SELECT max(seq) FROM sqlite_sequence WHERE '{table}' IN (name, 'specs')",
    ):
        try:
            found.append(int(db.execute(sql).fetchone()[0] or 0))
        except (sqlite3.DatabaseError, ValueError, TypeError):
            continue
    return min(max(found, default=last), last + _MOST) if found else last + _GUESS


def _readable(db: sqlite3.Connection, select: str, numbers: range) -> Any:
    """The first row with one of these numbers that can be read."""
    for number in numbers:
        try:
            row = db.execute(f"{select} = ?", (number,)).fetchone()
            if row and row[0] == number:
                return row
        except sqlite3.DatabaseError:
            continue
    return None


def _named_rows(db: sqlite3.Connection, table: str, columns: str, read: Read) -> Iterator[Any]:
    """Rows of the one table that has no row numbers; it is short, and made anew by any lead."""
    try:
        yield from db.execute(f"SELECT {columns} FROM {table}")
    except sqlite3.DatabaseError:
        read.whole = False


def _is_job(row: Mapping[str, Any]) -> bool:
    job = job_from(tuple(row.get(name) for name in COLUMNS.split(", ")))
    texts = (job.tag, job.owner, job.command, job.cwd, job.reason, job.asked)
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int) for number in (job.id, job.attempt, job.position))
        and isinstance(job.submitted, float | int)
    )


def _is_event(row: Mapping[str, Any]) -> bool:
    return isinstance(row["at"], float | int) and isinstance(load(row["data"]), dict)


def _is_intent(row: Mapping[str, Any]) -> bool:
    load(row["value"])
    return isinstance(row["kind"], str)


def _is_placement(row: Mapping[str, Any]) -> bool:
    numbers = (row["job"], row["attempt"], row["compute"], row["memory"], row["since"])
    return isinstance(row["gpu"], str) and all(isinstance(n, float | int) for n in numbers)


def _is_spec(row: Mapping[str, Any]) -> bool:
    return isinstance(load(row["spec"]), dict)


def _is_anything(_row: Mapping[str, Any]) -> bool:
    return True


def _is_fact(row: Mapping[str, Any]) -> bool:
    load(row["value"])
    return isinstance(row["name"], str)


_TABLES: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "jobs": _is_job,
    "events": _is_event,
    "intents": _is_intent,
    "placements": _is_placement,
    "specs": _is_spec,
    "facts": _is_fact,
}


def salvage(
    old: sqlite3.Connection, new: sqlite3.Connection, *, transplanted: bool
) -> dict[str, Read]:
    """Copy every row that can be read and makes sense; tell how much that was, by table.

    Of a ``transplanted`` database only the tables of the first schema are where they seem to be.
    """
    found = {}
    for table in _tables(new):
        read = found[table] = Read()
        if transplanted and table not in _TABLES:
            read.whole = False
            continue
        there = {row[1] for row in new.execute(f"PRAGMA table_info({table})")}
        try:
            names = [r[1] for r in old.execute(f"PRAGMA table_info({table})") if r[1] in there]
        except sqlite3.DatabaseError:
            names = []
        if not names:
            # an older schema does not have it; the first one has these
            read.whole = table not in _TABLES
            continue
        columns = ", ".join(names)
        rows = (_named_rows if table == "facts" else _rows)(old, table, columns, read)
        _take(new, table, names, rows, read)
    return found


def _tables(new: sqlite3.Connection) -> list[str]:
    rows = new.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [name for (name,) in rows if not name.startswith("sqlite_")]


def _take(
    new: sqlite3.Connection, table: str, names: list[str], rows: Iterator[Any], read: Read
) -> None:
    columns, marks = ", ".join(names), ", ".join("?" * len(names))
    makes_sense = _TABLES.get(table, _is_anything)
    for row in rows:
        try:
            good = makes_sense(dict(zip(names, row, strict=True)))
            if good:
                new.execute(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", row)
        except (ValueError, TypeError, KeyError, AttributeError, sqlite3.Error):
            good = False
        read.rows += good
        read.whole &= good
