"""Waiting jobs of alike priority, laid out on what those of higher priority have left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from gpuqueue.plan.doubt import eased
from gpuqueue.plan.ends import UNKNOWN
from gpuqueue.plan.items import Item
from gpuqueue.plan.reorder import Order, reordered
from gpuqueue.plan.timeline import Laid, Timeline
from gpuqueue.plan.types import Promise

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Decision

__all__ = ["Band"]

_LOOSE = 1.5
"""Where run times are learned: how many times the slack a start may slip."""
_UNSURE = 1 / 3
"""The same, of what it is expected to wait; the larger of both counts."""


class Band:
    """Jobs for which the same running jobs may be stopped.

    Attributes
    ----------
    base
        The machine without the jobs that yield to these, and with all that is reserved for those of
        higher priority.
    due
        What is laid out to start now, in queue order, with its GPUs.
    timeline
        ``base`` with what is reserved for these, once ``settle`` was called.
    unreserved
        Ids of the jobs that have no reservation, as their run times are too doubtful.
    """

    def __init__(
        self, decision: Decision, items: Sequence[Item], base: Timeline, after: float
    ) -> None:
        self.snapshot = decision.snapshot
        self.now = decision.now
        self.lanes = decision.lanes
        self.doubtful = decision.doubtful
        self.items = items
        self.base = base
        self.due: list[tuple[Item, int]] = []
        self.unreserved: set[int] = set()
        self._after = after
        self._settled: Order | None = None
        self._reserved: Timeline | None = None

    @cached_property
    def laid_in_order(self) -> Laid:
        """The items laid out in the queue's own order."""
        strict = not self.snapshot.policy.backfill
        return self.base.copy().lay(self.items, strict=strict, after=self._after)

    @property
    def order(self) -> Order:
        """The order that was decided on; the queue's own where nothing was."""
        if self._settled is None:
            self._settled = Order(self.items, self.laid_in_order)
        return self._settled

    @property
    def timeline(self) -> Timeline:
        """``base`` with all that is reserved."""
        return self.order.laid.timeline if self._reserved is None else self._reserved

    def promise(self) -> list[Promise]:
        """Give those a latest start who have none."""
        if not self.snapshot.policy.starvation_guard:
            return []
        slack = self.snapshot.policy.reorder_slack
        given = []
        for item, start in zip(self.items, self.laid_in_order.starts, strict=True):
            if item.latest == inf and start < self.now + UNKNOWN:
                item.latest = start + self._leeway(item, start) if slack else start
                given.append(Promise(item.job.id, start, item.latest))
        return given

    def _leeway(self, item: Item, start: float) -> float:
        """Seconds by which a job that is expected at ``start`` may be later than that."""
        length = 0.0 if item.length >= UNKNOWN else item.length
        leeway = max(self.snapshot.policy.reorder_slack, length / 2)
        # what learned run times foretell is off by more, the further ahead it is
        return max(leeway * _LOOSE, (start - self.now) * _UNSURE) if self.doubtful else leeway

    def settle(self) -> None:
        """Decide on the order, and so on what is due now."""
        order = reordered(self, self.laid_in_order)
        if self.doubtful:
            order, reserved = eased(self, order)
            self._reserved = reserved.timeline
        else:
            laid = order.laid
            self.due = [
                (item, marks)
                for item, start, marks in zip(order.items, laid.starts, laid.marks, strict=True)
                if start <= self.now
            ]
            self.due.sort(key=lambda each: each[0].order)
        self._settled = order
