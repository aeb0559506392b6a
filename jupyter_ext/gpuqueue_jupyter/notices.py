"""Small notices about every change, for the server's event stream.

A notice says that something changed, not what it is now: whoever gets one asks for the state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from gpuqueue.errors import GpuqueueError
from gpuqueue.model import Event
from gpuqueue.paths import Home
from gpuqueue.run.wake import Doorbell, ring
from gpuqueue.store import Store

__all__ = ["MOST", "Notices", "notices_of"]

log = logging.getLogger("gpuqueue")

MOST = 20
"""More changes than this at once are told as one notice."""
_PAUSE = 0.1
_LOOK = 1.0


def notices_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What is told about events: one notice each or, where there are many, one for all."""
    if len(events) > MOST:
        last = events[-1]
        return [{"seq": last.seq, "job": None, "kind": "many", "state": None, "count": len(events)}]
    return [
        {
            "seq": event.seq,
            "job": event.job,
            "kind": event.kind,
            "state": event.data.get("state", "queued" if event.kind == "submitted" else None),
            "count": 1,
        }
        for event in events
    ]


class Notices(threading.Thread):
    """Watches the store and calls ``emit`` in the event loop, at most ten times a second."""

    def __init__(
        self,
        home: Home,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        emit: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        super().__init__(name="gpuqueue-notices", daemon=True)
        home.watchers.mkdir(mode=0o700, exist_ok=True)
        # the controller rings every bell in that folder after each change
        self._bell = Doorbell(home.watchers / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.bell")
        self._store = store
        self._loop = loop
        self._emit = emit
        self._stopping = threading.Event()
        self._seen = store.last_event()

    def ask_to_stop(self) -> None:
        """End soon."""
        self._stopping.set()
        ring(self._bell.path, "stop")

    def run(self) -> None:
        """Watch until asked to stop."""
        try:
            self._watch()
        finally:
            self._bell.close(remove=True)

    def _watch(self) -> None:
        trouble = ""
        while not self._stopping.is_set():
            self._bell.wait(_LOOK)
            if self._stopping.is_set():
                return
            try:
                events = self._store.events(self._seen)
                trouble = ""
            except GpuqueueError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("gpuqueue: %s", trouble)
                self._stopping.wait(_LOOK)
                continue
            if events:
                self._seen = events[-1].seq
                try:
                    self._loop.call_soon_threadsafe(self._emit, notices_of(events))
                except RuntimeError:
                    return  # the loop has ended
                self._stopping.wait(_PAUSE)
