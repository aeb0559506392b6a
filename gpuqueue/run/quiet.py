"""Showing nothing of what modules print as they are imported once more, where that was shown."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

__all__ = ["quiet"]

_changing = threading.Lock()
_muted: dict[int, _Muted] = {}
"""The streams that do not show all at this moment, by the number of the object."""


class _Muted:
    """A stream that shows nothing of some threads.

    Raises
    ------
    AttributeError, TypeError
        It is one that was replaced by hand and takes no attribute.
    """

    def __init__(self, stream: Any) -> None:
        self.threads: Counter[int] = Counter()
        self._stream = stream
        self._own = vars(stream).get("write")
        self._show = stream.write
        stream.write = self._write

    def _write(self, text: Any) -> Any:
        return len(text) if self.threads[threading.get_ident()] else self._show(text)

    def end(self) -> None:
        """Show all again, unless somebody has put something of his own there meanwhile."""
        if vars(self._stream).get("write") != self._write:
            return
        if self._own is None:
            del self._stream.write
        else:
            self._stream.write = self._own


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Show nothing of what this thread prints meanwhile.

    The streams stay the objects that they are: who keeps one writes to it as ever afterwards.
    Several threads may do so at once, and end in any order.
    """
    me = threading.get_ident()
    numbers: list[int] = []
    with _changing:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, TypeError):
                if id(stream) not in _muted:
                    _muted[id(stream)] = _Muted(stream)
                _muted[id(stream)].threads[me] += 1
                numbers.append(id(stream))
    try:
        yield
    finally:
        with _changing:
            for number in numbers:
                muted = _muted[number]
                muted.threads[me] -= 1
                if not +muted.threads:
                    del _muted[number]
                    muted.end()
