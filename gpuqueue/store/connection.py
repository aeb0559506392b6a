"""A connection to the database: opening, writing in one transaction, flushing, reading.

Writers hold the lock for one short transaction at a time; readers never wait (write-ahead log).
One that meets damage has the database made anew (``rescue.py``) and goes on with that.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuqueue.errors import NoSpace, StateDamaged, StateDirectoryError, StateLocked, StateRebuilt
from gpuqueue.store.rescue import file_of, opening, rescue, see_if_empty, verify, why_damaged
from gpuqueue.store.schema import migrate

__all__ = ["Connection"]

_inherited: list[Any] = []  # of a parent process: kept, because closing it would disturb it

flush_file = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
_PATIENCE = 60.0
_TRY = 0.25
_LOG_PAGES = 4000
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

log = logging.getLogger("gpuqueue")


class Connection:
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


def _is_damage(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None) or 0
    return isinstance(error, sqlite3.DatabaseError) and code & 0xFF in _DAMAGED


def _rebuilt(path: Path) -> StateRebuilt:
    return StateRebuilt(
        f"the state database {path} was damaged and has been made anew meanwhile; nothing was "
        "done. Look with `jupyter gpuqueue status`, and ask again."
    )
