"""The lead's sight of the machine: when its GPUs are read, and the fact that tells of them."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from gpuqueue.control.gauge import Gauge
from gpuqueue.control.machine import FACT, Machine, seen_on
from gpuqueue.gpus import Devices
from gpuqueue.model import Job, JobState, Mode, Reading
from gpuqueue.settings import SettingsFile
from gpuqueue.store import Store

__all__ = ["TICK", "Sight"]

TICK = 1.0
"""Seconds between looks at the world when nothing rings."""
_READ_IDLE = 5.0


class Sight:
    """The machine as it was seen last; ``machine`` is another one after each look."""

    def __init__(self, store: Store, settings: SettingsFile) -> None:
        self._store = store
        self._settings = settings
        self._last_read = self._last_told = 0.0
        self._published: dict[str, Any] = {}
        self.machine = Machine()
        self._measure(())

    @property
    def devices(self) -> Devices:
        """The GPUs and how a job is told of its own."""
        return self._gauge.devices

    def look(self, jobs: Collection[Job], mode: Mode, *, changed: bool) -> bool:
        """Read the GPUs if it is due; whether anything changed for the plan.

        ``changed`` says that something else has: then the fact is told without delay.
        """
        if self._settings.current.fake_gpus != self._gauge.fake:
            self._gauge.close()
            self._measure(jobs)
        now = time.monotonic()
        waiting = any(job.state is JobState.QUEUED for job in jobs)
        # of those that hold GPUs, the most that they use is to be seen
        held = any(job.placement and job.placement.grants for job in jobs)
        watched = self._settings.current.auto_free or not mode.normal
        if now - self._last_read >= (TICK if waiting or held or watched else _READ_IDLE):
            self._last_read = now
            seen = self._seen(self._gauge.ask(), jobs)
            was = self.machine
            changed |= (seen.gpus, seen.outside, seen.silent) != (was.gpus, was.outside, was.silent)
            self.machine = seen
        if changed or now - self._last_told >= (TICK if waiting else _READ_IDLE):
            self._publish(now)
        return changed

    def close(self) -> None:
        """Let go of the GPUs."""
        self._gauge.close()

    def _measure(self, jobs: Collection[Job]) -> None:
        """Find the machine's GPUs, with a first look at who is on them."""
        self._gauge = Gauge(self._settings.current.fake_gpus)
        self.machine = self._seen(self._gauge.first(), jobs)
        self._last_read = 0.0

    def _seen(self, readings: tuple[Reading, ...], jobs: Collection[Job]) -> Machine:
        gauge = self._gauge
        gpus = gauge.devices.gpus()
        return seen_on(gpus, readings, jobs, gauge.problem, silent=gauge.silent)

    def _publish(self, now: float) -> None:
        self._last_told = now
        fact = self.machine.as_fact() | {"warning": self._settings.warning}
        if fact != self._published:
            self._store.set_fact(FACT, fact)
            self._published = fact
