"""The decision at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from types import MappingProxyType

from gpuqueue.model import Job
from gpuqueue.plan.begin import begun
from gpuqueue.plan.doubt import eased
from gpuqueue.plan.ends import UNKNOWN, length_of
from gpuqueue.plan.evict import evictions
from gpuqueue.plan.explain import explain
from gpuqueue.plan.items import Item
from gpuqueue.plan.lanes import Form, Forms, Lanes
from gpuqueue.plan.queue import fairly, in_order, sift
from gpuqueue.plan.reorder import Order, reordered
from gpuqueue.plan.timeline import Laid, Timeline
from gpuqueue.plan.types import Drop, Evict, Promise, Snapshot, Start, Wait

__all__ = ["DEPTH", "Decision", "Plan", "plan"]

DEPTH = 500
"""How many waiting jobs from the front of the queue have a reservation, at the least."""
WHOLE_DEPTH = 1500
"""Up to this length the whole queue has: a promise can only be given where it is laid out."""


class Decision:
    """Everything that a plan was made of; what explains it looks here."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot = snapshot
        self.now = now
        self.drops, ready, self.bound = sift(snapshot)
        self.queue = in_order(ready)
        if snapshot.policy.fair_share:
            self.queue = fairly(self.queue, snapshot, WHOLE_DEPTH)
        self.forms = Forms(snapshot)
        self.lanes = Lanes(snapshot)
        self.base = begun(snapshot, self.lanes, now)
        self.items: list[Item] = []
        self.behind: Sequence[Job] = ()
        self._take_head()
        self.promises: list[Promise] = []
        self.order: Order | None = None
        self.starts: list[tuple[Job, Form, int]] = []
        self.unreserved: set[int] = set()
        self.doubtful = snapshot.policy.backfill and any(item.loose for item in self.items)
        if self._lacks_promise() or self._could_start():
            self._decide()

    def _take_head(self) -> None:
        snapshot, forms, lanes = self.snapshot, self.forms, self.lanes
        latest, estimates = snapshot.latest, snapshot.estimates
        depth = DEPTH if len(self.queue) > WHOLE_DEPTH else WHOLE_DEPTH
        for number, job in enumerate(self.queue):
            if len(self.items) == depth:
                self.behind = self.queue[number:]
                break
            form = forms.of(job)
            if form.never is not None:
                continue
            lanes.compile(form)
            item = Item(job, form, length_of(snapshot, job), number)
            item.latest = latest.get(job.id, inf)
            estimate = estimates.get(job.id)
            if estimate is not None:
                item.movable = item.movable and estimate.sound
                item.loose = estimate.learned
            self.items.append(item)

    def _lacks_promise(self) -> bool:
        return any(item.latest == inf for item in self.items)

    def _could_start(self) -> bool:
        """Whether anything at all could start now, reservations overlooked."""
        now, lanes = self.base.free[0], self.lanes
        seen: dict[Form, bool] = {}
        for item in self.items:
            form = item.form
            if form not in seen:
                seen[form] = lanes.startable(form, now)
                if seen[form]:
                    return True
        if not self.behind or not lanes.some_room(now):
            return False
        for job in self.behind:
            form = self.forms.of(job)
            if form not in seen:
                lanes.compile(form)
                seen[form] = form.never is None and lanes.startable(form, now)
                if seen[form]:
                    return True
        return False

    def _decide(self) -> None:
        laid = self.laid_in_order
        self._promise(laid)
        self.order = reordered(self, laid)
        if self.doubtful:
            self.order, reserved = eased(self, self.order)
            timeline = reserved.timeline
        else:
            self._start_those_due(self.order)
            timeline = self.order.laid.timeline
        if self.behind and self.snapshot.policy.backfill:
            self._fill(timeline)
        starting = {job.id for job, _, _ in self.starts}
        self.promises = [each for each in self.promises if each.job not in starting]

    def _start_those_due(self, order: Order) -> None:
        laid = order.laid
        found = []
        for item, start, marks in zip(order.items, laid.starts, laid.marks, strict=True):
            if start <= self.now:
                found.append((item.order, item.job, item.form, marks))
        found.sort(key=lambda each: each[0])
        self.starts = [each[1:] for each in found]

    def withhold(self, job_id: int) -> None:
        """Start nobody behind this job, for which room is being made."""
        places = {item.job.id: item.order for item in self.items}
        first = places[job_id]
        self.starts = [each for each in self.starts if places.get(each[0].id, inf) < first]

    @cached_property
    def laid_in_order(self) -> Laid:
        """The items laid out in the queue's own order."""
        return self.base.copy().lay(self.items, strict=not self.snapshot.policy.backfill)

    @cached_property
    def laid(self) -> Laid:
        """The items laid out as decided; the order is ``items`` of the decision's ``order``."""
        if self.order is None:
            self.order = Order(self.items, self.laid_in_order)
        return self.order.laid

    @cached_property
    def expected(self) -> dict[int, float]:
        """Expected starts by id, of the jobs that have a reservation."""
        laid = self.laid
        assert self.order is not None
        horizon = self.now + UNKNOWN
        return {
            item.job.id: start
            for item, start in zip(self.order.items, laid.starts, strict=True)
            if start < horizon
        }

    def _promise(self, laid: Laid) -> None:
        slack = self.snapshot.policy.reorder_slack
        for item, start in zip(self.items, laid.starts, strict=True):
            if item.latest == inf and start < self.now + UNKNOWN:
                length = 0.0 if item.length >= UNKNOWN else item.length
                item.latest = start + max(slack, length / 2) if slack else start
                self.promises.append(Promise(item.job.id, start, item.latest))

    def _fill(self, timeline: Timeline) -> None:
        """Start jobs from behind those with a reservation where they touch none."""
        lanes, forms = self.lanes, self.forms
        stuck: dict[Form, float] = {}
        for number, job in enumerate(self.behind, len(self.queue) - len(self.behind)):
            form = forms.of(job)
            shortest = stuck.get(form)
            if shortest == 0:
                continue
            if shortest is None:
                if form.never is None:
                    lanes.compile(form)
                if form.never is not None or not lanes.startable(form, timeline.free[0]):
                    stuck[form] = 0
                    continue
                shortest = inf
            item = Item(job, form, length_of(self.snapshot, job), number)
            if item.length >= shortest:
                continue
            marks = timeline.take_now(item)
            if marks is None:
                stuck[form] = min(shortest, item.length)
            else:
                self.starts.append((job, form, marks))
                stuck = {f: s for f, s in stuck.items() if s < inf}
                if not lanes.some_room(timeline.free[0]):
                    break


