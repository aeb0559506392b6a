"""A job's log on disk, bounded: a flood or a full disk costs output, never the job.

Standard library only. The beginning is kept up to the limit; of what comes after, the last part
is kept in memory and written at the end, with a note of how much is missing between.
"""

from __future__ import annotations

import contextlib
import os
import time

__all__ = ["LogFile"]

_TAIL = 64 * 1024
_NOTE = 2048
_CHECK = 1 << 20
_RESERVE = 64 << 20


class LogFile:
    """The writing end of one log.

    Attributes
    ----------
    dropped
        Bytes that were not kept.
    behind
        Whether output waits in memory for room on the disk.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.limit = limit
        self.dropped = 0
        self._size = 0
        self._unchecked = 0
        self._tail = b""
        self._gap = 0
        self._full_since = 0.0
        self._check = 0
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def fileno(self) -> int:
        """The descriptor of the file."""
        return self._file

    @property
    def behind(self) -> bool:
        """Whether output waits in memory for room on the disk."""
        return bool(self._full_since and self._tail)

    def _room(self) -> bool:
        """Whether the disk has more free than what is reserved for state and exit records."""
        try:
            stat = os.fstatvfs(self._file)
        except OSError:
            return True
        reserve = min(_RESERVE, stat.f_blocks * stat.f_frsize // 5)
        self._check = min(_CHECK, reserve // 16)
        return stat.f_bavail * stat.f_frsize > reserve

    def write(self, data: bytes) -> None:
        """Append output, or keep it back where there is no room for it."""
        self._unchecked += len(data)
        if self._full_since or self._tail or self._gap or self._size + len(data) > self.limit:
            self._keep_back(data)
            return
        if self._unchecked >= self._check:
            self._unchecked = 0
            if not self._room():
                self._full_since = time.monotonic()
                self._keep_back(data)
                return
        try:
            written = os.write(self._file, data)
        except OSError:
            self._full_since = time.monotonic()
            self._keep_back(data)
            return
        self._size += written
        if written < len(data):
            self.write(data[written:])

    def _keep_back(self, data: bytes) -> None:
        self._tail += data
        if len(self._tail) > 2 * _TAIL:
            self._drop(len(self._tail) - _TAIL)

    def _drop(self, amount: int) -> None:
        self._tail = self._tail[amount:]
        self._gap += amount
        self.dropped += amount

    def settle(self) -> None:
        """Once a second after the disk was full, see whether it has room again."""
        if self._full_since and time.monotonic() - self._full_since > 1:
            if self._room():
                self._full_since = 0.0
                self._flush("the disk was full")
            else:
                self._full_since = time.monotonic()

    def _flush(self, why: str) -> None:
        most = _TAIL if self._room() else _NOTE
        if len(self._tail) > most:
            self._drop(len(self._tail) - most)
        tail, gap = self._tail, self._gap
        self._tail, self._gap = b"", 0
        note = b""
        if gap:
            note = f"\n[gpuqueue: {gap} bytes of output are not kept here: {why}]\n".encode()
        with contextlib.suppress(OSError):
            os.write(self._file, note + tail)

    def finish(self) -> None:
        """Write what was kept back, with a note of what is missing."""
        if self._tail or self._gap:
            why = "the disk was full" if self._full_since else "the log has reached its limit"
            self._flush(why)

    def close(self) -> None:
        """Write what was kept back, and let go of the file."""
        self.finish()
        with contextlib.suppress(OSError):
            os.close(self._file)
