"""Where and when waiting and running jobs are expected to hold GPUs, for a picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from gpuqueue.plan.ends import UNKNOWN, expected_end, run_time

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Plan

__all__ = ["Booking", "ends_of", "forecast"]


@dataclass(frozen=True, slots=True)
class Booking:
    """A waiting job's expected stay on its GPUs.

    ``start`` and ``end`` in seconds since the epoch; ``end`` is None where its run time is
    unknown. ``gpus`` are UUIDs, none for work on the CPU.
    """

    job: int
    start: float
    end: float | None
    gpus: tuple[str, ...]


def forecast(plan: Plan, limit: int) -> list[Booking]:
    """The first ``limit`` waiting jobs with a foreseeable start, in the order of their starts."""
    decision, horizon = plan.decision, plan.now + UNKNOWN
    found: list[Booking] = []
    order = decision.order
    lent = {job.id: marks for job, _, marks in decision.borrowed}
    for item, start, marks in zip(order.items, order.laid.starts, order.laid.marks, strict=True):
        if item.job.borrows:
            continue  # it runs, and waits for compute of its own
        if item.job.id in lent:
            start, marks = plan.now, lent[item.job.id]  # noqa: PLW2901
        at = decision.awaited.get(item.job.id, start)
        if at >= horizon:
            continue
        gpus = tuple(lane.card.gpu.uuid for lane in decision.lanes.chosen(marks))
        seconds = run_time(plan.snapshot, item.job)
        found.append(Booking(item.job.id, at, None if seconds is None else at + seconds, gpus))
    found.sort(key=lambda booking: (booking.start, booking.job))
    return found[:limit]


def ends_of(plan: Plan) -> dict[int, float]:
    """When running jobs are expected to end, in seconds since the epoch, where that is known."""
    found = {}
    for job in plan.snapshot.running:
        end, _ = expected_end(plan.snapshot, job, plan.now)
        if end < min(inf, plan.now + UNKNOWN):
            found[job.id] = end
    return found