@dataclass(frozen=True)
class Plan:
    """What to do now, and why the rest waits.

    Attributes
    ----------
    starts
        Jobs to start, in queue order, each with its placement.
    drops
        Jobs whose parents failed, were cancelled or are gone, in queue order.
    promises
        Latest starts that are given now, to be kept for the plans to come.
    evictions
        Running jobs to stop and put back, so that others of higher priority can start.
    snapshot, now
        What it was decided on; ``now`` in seconds since the epoch.
    """

    starts: tuple[Start, ...]
    drops: tuple[Drop, ...]
    promises: tuple[Promise, ...]
    evictions: tuple[Evict, ...]
    snapshot: Snapshot = field(repr=False, compare=False)
    now: float = field(repr=False, compare=False)
    decision: Decision = field(repr=False, compare=False)

    @cached_property
    def waits(self) -> Mapping[int, Wait]:
        """By job id, in queue order: every waiting job that is not dropped.

        Those that start now are among them, with reason ``STARTING``. Worked out on first use,
        since the controller plans far more often than anybody looks.
        """
        return MappingProxyType(explain(self.decision))

    @cached_property
    def expected(self) -> Mapping[int, float]:
        """Expected starts by job id, of the jobs that have a reservation."""
        return MappingProxyType(self.decision.expected)

    def wait(self, job_id: int) -> Wait | None:
        """Why one job waits; None where it is dropped or was not waiting."""
        return self.waits.get(job_id)


def plan(snapshot: Snapshot, now: float) -> Plan:
    """Decide what to start and what to drop; ``now`` in seconds since the epoch.

    Jobs are taken by ``Job.order``. Each of the first ``DEPTH`` has a reservation, and no job
    behind it may touch that (``gpuqueue.plan.timeline``); short work goes ahead of long work within
    the promises (``gpuqueue.plan.reorder``). A job that waits for its parents, or that this machine
    can never run, holds nothing up.
    """
    decision = Decision(snapshot, now)
    stops = tuple(evictions(decision))
    if stops:
        decision.withhold(stops[0].for_job)
    starts = tuple(
        Start(job.id, decision.lanes.placement(form, marks)) for job, form, marks in decision.starts
    )
    drops, promises = tuple(decision.drops), tuple(decision.promises)
    return Plan(starts, drops, promises, stops, snapshot, now, decision)
