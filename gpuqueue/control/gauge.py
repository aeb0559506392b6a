"""Reading the GPUs beside the controller's loop: a driver that hangs must not stop the queue."""

from __future__ import annotations

import threading
import time

from gpuqueue.gpus import Devices
from gpuqueue.model import Reading

__all__ = ["Gauge"]

_STUCK = 10.0


class Gauge:
    """Asks the devices on a thread of its own, and keeps the last answer."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._wanted = threading.Event()
        self._closed = False
        self._asked_at = 0.0
        self._answer: tuple[Reading, ...] = ()
        self._thread = threading.Thread(target=self._read, name="gpuqueue-gauge", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            self._wanted.wait()
            if self._closed:
                break
            self._wanted.clear()
            try:
                self._answer = self.devices.read()
            finally:
                self._asked_at = 0.0
        self.devices.close()

    def ask(self) -> tuple[Reading, ...]:
        """Start a new reading unless one is under way; return the last one that came back."""
        if not self._asked_at:
            self._asked_at = time.monotonic()
            self._wanted.set()
        return self._answer

    def first(self, timeout: float = 2.0) -> tuple[Reading, ...]:
        """A reading made now, if the driver answers in time."""
        self.ask()
        deadline = time.monotonic() + timeout
        while self._asked_at and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._answer

    @property
    def problem(self) -> str:
        """What is amiss with the GPUs, in a sentence; empty when all is well."""
        if self._asked_at and time.monotonic() - self._asked_at > _STUCK:
            waited = time.monotonic() - self._asked_at
            return f"the GPU driver has not answered for {waited:.0f} s; what is shown is older"
        return self.devices.problem

    def close(self) -> None:
        """Stop reading. A reading that hangs is left behind."""
        self._closed = True
        self._wanted.set()
