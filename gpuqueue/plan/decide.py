"""The decision at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import inf
from types import MappingProxyType

from gpuqueue.model import Job
from gpuqueue.plan.band import Band
from gpuqueue.plan.begin import begun, join
from gpuqueue.plan.borrow import borrowings, claim_of, claimants
from gpuqueue.plan.ends import UNKNOWN, laid_out_for
from gpuqueue.plan.evict import Rooms, avoid, dearest_first, yields
from gpuqueue.plan.explain import explain
from gpuqueue.plan.items import Item
from gpuqueue.plan.lanes import Form, Forms, Lanes
from gpuqueue.plan.queue import fairly, in_order, sift
from gpuqueue.plan.reorder import Order
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
        claims = claimants(snapshot)
        self._claims = {job.id for job in claims}
        self.queue = in_order([*ready, *claims] if claims else ready)
        if snapshot.policy.fair_share:
            self.queue = fairly(self.queue, snapshot, WHOLE_DEPTH)
        self.forms = Forms(snapshot)
        self.lanes = Lanes(snapshot)
        self.base = begun(snapshot, self.lanes, now)
        self.items: list[Item] = []
        self.behind: Sequence[Job] = ()
        self._forms_behind: Sequence[Form] = ()
        if snapshot.mode.normal:
            self._take_head()
        rules = snapshot.policy
        self.doubtful = rules.backfill and any(item.loose for item in self.items)
        self.promises: list[Promise] = []
        self.starts: list[tuple[Job, Form, int]] = []
        self.settled: list[Job] = []
        self.borrowed: list[tuple[Job, Form, int]] = []
        self._final: Timeline | None = None
        self.evictions: list[Evict] = []
        self.awaited: dict[int, float] = {}
        self._bands: list[Band] = []
        self._unsettled = False
        yielding = [
            job
            for job in snapshot.running
            if job.request.preemptible and yields(snapshot, job, now, self._widest(job))
        ]
        if yielding or any(item.job.request.preemptible for item in self.items):
            self._decide_by_band(yielding)
        elif self._lacks_promise() or self._could_start():
            if self._are_alike():
                self._take_alike()
            else:
                self._decide()
        if snapshot.mode.normal:
            self.borrowed = borrowings(self)

    def _widest(self, job: Job) -> int:
        """The most GPUs that a waiting job of higher priority asks for."""
        rank = job.request.priority
        return max((item.form.gpus for item in self.items if item.priority > rank), default=0)

    def _take_head(self) -> None:
        snapshot, lanes = self.snapshot, self.lanes
        latest, estimates = snapshot.latest, snapshot.estimates
        guards = snapshot.policy.starvation_guard
        depth = DEPTH if len(self.queue) > WHOLE_DEPTH else WHOLE_DEPTH
        forms = self.forms.each(self.queue)
        for number, (job, form) in enumerate(zip(self.queue, forms, strict=True)):
            if len(self.items) == depth:
                self.behind, self._forms_behind = self.queue[number:], forms[number:]
                break
            if self._claims and job.id in self._claims:
                self.items.append(claim_of(self, job, number))
                continue
            if form.never is not None:
                continue
            if not form.takes:
                lanes.compile(form)
            estimate = estimates.get(job.id)
            item = Item(job, form, laid_out_for(estimate, job.request), number)
            if job.id in latest:
                item.latest = latest[job.id]
            if estimate is not None:
                item.movable = item.movable and estimate.sound
                item.loose = estimate.learned
            if not guards:
                item.loose = True
            self.items.append(item)

    def _lacks_promise(self) -> bool:
        guards = self.snapshot.policy.starvation_guard
        return guards and any(item.latest == inf for item in self.items)

    def _could_start(self) -> bool:
        """Whether anything at all could start now, reservations overlooked."""
        now = self.base.free[0]
        ahead = {item.form for item in self.items}
        return bool(self._startable(ahead, now) or self._startable(set(self._forms_behind), now))

    def _startable(self, forms: Iterable[Form], free: int) -> set[Form]:
        """Those of which a job may start beside what is free, reservations overlooked."""
        lanes, found = self.lanes, set()
        for form in forms:
            if form.never is None:
                lanes.compile(form)
                if lanes.startable(form, free):
                    found.add(form)
        return found

    def _are_alike(self) -> bool:
        """Whether all that wait ask for the same for as long, and none outranks another."""
        first = self.items[0]
        form, length, priority = first.form, first.length, first.priority
        return not self.behind and all(
            item.form is form and item.length == length and item.priority == priority
            for item in self.items
        )

    def _take_alike(self) -> None:
        """Start jobs that are all alike: as many as fit, from the front.

        Where one has to wait, so have all behind it, and nothing is gained by another order. Where
        they are expected is worked out when somebody looks, as ever.
        """
        if self._lacks_promise():
            self.promises = self.whole.promise()
        strict = not self.snapshot.policy.backfill
        timeline = self.base.copy()
        for item in self.items:
            laid = timeline.lay([item], strict=strict, after=self.now)
            if laid.starts[0] > self.now:
                break
            self.starts.append((item.job, item.form, laid.marks[0]))
        self._unsettled = True
        self._finish(timeline)
        self._final = None  # nothing is reserved in it

    def _decide(self) -> None:
        band = self.whole
        self.promises = band.promise()
        band.settle()
        self.starts = [(item.job, item.form, marks) for item, marks in band.due]
        self._finish(band.timeline)

    def _decide_by_band(self, yielding: Sequence[Job]) -> None:
        """Lay out the jobs of each priority as if those were not there that yield to them."""
        snapshot, now = self.snapshot, self.now
        ranks = {job.request.priority for job in yielding}
        ranks |= {i.job.request.priority for i in self.items if i.job.request.preemptible}
        rooms = Rooms(self)
        timeline: Timeline | None = None
        after = now
        hidden = yielding
        for _, group in groupby(self.items, lambda i: sum(rank < i.priority for rank in ranks)):
            items = list(group)
            there = [job for job in hidden if job.request.priority >= items[0].priority]
            hidden = [job for job in hidden if job.request.priority < items[0].priority]
            if timeline is None:
                timeline = begun(snapshot, self.lanes, now, {job.id for job in hidden})
            else:
                kept = [job for job in there if job.id not in rooms.gone]
                join(timeline, snapshot, dearest_first(snapshot, kept, now), now)
            avoid(snapshot, self.lanes, hidden, now)
            band = Band(self, items, timeline.copy(), after)
            self._bands.append(band)
            self.promises += band.promise()
            band.settle()
            for item, marks in band.due:
                if rooms.enter(item, marks):
                    self.starts.append((item.job, item.form, marks))
            timeline = band.timeline.copy()
            if not snapshot.policy.backfill:
                after = max([after, *(at for at in band.laid_in_order.starts if at < inf)])
        self.evictions, self.awaited = rooms.stops, rooms.awaited
        avoid(snapshot, self.lanes, (), now)
        if timeline is None:
            timeline = self.base.copy()
        else:
            kept = [job for job in hidden if job.id not in rooms.gone]
            join(timeline, snapshot, dearest_first(snapshot, kept, now), now)
        self._finish(timeline)

    def _finish(self, timeline: Timeline) -> None:
        if self.behind and self.snapshot.policy.backfill:
            self._fill(timeline)
        self._final = timeline
        if self._claims:
            self.settled = [job for job, _, _ in self.starts if job.id in self._claims]
            self.starts = [each for each in self.starts if each[0].id not in self._claims]
        starting = {job.id for job, _, _ in self.starts}
        self.promises = [each for each in self.promises if each.job not in starting]

    @cached_property
    def whole(self) -> Band:
        """All items as one band, where nobody yields to anybody."""
        band = Band(self, self.items, self.base, self.now)
        self._bands.append(band)
        return band

    @property
    def reserved(self) -> Timeline:
        """The machine with all that runs, starts now and is reserved."""
        if self._final is not None:
            return self._final
        bands = self.bands
        return bands[-1].timeline if bands else self.whole.timeline

    @property
    def bands(self) -> Sequence[Band]:
        """The bands that were decided on, the one of the highest priority first."""
        if self._unsettled:
            self._unsettled = False
            self.whole.settle()
        return self._bands

    @cached_property
    def order(self) -> Order:
        """The items in the order that was decided on, and where it puts them."""
        bands = self.bands or [self.whole]
        if len(bands) == 1:
            return bands[0].order
        laid = Laid(
            bands[-1].order.laid.timeline,
            [at for band in bands for at in band.order.laid.starts],
            [marks for band in bands for marks in band.order.laid.marks],
        )
        return Order([item for band in bands for item in band.order.items], laid)

    @property
    def laid(self) -> Laid:
        """The items laid out as decided; the order is ``items`` of the decision's ``order``."""
        return self.order.laid

    @property
    def unreserved(self) -> set[int]:
        """Ids of the jobs without a reservation, as their run times are too doubtful."""
        return {id_ for band in self.bands for id_ in band.unreserved}

    @cached_property
    def expected(self) -> dict[int, float]:
        """Expected starts by id, of the jobs that have a reservation."""
        horizon = self.now + UNKNOWN
        return {
            item.job.id: self.awaited.get(item.job.id, start)
            for item, start in zip(self.order.items, self.laid.starts, strict=True)
            if start < horizon
        }

    def _fill(self, timeline: Timeline) -> None:
        """Start jobs from behind those with a reservation where they touch none."""
        live = self._startable(set(self._forms_behind), timeline.free[0])
        if not live:
            return
        estimates = self.snapshot.estimates
        stuck: dict[Form, float] = {}
        for number, form in enumerate(self._forms_behind, len(self.queue) - len(self.behind)):
            if form not in live:
                continue
            job = self.queue[number]
            if job.id in self._claims:
                continue  # it runs
            item = Item(job, form, laid_out_for(estimates.get(job.id), job.request), number)
            if item.length >= stuck.get(form, inf):
                continue
            marks = timeline.take_now(item)
            if marks is None:
                stuck[form] = item.length
                continue
            self.starts.append((job, form, marks))
            live = self._startable(live, timeline.free[0])
            if not live:
                break


