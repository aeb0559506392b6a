"""Work that goes deeper than a thread's stack usually allows.

Pickling follows references, so that a long chain of objects (the nodes of a computation, a linked
list) needs as deep a stack as the chain is long.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["has_room", "with_room"]

T = TypeVar("T")

_STACK = 512 << 20
"""Bytes; the system gives out only what is touched."""
_DEPTH = 100_000
"""Calls. In CPython 3.11 one takes at most 5 kB of stack here."""

_here = threading.local()


def has_room() -> bool:
    """Whether ``with_room`` has already given this thread more."""
    return getattr(_here, "room", False)


def with_room(work: Callable[[], T]) -> T:
    """Do something; if the stack does not suffice, again from the start with much more of it.

    Raises
    ------
    RecursionError
        It goes deeper even than that.
    """
    try:
        return work()
    except RecursionError:
        pass
    done: list[T] = []
    failed: list[BaseException] = []

    def again() -> None:
        _here.room = True
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it belongs
            failed.append(error)

    before, limit = threading.stack_size(), sys.getrecursionlimit()
    thread = threading.Thread(target=again, name="gpuqueue deep")
    sys.setrecursionlimit(max(limit, _DEPTH))
    try:
        threading.stack_size(_STACK)
        thread.start()
        threading.stack_size(before)
        thread.join()
    finally:
        threading.stack_size(before)
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(limit)
    if failed:
        raise failed[0]
    return done[0]
