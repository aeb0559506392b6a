"""Work for threads of its own, with what people wait for ahead of what only looks."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

__all__ = ["Errands", "Lines"]

log = logging.getLogger("gpuqueue")


@dataclass(slots=True)
class Errands:
    """Two lines of work, done one piece at a time in a thread called ``name``.

    What is ``put`` is done in that order. A look waits until there is nothing else, and a newer one
    with the same key takes its place: a call that takes its time would otherwise gather looks
    faster than they can be done, and nothing after them would be done at all.
    """

    name: str
    _urgent: deque[Callable[[], None]] = field(default_factory=deque)
    _looks: dict[Hashable, Callable[[], None]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _closed: bool = False

    @property
    def begun(self) -> bool:
        """Whether there is a thread that does the work."""
        return self._thread is not None

    def begin(self) -> None:
        """Start the thread, unless there is one; what was given before waits for it."""
        if self._thread is None:
            self._closed = False
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Have something done after all that was put before."""
        with self._changed:
            self._urgent.append(work)
            self._changed.notify()

    def look(self, key: Hashable, work: Callable[[], None]) -> None:
        """Have something looked at when there is nothing else to do."""
        with self._changed:
            self._looks[key] = work
            self._changed.notify()

    def hasten(self, key: Hashable) -> None:
        """Look, if that is still to be done, before what is put next: it will change that."""
        with self._changed:
            if (work := self._looks.pop(key, None)) is not None:
                self._urgent.append(work)

    def drop(self, key: Hashable) -> None:
        """Look no more: what was to be seen is over."""
        with self._changed:
            self._looks.pop(key, None)

    def stop(self) -> None:
        """Have the thread end after what was put, and without what was only to be looked at."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self, patience: float) -> None:
        """The same, and wait for that so many seconds."""
        self.stop()
        if self._thread is not None:
            self._thread.join(patience)
            self._thread = None

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while True:
                if self._urgent:
                    return self._urgent.popleft()
                if self._closed:
                    return None
                if self._looks:
                    return self._looks.pop(next(iter(self._looks)))
                self._changed.wait()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                log.exception("gpuqueue: what holds jobs to their shares has failed")


class Lines:
    """One line of errands for each GPU, so that what hangs on one keeps nothing waiting elsewhere.

    A line and its thread are there from the first use of its key on.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[Hashable, Errands] = {}

    def at(self, key: Hashable) -> Errands:
        """The line of a key."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Errands(f"{self._name}-{len(self._lines)}")
        line.begin()
        return line

    def close(self, patience: float) -> None:
        """End all of them, as `Errands.close` does, within so many seconds."""
        deadline = time.monotonic() + patience
        for line in self._lines.values():
            line.stop()
        for line in self._lines.values():
            line.close(max(0.0, deadline - time.monotonic()))
