"""A variable of the environment that a process started with, changed later. Linux only.

What ``/proc/PID/environ`` shows is the memory that a process was given as it started. The processes
of a job are known by a variable there (``process.marked``), so one that was started before it had a
job is started with room for it.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["ROOM", "Mark"]

ROOM = 64
"""Bytes to leave for numbers that grow."""


class Mark:
    """The place of one variable in this process's first environment.

    Raises
    ------
    OSError
        It is not there.
    """

    def __init__(self, name: str) -> None:
        with open("/proc/self/environ", "rb") as file:
            text = file.read()
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        key = os.fsencode(name) + b"="
        at = 0 if text.startswith(key) else text.find(b"\0" + key) + 1
        if not text.startswith(key, at):
            raise OSError(f"{name} is not in the environment")
        at += len(key)
        self._size = text.index(b"\0", at) - at
        self._address = int(fields[47]) + at  # env_start, the 50th field; two come before the ")"
        if ctypes.string_at(self._address, self._size) != text[at : at + self._size]:
            raise OSError("the environment is not where the system says")

    def fits(self, value: str) -> bool:
        """Whether there is room for a value."""
        return len(os.fsencode(value)) <= self._size

    def set(self, value: str) -> None:
        """Have the system show this value. ``os.environ`` is not changed."""
        ctypes.memmove(self._address, os.fsencode(value).ljust(self._size, b"\0"), self._size)
