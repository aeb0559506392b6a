"""The controller's clock, and what becomes of live jobs' times when somebody sets it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpuqueue.model import Job, Mode
from gpuqueue.run.process import boot_id, since_boot

__all__ = ["CLOCK", "Clock", "mode_moved", "moved"]

CLOCK = "clock"
"""Name of the fact: by how much the wall clock is ahead of the time since boot, and which boot."""
_LEAST = 2.0
"""Seconds. What is less was not set but slewed, and adds up until it is more."""


@dataclass(slots=True)
class Clock:
    """Wall time, and how far it has been set since the last look.

    ``steady`` counts seconds since boot, suspension included, and cannot be set.
    """

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = since_boot
    _ahead: float | None = None

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.wall()

    def set_by(self) -> float:
        """Seconds by which the clock has been set since the last call; 0 if it has not."""
        ahead = self.wall() - self.steady()
        if self._ahead is None:
            self._ahead = ahead
        moved_by = ahead - self._ahead
        if abs(moved_by) < _LEAST:
            return 0.0
        self._ahead = ahead
        return moved_by

    def go_on(self, fact: dict[str, Any] | None) -> None:
        """Start from what the last lead knew, if it was of this boot."""
        if fact and fact["boot"] == boot_id():
            self._ahead = fact["ahead"]

    def as_fact(self) -> dict[str, Any]:
        """JSON form, for the next lead."""
        return {"ahead": self._ahead, "boot": boot_id()}


def moved(job: Job, by: float) -> Job:
    """A live job whose times are told by the clock as it is set now."""

    def at(value: float | None) -> float | None:
        return None if value is None else value + by

    return replace(
        job, submitted=job.submitted + by, started=at(job.started), expected=at(job.expected),
        latest=at(job.latest), frozen_at=at(job.frozen_at),
    )  # fmt: skip


def mode_moved(mode: Mode, by: float) -> Mode:
    """Who has the GPUs, since when by the clock as it is set now."""
    return mode if mode.since is None else replace(mode, since=mode.since + by)
