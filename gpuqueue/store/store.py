"""The store: jobs, events, intents, placements and facts, in one SQLite file.

Everything that outlives a process is here or in a job's directory. Writers hold the lock for one
short transaction at a time; readers never wait (write-ahead log).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuqueue.errors import (
    NoSpace,
    StateDamaged,
    StateDirectoryError,
    StateLocked,
    StateRebuilt,
    UnknownJob,
)
from gpuqueue.model import (
    TERMINAL,
    Event,
    Grant,
    Intent,
    IntentKind,
    Job,
    JobKind,
    JobState,
    Mode,
    Origin,
    Placement,
    Request,
)
from gpuqueue.store.codec import COLUMNS, dump, job_from, load, mode_from, plain
from gpuqueue.store.rescue import file_of, opening, rescue, see_if_empty, verify, why_damaged
from gpuqueue.store.schema import migrate

__all__ = ["LIVE", "Draft", "Store"]

_inherited: list[Any] = []  # of a parent process: kept, because closing it would disturb it

LIVE = ("queued", "starting", "running", "frozen", "evicting")
flush_file = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
_PATIENCE = 60.0
_TRY = 0.25
_GAP = 1000
_LOG_PAGES = 4000
_MODE = "mode"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

log = logging.getLogger("gpuqueue")


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


class Store:
    """One connection to the state database; safe to use from several threads.

    Parameters
    ----------
    path
        The database file; it is created when missing.
    durable
        Commits reach the disk before they return (a submit must survive a power cut). The
        controller does without, and flushes once for all jobs that ended in a turn.
    patience
        Seconds to wait for somebody else's lock before giving up.
    on_wait
        Called with a sentence when a lock makes a write wait for more than a moment, and when the
        database was damaged and has been made anew.
    """

    def __init__(
        self,
        path: Path,
        *,
        durable: bool = True,
        patience: float = _PATIENCE,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self._name = str(path)
        self.patience = patience
        self.on_wait = on_wait
        self._durable = durable
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._flushing = threading.Lock()
        self._log = -1
        self._file: tuple[int, int] | None = None
        self._rebuilt = False
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        """Open the database; one that is damaged is made anew first (``rescue.py``)."""
        for _ in range(3):
            try:
                with opening(self.path, self.patience):
                    if why := why_damaged(self.path):
                        raise StateDamaged(why)
                    connection = self._connect()
                    self._file = file_of(self._name)
                    return connection
            except StateDamaged as error:
                self._rescue(error)
        raise StateDirectoryError(f"{self.path} is damaged, and could not be made anew")

    def _rescue(self, error: StateDamaged, *, sure: bool = False) -> None:
        try:
            words = rescue(self.path, str(error), self.patience, sure=sure)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                words = f"{self.path} is damaged, and its disk has no room to make it anew"
                raise NoSpace(errno.ENOSPC, words) from problem
            words = f"{self.path} is damaged and cannot be made anew: {problem}"
            raise StateDirectoryError(words) from problem
        if words:
            (self.on_wait or log.warning)(words)

    def _reopen(self) -> None:
        """Leave a file that is no longer the database."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._rebuilt = True
        self._connection = self._open()

    def _keep_up(self) -> None:
        """See that the file is still the one that was opened."""
        if file_of(self._name) != self._file:
            self._reopen()

    def verify(self) -> None:
        """Look through the database for damage that nobody has met yet, and mend it."""
        with self._lock:
            try:
                verify(self._connection, self.path)
            except (StateDamaged, sqlite3.DatabaseError) as error:
                if not isinstance(error, StateDamaged) and not _is_damage(error):
                    raise self._explain(error) from error
                self._rescue(StateDamaged(str(error)))
                self._reopen()
                self._rebuilt = False

    def mend(self, why: str) -> None:
        """Make the database anew, although it can be read: it does not fit what else there is."""
        with self._lock:
            self._rescue(StateDamaged(why), sure=True)
            self._reopen()
            self._rebuilt = False

    def _connect(self) -> sqlite3.Connection:
        with contextlib.suppress(OSError):  # SQLite says what is wrong
            # Private before its log is made, which takes the mode over. One that is there is not
            # opened: closing it would drop this process's locks on it (section 2.2 of
            # https://www.sqlite.org/howtocorrupt.html).
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            connection = sqlite3.connect(
                self.path, timeout=_TRY, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA busy_timeout = 250")
            connection.execute("PRAGMA secure_delete = FAST")  # specs hold the environment
            self._patiently(lambda: self._prepare(connection))
            # where the log can be flushed by itself, see flush
            mode = "NORMAL" if os.name == "posix" or not self._durable else "FULL"
            connection.execute(f"PRAGMA synchronous = {mode}")
            # moving the log into the database file takes a while: the controller's part
            pages = _LOG_PAGES * (4 if self._durable else 1)
            connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        except sqlite3.OperationalError as error:
            raise self._explain(error) from error
        except sqlite3.DatabaseError as error:
            raise StateDamaged(str(error)) from error
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StateDirectoryError(
                f"{self.path}: this file system does not allow SQLite's write-ahead log "
                f"(it answered {mode!r}). Set GPUQUEUE_HOME to a directory on a local disk."
            )
        see_if_empty(connection, self.path)
        migrate(connection, self.path)

    def check_version(self) -> None:
        """See that the schema is still this program's own.

        Raises
        ------
        StateVersionError
            A newer gpuqueue has migrated it meanwhile.
        StateRebuilt
            It was damaged and somebody has made it anew.
        """
        self._keep_up()
        if self._rebuilt:
            raise _rebuilt(self.path)
        self._patiently(lambda: migrate(self._connection, self.path))

    def _after_fork(self) -> None:
        """Leave the parent's connection and locks to it; SQLite allows neither here."""
        if os.getpid() != self._pid:
            _inherited.append((self._connection, self._lock))
            self._pid, self._lock, self._log = os.getpid(), threading.RLock(), -1
            self._flushing = threading.Lock()
            self._connection = self._open()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()
            if self._log >= 0:
                os.close(self._log)
                self._log = -1

    # -- how statements are run -------------------------------------------------------------

    def _explain(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", None) or 0
        if _is_damage(error):
            return StateDamaged(str(error))
        if code & 0xFF == sqlite3.SQLITE_FULL:
            return NoSpace(
                errno.ENOSPC,
                f"no space left on the disk of {self.path}; nothing was queued. Free some space "
                "and submit again, or set GPUQUEUE_HOME to another disk.",
            )
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StateLocked(
                f"another program has held the state database {self.path} locked for "
                f"{self.patience:.0f} s. Find it with `fuser '{self.path}'`, or set GPUQUEUE_HOME "
                "to another directory."
            )
        return StateDirectoryError(f"the state database {self.path} cannot be used: {error}")

    def _patiently(self, action: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + self.patience
        told = False
        while True:
            try:
                return action()
            except sqlite3.DatabaseError as error:
                busy = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in (
                    sqlite3.SQLITE_BUSY,
                    sqlite3.SQLITE_LOCKED,
                )
                if not busy or time.monotonic() >= deadline:
                    raise self._explain(error) from error
                if not told and self.on_wait is not None:
                    told = True
                    self.on_wait(f"waiting for the state database {self.path}, locked elsewhere")

    @contextlib.contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[sqlite3.Connection]:
        """One write transaction: all of it or nothing. Without ``flush`` that is the caller's.

        Raises
        ------
        StateLocked, NoSpace, StateRebuilt, StateDirectoryError
            The database could not be written.
        """
        self._after_fork()
        with self._lock:
            self._begin()
            connection = self._connection
            try:
                yield connection
                connection.execute("COMMIT")
                if flush and self._durable and os.name == "posix":
                    self.flush()
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                if _is_damage(error):
                    self._rescue(StateDamaged(str(error)))
                    self._reopen()
                    raise _rebuilt(self.path) from error
                if isinstance(error, sqlite3.Error):
                    raise self._explain(error) from error
                raise
            if file_of(self._name) != self._file:  # it was set aside as this was written
                self._reopen()
                raise _rebuilt(self.path)

    def _begin(self) -> None:
        """Begin to write; on what was read from a database that is gone, nothing is written."""
        self._keep_up()
        if self._rebuilt and not self._durable:
            raise _rebuilt(self.path)
        try:
            self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
        except StateDamaged as error:
            self._rescue(error)
            self._reopen()
            raise _rebuilt(self.path) from error

    def flush(self) -> None:
        """Put what was committed, by whomever, onto the disk.

        SQLite would do it within the commit (``synchronous = FULL``), holding the write lock
        meanwhile; a burst of submits then keeps the controller out. The log is flushed before any
        part of it moves into the database file, so one flush of the log is enough. No lock of
        SQLite's is on this file (they are on the shared-memory file), so opening it loses none.
        """
        path = f"{self.path}-wal"
        with self._flushing, contextlib.suppress(FileNotFoundError):
            # one that is not there has moved into the database file, flushed
            if self._log < 0 or os.fstat(self._log).st_ino != os.stat(path).st_ino:
                if self._log >= 0:
                    os.close(self._log)
                self._log = os.open(path, os.O_RDONLY)
            flush_file(self._log)

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            found: list[tuple[Any, ...]] = self._connection.execute(sql, values).fetchall()
            return found

        self._after_fork()
        with self._lock:
            self._keep_up()
            for sure in (False, True):
                try:
                    return self._patiently(read)  # type: ignore[no-any-return]
                except StateDamaged as error:
                    self._rescue(error, sure=sure)
                    self._reopen()
            return self._patiently(read)  # type: ignore[no-any-return]

    # -- what clients write -----------------------------------------------------------------

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

    # -- what the controller writes ---------------------------------------------------------

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

    def occupy(self, db: sqlite3.Connection, job: Job, placement: Placement, at: float) -> None:
        """Open the usage records of an attempt, within the caller's transaction."""
        db.executemany(
            "INSERT INTO placements (job, attempt, gpu, compute, memory, whole, slots, since) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (job.id, job.attempt, g.gpu, g.compute, g.memory, g.whole, placement.slots, at)
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

    def finish_intent(
        self, db: sqlite3.Connection, intent: Intent, at: float, error: str = ""
    ) -> None:
        """Mark an intent as carried out or refused, within the caller's transaction."""
        db.execute("UPDATE intents SET done = ?, error = ? WHERE id = ?", (at, error, intent.id))

    def set_mode(self, db: sqlite3.Connection, mode: Mode, at: float, data: Any) -> None:
        """Keep who has the GPUs and record it as an event, within the caller's transaction."""
        self._put_fact(db, _MODE, plain(mode))
        told = {"name": mode.name, "by": mode.by, "soft": mode.soft, "program": mode.program}
        self.record(db, at, None, "mode", told | data)

    def keep_mode(self, mode: Mode) -> None:
        """Keep who has the GPUs, without an event."""
        self.set_fact(_MODE, plain(mode))

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

    # -- what everybody reads ---------------------------------------------------------------

    def fact(self, name: str) -> Any:
        """The value under a name; None if there is none."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", (name,))
        return load(rows[0][0]) if rows else None

    def mode(self) -> Mode:
        """Who has the GPUs: the queue unless somebody has taken them."""
        return mode_from(self.fact(_MODE))

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

    def usage(self, since: float) -> list[tuple[str, str, int, int, float, float | None]]:
        """Who held what of which GPU after ``since``: owner, GPU, compute, memory, from, until.

        ``until`` is None for those that still hold it.
        """
        return self._rows(
            "SELECT jobs.owner, gpu, compute, memory, since, until FROM placements "
            "JOIN jobs ON jobs.id = placements.job WHERE until IS NULL OR until > ?",
            (since,),
        )

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

    def held(self, job_id: int, attempt: int) -> Placement | None:
        """What an attempt holds by its usage records; None if there are none."""
        rows = self._rows(
            "SELECT gpu, compute, memory, whole, slots FROM placements "
            "WHERE job = ? AND attempt = ? AND until IS NULL",
            (job_id, attempt),
        )
        grants = tuple(Grant(gpu, c, m, bool(whole)) for gpu, c, m, whole, _ in rows)
        return Placement(grants, rows[0][4]) if rows else None

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        return dict(self._rows("SELECT state, count(*) FROM jobs GROUP BY state"))

    def live_counts(self) -> dict[str, int]:
        """How many jobs there are in each state that has not ended."""
        marks = ", ".join(f"'{state}'" for state in LIVE)
        sql = f"SELECT state, count(*) FROM jobs WHERE state IN ({marks}) GROUP BY state"
        return dict(self._rows(sql))

    def last_event(self) -> int:
        """Number of the newest event."""
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])

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


def _is_damage(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None) or 0
    return isinstance(error, sqlite3.DatabaseError) and code & 0xFF in _DAMAGED


def _rebuilt(path: Path) -> StateRebuilt:
    return StateRebuilt(
        f"the state database {path} was damaged and has been made anew meanwhile; nothing was "
        "done. Look with `jupyter gpuqueue status`, and ask again."
    )


def _intent_from(row: tuple[Any, ...]) -> Intent:
    number, kind, job, value, *rest = row
    known = kind if kind in set(IntentKind) else IntentKind.UNKNOWN
    return Intent(number, IntentKind(known), job, load(value), *rest)
