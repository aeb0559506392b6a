"""Named pipes as doorbells: one line wakes whoever listens. Standard library only.

A named pipe needs no short path (a socket's is limited to about 100 bytes), no port and no
reader: ringing where nobody listens is noticed and costs nothing. Where there are none (Windows),
listeners look once a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from pathlib import Path

__all__ = ["Doorbell", "listened_to", "ring"]

_CAN = hasattr(os, "mkfifo")


def ring(path: str | os.PathLike[str], line: str) -> bool:
    """Write one line to a doorbell; whether anybody listens there."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return False
    try:
        os.write(handle, line.encode() + b"\n")
    except BlockingIOError:
        return True  # the pipe is full: the listener has plenty to wake up for
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def listened_to(path: str | os.PathLike[str]) -> bool:
    """Whether anybody listens at a doorbell, without ringing it."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except (OSError, AttributeError):
        return False
    return True


class Doorbell:
    """The listening end. Closing it tells every later ``ring`` that nobody is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._keep = -1
        if not _CAN:
            return
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISFIFO(path.lstat().st_mode):
                path.unlink()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # a writer of our own keeps the pipe from reading as "ended" when the last ringer closes
        self._keep = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    def wait(self, timeout: float) -> list[str]:
        """Lines rung since the last call; waits up to ``timeout`` seconds for the first."""
        if self._read < 0:
            time.sleep(timeout)
            return []
        poller = select.poll()  # select() cannot take descriptors beyond 1023
        poller.register(self._read, select.POLLIN)
        if not poller.poll(max(0.0, timeout) * 1000):
            return []
        data = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._read, 65536):
                data += chunk
                if len(chunk) < 65536 and chunk.endswith(b"\n"):
                    break
        return data.decode(errors="replace").split("\n")[:-1]

    def fileno(self) -> int:
        """The descriptor to select on; -1 where there are no named pipes."""
        return self._read

    def close(self, *, remove: bool = False) -> None:
        """Stop listening."""
        for handle in (self._keep, self._read):
            if handle >= 0:
                with contextlib.suppress(OSError):
                    os.close(handle)
        self._keep = self._read = -1
        if remove:
            with contextlib.suppress(OSError):
                self.path.unlink()
