"""Where a notebook's kernel asks for its share at its first use of a GPU. Standard library only.

Whoever started the kernel listens at an abstract socket, which needs no file and goes with its
process. The kernel asks from Python, or as CUDA begins in it or in a process that it has started
(``share/memcap/src/late.c``, which has the format of the answer). Both ends see that the other is
the same user.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuqueue.errors import GpuqueueError, NoShare

__all__ = ["LATE", "Asked", "Changes", "Door", "ask", "doors_work", "take_on"]

log = logging.getLogger("gpuqueue")

LATE = "GPUQUEUE_LATE"
"""The variable that tells the library where to ask."""

Changes = Mapping[str, str | None]
"""Variables to set, and with None to remove."""

_LONGEST = 1 << 16
"""Bytes of a question."""
_ASKING = 2.0
"""Seconds in which a question must have come."""
_FULL = 0.2
"""Seconds until another question is taken where none could be, as with too many files open."""
_GONE = "whoever started this kernel no longer answers; restart the kernel"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: which process asks, whether CUDA begins in it, and what it wishes, if it says."""

    pid: int
    cuda: bool
    wish: Any = None


def doors_work() -> bool:
    """Whether there are such sockets here."""
    return sys.platform.startswith("linux")


class Door:
    """The answering end, in a thread of its own.

    Parameters
    ----------
    answer
        What a process is to take on. It is called for one question at a time, and raises
        ``GpuqueueError`` to refuse; whatever else it raises is logged, and refuses as well.
    seconds
        How long who asks waits for it.
    """

    def __init__(self, answer: Callable[[Asked], Changes], seconds: float) -> None:
        self._answer = answer
        self._told: tuple[int, str] = (0, "")
        self._closed = False
        name = f"gpuqueue-{secrets.token_hex(16)}"
        self.name = f"{max(1, round(seconds))}:{name}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{name}")
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="gpuqueue-door", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more; who asks is told at once."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                # while nobody listens, who asks would wait for as long as he is patient
                time.sleep(_FULL)
                continue
            with asker, contextlib.suppress(OSError):
                asker.settimeout(_ASKING)
                self._talk(asker)

    def _talk(self, asker: socket.socket) -> None:
        pid, user = _peer(asker)
        if user != os.geteuid():
            return
        asked = _asked(pid, _line(asker))
        if asked is None:
            return
        try:
            reply = _encoded(self._answer(asked))
        except GpuqueueError as error:
            reply = self._refusal(asked, str(error))
        except Exception as error:  # the next question is to be heard, whatever has failed
            log.exception("gpuqueue: a kernel's share of a GPU could not be got")
            words = (
                f"This kernel's share of a GPU could not be got: {type(error).__name__}: {error}"
            )
            reply = self._refusal(asked, words)
        asker.sendall(reply)

    def _refusal(self, asked: Asked, sentence: str) -> bytes:
        if asked.cuda:
            self._tell(asked.pid, sentence)
        return b"0" + sentence.encode(errors="replace")

    def _tell(self, pid: int, sentence: str) -> None:
        """Show it where the process writes its errors: in a kernel, in the cell. Once."""
        if (pid, sentence) == self._told:
            return
        self._told = pid, sentence
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            handle = os.open(f"/proc/{pid}/fd/2", flags)
            try:
                os.write(handle, f"gpuqueue: no GPU for this notebook: {sentence}\n".encode())
            finally:
                os.close(handle)


def ask(door: str, wish: Any = None) -> dict[str, str | None]:
    """Ask for this process's share at a door by its name; bounded.

    Raises
    ------
    NoShare
        It is refused, or nobody answers.
    """
    seconds, _, name = door.partition(":")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
            there.settimeout(float(seconds))
            there.connect(f"\0{name}")
            if _peer(there)[1] != os.geteuid():
                raise NoShare(_GONE)
            there.sendall(json.dumps({"wish": wish}).encode() + b"\n")
            reply = _all(there)
    except (OSError, ValueError) as error:
        raise NoShare(_GONE) from error
    if reply[:1] == b"0":
        raise NoShare(reply[1:].decode(errors="replace"))
    if reply[:1] != b"1" or not reply.endswith(b"\0\0"):
        raise NoShare(_GONE)
    pairs = (os.fsdecode(entry).partition("=") for entry in reply[1:].split(b"\0") if entry)
    return {name: value if is_set else None for name, is_set, value in pairs}


def take_on(changes: Changes) -> None:
    """Make the changes in this process's environment."""
    for name, value in changes.items():
        if value is not None:
            os.environ[name] = value
        elif name in os.environ:
            del os.environ[name]


def _encoded(changes: Changes) -> bytes:
    entries = (name if value is None else f"{name}={value}" for name, value in changes.items())
    return b"1" + b"".join(os.fsencode(entry) + b"\0" for entry in entries) + b"\0"


def _peer(other: socket.socket) -> tuple[int, int]:
    """The pid and the user of the other end."""
    if sys.platform != "linux":
        raise OSError("there is no way to know who is there")
    found = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, user, _ = struct.unpack("3i", found)
    return pid, user


def _asked(pid: int, line: bytes) -> Asked | None:
    if line == b"cuda":
        return Asked(pid, cuda=True)
    try:
        return Asked(pid, cuda=False, wish=json.loads(line)["wish"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _line(asker: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n") and len(text) < _LONGEST:
        more = asker.recv(_LONGEST)
        if not more:
            break
        text += more
    return text.rstrip(b"\n")


def _all(there: socket.socket) -> bytes:
    parts = []
    while more := there.recv(_LONGEST):
        parts.append(more)
    return b"".join(parts)
