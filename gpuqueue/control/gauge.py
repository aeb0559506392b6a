"""Finding and reading the GPUs beside the controller's loop.

A driver may hang when it is asked; the queue must not.
"""

from __future__ import annotations

import logging
import threading
import time

from gpuqueue.errors import InvalidRequest
from gpuqueue.gpus import Devices, NoDevices, detect
from gpuqueue.model import Reading

__all__ = ["Gauge"]

log = logging.getLogger("gpuqueue")

_STUCK = 10.0
_LOOK_AGAIN = 60.0


class Gauge:
    """Asks the driver on a thread of its own, and keeps the last answer.

    Where there are no GPUs, or something is amiss with them, it looks for them again once a
    minute: a driver may be loaded later.

    Parameters
    ----------
    fake
        The setting ``fake_gpus``.

    Attributes
    ----------
    devices
        What was found last.
    """

    def __init__(self, fake: str) -> None:
        self.fake = fake
        self.devices: Devices = NoDevices("still looking for GPUs")
        self._looked = -_LOOK_AGAIN
        self._wanted = threading.Event()
        self._closed = False
        self._asked_at = 0.0
        self._answer: tuple[Reading, ...] = ()
        threading.Thread(target=self._work, name="gpuqueue-gauge", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            if self._closed:
                break
            self._wanted.clear()
            try:
                self._look()
                self._answer = self.devices.read()
            except Exception as error:
                log.exception("gpuqueue: the GPUs could not be read")
                self.devices = NoDevices(f"the GPUs could not be read: {error}")
            finally:
                self._asked_at = 0.0
        self.devices.close()

    def _look(self) -> None:
        known = self.devices.gpus() and not self.devices.problem
        if known or time.monotonic() - self._looked < _LOOK_AGAIN:
            return
        self._looked = time.monotonic()
        before = self.devices
        try:
            self.devices = detect(self.fake)
        except InvalidRequest as error:
            self.devices = NoDevices(str(error))
        before.close()

    def ask(self) -> tuple[Reading, ...]:
        """Start a new reading unless one is under way; return the last one that came back."""
        if not self._asked_at:
            self._asked_at = time.monotonic()
            self._wanted.set()
        return self._answer

    def first(self, timeout: float = 5.0) -> tuple[Reading, ...]:
        """A reading made now, if the driver answers in time."""
        self.ask()
        deadline = time.monotonic() + timeout
        while self._asked_at and time.monotonic() < deadline:
            time.sleep(0.002)
        return self._answer

    @property
    def silent(self) -> bool:
        """Whether the driver has not answered for a while."""
        asked = self._asked_at  # the other thread may set it to 0 in between
        return bool(asked) and time.monotonic() - asked > _STUCK

    @property
    def problem(self) -> str:
        """What is amiss with the GPUs, in a sentence; empty when all is well."""
        if self.silent:
            return "the GPU driver does not answer; no job starts on its GPUs until it does"
        return self.devices.problem

    def close(self) -> None:
        """Stop reading. A reading that hangs is left behind."""
        self._closed = True
        self._wanted.set()
