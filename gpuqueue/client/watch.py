"""Waiting for something to change without asking all the time."""

from __future__ import annotations

import os
import threading
import uuid
from types import TracebackType

from gpuqueue.control.lead import spawn_headless
from gpuqueue.paths import Home
from gpuqueue.run.wake import Doorbell, listened_to

__all__ = ["Watch"]

_ABSENT = 3.0


class Watch:
    """A doorbell that the controller rings after each change; use it as a context manager.

    While somebody waits, a controller must be there: if none listens for a few seconds, one is
    started (unless ``autostart`` is off).
    """

    def __init__(self, home: Home, *, autostart: bool = True) -> None:
        self._home = home
        self._autostart = autostart and os.name == "posix"
        self._absent = 0.0
        home.watchers.mkdir(mode=0o700, exist_ok=True)
        name = f"{os.getpid()}-{threading.get_ident()}-{uuid.uuid4().hex[:8]}.bell"
        self._bell = Doorbell(home.watchers / name)

    def wait(self, timeout: float) -> None:
        """Sleep until something changed, at most ``timeout`` seconds (1 is a good most)."""
        if self._bell.wait(timeout):
            self._absent = 0.0
            return
        if not self._autostart or listened_to(self._home.wake):
            self._absent = 0.0
            return
        self._absent += max(timeout, 0.01)
        if self._absent >= _ABSENT:
            self._absent = -10.0  # give the new one time before another try
            spawn_headless(self._home)

    def close(self) -> None:
        """Stop watching."""
        self._bell.close(remove=True)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