@dataclass(frozen=True)
class Plan:
    """What to do now, and why the rest waits.

    Attributes
    ----------
    starts
        Jobs to start, in queue order, each with its placement; behind them those that borrow.
    drops
        Jobs whose parents failed, were cancelled or are gone, in queue order.
    promises
        Latest starts that are given now, to be kept for the plans to come.
    evictions
        Running jobs to stop and put back, so that others of higher priority can start.
    settled
        Running jobs whose compute was lent to them and is their own from now on.
    snapshot, now
        What it was decided on; ``now`` in seconds since the epoch.
    """

    starts: tuple[Start, ...]
    drops: tuple[Drop, ...]
    promises: tuple[Promise, ...]
    evictions: tuple[Evict, ...]
    settled: tuple[int, ...]
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
    the promises (``gpuqueue.plan.reorder``), and preemptible jobs make room
    (``gpuqueue.plan.evict``).
    A job that waits for its parents, or that this machine can never run, holds nothing up.
    While the GPUs are not the queue's (``Snapshot.mode``), nothing starts and nothing is promised.
    """
    decision = Decision(snapshot, now)
    starts = tuple(
        Start(job.id, decision.lanes.placement(form, marks)) for job, form, marks in decision.starts
    )
    starts += tuple(
        Start(job.id, decision.lanes.placement(form, marks), borrows=True)
        for job, form, marks in decision.borrowed
    )
    drops, promises = tuple(decision.drops), tuple(decision.promises)
    stops = tuple(decision.evictions)
    settled = tuple(job.id for job in decision.settled)
    return Plan(starts, drops, promises, stops, settled, snapshot, now, decision)
