"""Tells everybody who watches that something changed, once it is on the disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from gpuqueue.paths import Home
from gpuqueue.run.wake import ring

__all__ = ["Herald"]

log = logging.getLogger("gpuqueue")

_FORGOTTEN = 60.0
"""Seconds after which a doorbell that nobody listens to is taken away."""


class Herald:
    """A thread that waits for the disk, so that the controller need not.

    Parameters
    ----------
    flush
        Puts what was committed onto the disk.
    on_change
        Called after each change that was told; None for nobody.
    """

    def __init__(
        self, home: Home, flush: Callable[[], None], on_change: Callable[[], None] | None = None
    ) -> None:
        self._home = home
        self._flush = flush
        self._on_change = on_change
        self._wanted = threading.Condition()
        self._news = self._lasting = self._over = False
        self._thread = threading.Thread(target=self._run, name="gpuqueue-herald", daemon=True)
        self._thread.start()

    def tell(self, *, lasting: bool) -> None:
        """Something changed; if ``lasting``, nobody hears of it before it is on the disk."""
        with self._wanted:
            self._news = True
            self._lasting |= lasting
            self._wanted.notify()

    def keep(self) -> None:
        """Put what was committed onto the disk soon; there is nothing to tell."""
        with self._wanted:
            self._lasting = True
            self._wanted.notify()

    def close(self) -> None:
        """Tell what there is to tell, and end."""
        with self._wanted:
            self._over = True
            self._wanted.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._news or self._lasting or self._over)
                news, lasting, over = self._news, self._lasting, self._over
                self._news = self._lasting = False
            if lasting:
                try:
                    self._flush()
                except OSError as error:
                    log.warning("gpuqueue: what changed could not be flushed: %s", error)
            if news:
                self._ring()
            if over:
                return

    def _ring(self) -> None:
        try:
            names = [entry for entry in self._home.watchers.iterdir() if entry.suffix == ".bell"]
        except OSError:
            names = []
        for name in names:
            if not ring(name, "change"):
                try:
                    if time.time() - name.stat().st_mtime > _FORGOTTEN:
                        name.unlink()
                except OSError:
                    continue
        if self._on_change is not None:
            self._on_change()
