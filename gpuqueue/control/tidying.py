"""Notebooks' kernels that idle while the person has the GPUs are to hold as little as possible.

Nothing is lost and nothing is stopped. A kernel is asked to empty the caches of its libraries,
which it does between cells; then its GPU memory is moved to the host, where that was seen to work.
From then on its calls of CUDA wait until the memory is back; all else in it goes on.
"""

from __future__ import annotations

import time
from math import inf

from gpuqueue.control.parking import Parking
from gpuqueue.control.turn import Turn
from gpuqueue.model import Job, ProcessId
from gpuqueue.paths import Home
from gpuqueue.run.kernelshare import ask_to_tidy

__all__ = ["Idlers"]

_Key = tuple[int, ProcessId]

_TIDYING = 0.5
"""Seconds that a kernel has to empty its caches: what it empties need not be copied."""


class Idlers:
    """What it remembers is only whom it has asked and moved since the GPUs were taken."""

    def __init__(self, home: Home, parking: Parking) -> None:
        self._home = home
        self._parking = parking
        self._since: dict[_Key, float] = {}
        self._settled: set[_Key] = set()

    def forget(self) -> None:
        """The queue has the GPUs again."""
        self._since.clear()
        self._settled.clear()

    def see_to(self, turn: Turn, job: Job) -> bool:
        """Go a step further with an idle kernel; whether it may still let go of something."""
        if job.process is None:
            return False
        key = (job.id, job.process)
        if key in self._settled:
            return False
        now = time.monotonic()
        if key not in self._since:
            hears = ask_to_tidy(self._home.attempt(job.id, job.attempt))
            self._since[key] = now if hears else -inf
        if now - self._since[key] < _TIDYING:
            return True
        words = self._parking.move(job)
        if words is None:
            return True
        self._settled.add(key)
        if self._parking.is_out(job):
            turn.move(job, "parked", reason=words.removeprefix("; "))
        return False
