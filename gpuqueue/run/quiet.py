"""Showing nothing of what modules print as they are imported once more, where that was shown."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Show nothing of what this thread prints meanwhile.

    The streams stay the objects that they are: who keeps one writes to it as ever afterwards.
    """
    me = threading.get_ident()
    muted: list[tuple[Any, Any]] = []
    for stream in (sys.stdout, sys.stderr):
        # one that was replaced by hand may not take an attribute
        with contextlib.suppress(AttributeError, TypeError):
            own = vars(stream).get("write")
            stream.write = _only_of_others(stream.write, me)  # type: ignore[method-assign]
            muted.append((stream, own))
    try:
        yield
    finally:
        for stream, own in reversed(muted):
            if own is None:
                del stream.write
            else:
                stream.write = own


def _only_of_others(write: Any, thread: int) -> Any:
    def written(text: Any) -> Any:
        return len(text) if threading.get_ident() == thread else write(text)

    return written
