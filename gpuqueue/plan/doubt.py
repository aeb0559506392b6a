"""Reservations where run times are only learned: for the first in line and for told run times.

A plan that reserves for everybody on estimates that are far too long keeps the machine idle for
work that would not have been in the way. EASY backfill (Lifka 1995), which reserves for the first
in line alone, loses least by them. Who tells a run time keeps a reservation all the same.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from gpuqueue.plan.reorder import Order
from gpuqueue.plan.timeline import Laid

if TYPE_CHECKING:
    from gpuqueue.plan.band import Band

__all__ = ["eased"]


def eased(band: Band, order: Order) -> tuple[Order, Laid]:
    """Start what touches none of the fewer reservations, beside what was moved ahead.

    Returns the order with all that starts now in front of it, and what is reserved. Where the
    others are expected is worked out when somebody looks.
    """
    items = order.items
    # without the guard not even the first in line holds anything back
    after = 0.0 if band.snapshot.policy.starvation_guard else inf
    reserved = band.base.copy().lay(items, eased=True, after=after)
    begun = [
        (item, marks)
        for item, start, marks in zip(items, reserved.starts, reserved.marks, strict=True)
        if start <= band.now
    ]
    begun.sort(key=lambda each: each[0].order)
    first = {item.job.id for item, _ in begun}
    waiting = sorted(
        (item for item in items if item.job.id not in first), key=lambda item: item.order
    )
    band.unreserved = {
        item.job.id
        for item, start in zip(items, reserved.starts, strict=True)
        if start == inf and item.loose
    }

    def lay() -> Laid:
        timeline = band.base.copy()
        for item, marks in begun:
            timeline.book(item, band.now, marks)
        laid = timeline.lay(waiting)
        laid.starts[:0] = [band.now] * len(begun)
        laid.marks[:0] = [marks for _, marks in begun]
        return laid

    band.due = begun
    return Order([*(item for item, _ in begun), *waiting], lay), reserved
