"""Preemptible jobs, and which of them have to make room.

Those of higher priority are laid out as if the jobs that yield to them were not there, so that they
start when they would without them. Only for what is to start at this moment are jobs stopped: on
the GPUs that it was given, which are those where least is lost, as few as do, and of those the ones
of lowest priority that lose least. Nobody is stopped where room is being made already, or comes by
itself before stopping them is worth it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING

from gpuqueue.model import Job, JobState, Placement
from gpuqueue.plan.ends import end_of
from gpuqueue.plan.items import Item
from gpuqueue.plan.lanes import Lanes
from gpuqueue.plan.types import Evict, Snapshot

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Decision

__all__ = ["SPARED", "STOPS", "Rooms", "avoid", "dearest_first", "yields"]

STOPS = 6
"""How many times a job may have been started to be stopped for another; then it is left to end.

Without this a long job that saves nothing might never end on a busy machine. Where work is saved
(``Policy.checkpoint``, ``Snapshot.saves``) it gets on all the same, and neither this nor
``SPARED`` counts.
"""
SPARED = 43_200.0
"""GPU seconds of lost work, for each GPU asked for, from which on a job is left to end."""
_PATIENCE = 60.0
"""Seconds that a job waits for others to end by themselves rather than have them stopped."""
_WORTH = 0.2
"""Seconds that it waits for them for each GPU second that would be lost on each of its GPUs."""
_LONGEST = 1800.0
"""Seconds that it waits for them at the longest."""

_NOWHERE = Placement()
_Parts = list[tuple[int, int, int]]


def yields(snapshot: Snapshot, job: Job, now: float, gpus: int) -> bool:
    """Whether a running job makes room for one of higher priority that asks for so many GPUs."""
    if not job.request.preemptible:
        return False
    goes = job.state is JobState.RUNNING or _is_paused(job)
    saves = snapshot.policy.checkpoint or job.id in snapshot.saves
    if job.state is JobState.EVICTING or saves:
        return job.state is JobState.EVICTING or goes
    if not goes or job.attempt > STOPS:
        return False
    return _loss(snapshot, job, now) < SPARED * max(1, gpus)


def _is_paused(job: Job) -> bool:
    """Whether it stands still while a notebook computes, and so can be woken to step aside."""
    return job.borrows and job.state is JobState.FROZEN and job.asked == "pause"


def _loss(snapshot: Snapshot, job: Job, now: float) -> float:
    """GPU seconds that are lost if a job is stopped now."""
    if job.state is JobState.EVICTING or job.id in snapshot.saves:
        return 0.0
    ran = job.ran(now)
    every = snapshot.policy.checkpoint
    lost = ran % every if every else ran
    return lost * max(1, len(job.placement.grants) if job.placement else 0)


def dearest_first(snapshot: Snapshot, jobs: Iterable[Job], now: float) -> list[Job]:
    """Jobs in the order in which they are spared."""

    def cost(job: Job) -> tuple[int, float, float, int]:
        return job.request.priority, _loss(snapshot, job, now), -(job.started or 0.0), job.id

    return sorted(jobs, key=cost, reverse=True)


def avoid(snapshot: Snapshot, lanes: Lanes, jobs: Iterable[Job], now: float) -> None:
    """Have the GPUs chosen last on which these jobs would lose most."""
    dear: dict[int, tuple[bool, float, float]] = {}
    for job in jobs:
        firm = not yields(snapshot, job, now, 1)
        for grant in job.placement.grants if job.placement else ():
            lane = lanes.by_uuid.get(grant.gpu)
            if lane is not None:
                spared, rank, loss = dear.get(lane.number, (False, -inf, 0.0))
                rank = max(rank, job.request.priority)
                dear[lane.number] = spared or firm, rank, loss + _loss(snapshot, job, now)
    ranks = {cost: number for number, cost in enumerate(sorted(set(dear.values())), 1)}
    barred = min((number for cost, number in ranks.items() if cost[0]), default=inf)
    lanes.prefer({number: ranks[cost] for number, cost in dear.items()}, barred)


class Rooms:
    """Who of those that are due can start at once, and who is stopped for the others.

    Attributes
    ----------
    stops
        Whom to stop for whom.
    gone
        Ids of those that are to stop, or have been asked to.
    awaited
        Of those that wait for room that comes by itself: when that is, by id.
    """

    def __init__(self, decision: Decision) -> None:
        self.snapshot = decision.snapshot
        self.lanes = decision.lanes
        self.now = decision.now
        self.stops: list[Evict] = []
        self.awaited: dict[int, float] = {}
        self.gone = {job.id for job in self.snapshot.running if job.state is JobState.EVICTING}
        self.taken: _Parts = []
        self.begun: _Parts = []
        self._candidates = [
            job
            for job in reversed(dearest_first(self.snapshot, self.snapshot.running, self.now))
            if (job.state is JobState.RUNNING or _is_paused(job)) and job.request.preemptible
        ]

    def enter(self, item: Item, marks: int) -> bool:
        """Take in one that is due on these GPUs, in queue order; whether it starts now."""
        free = self.lanes.clamped(self._level(()), self.begun)
        parts = self.lanes.parts(item.form, marks)
        starts = self._fits(item, marks, free)
        if starts:
            self.begun += parts
        elif not self._fits(item, marks, self._left(())):
            victims = self._victims(item, marks)
            if not self._better_waits(item, victims):
                self.gone |= {job.id for job in victims}
                self.stops += [Evict(job.id, item.job.id) for job in victims]
        self.taken += parts
        return starts

    def _level(self, without: Collection[int]) -> int:
        """What is free if some of the running jobs were not there."""
        lanes = self.lanes
        held = [
            part
            for job in self.snapshot.running
            if job.id not in without
            for part in lanes.held(job)
        ]
        return lanes.clamped(lanes.full | lanes.guards, held)

    def _left(self, victims: Iterable[Job]) -> int:
        """What is left once those are gone who are asked to, and these, for one more."""
        gone = self.gone | {job.id for job in victims}
        return self.lanes.clamped(self._level(gone), self.taken)

    def _fits(self, item: Item, marks: int, free: int) -> bool:
        if not (free - item.form.test) & self.lanes.slot_guard:
            return False
        return self.lanes.fits(item.form, free, first=False) & marks == marks

    def _better_waits(self, item: Item, victims: Iterable[Job]) -> bool:
        """Whether there will be room for it, somewhere, before stopping these is worth it."""
        lost = sum(_loss(self.snapshot, job, self.now) for job in victims)
        worth = max(_PATIENCE, min(_LONGEST, _WORTH * lost / max(1, item.form.gpus)))
        limit = min(self.now + worth, max(item.latest, self.now + _PATIENCE))
        ending = sorted(
            (end, job.id, job)
            for job in self.snapshot.running
            if self.now < (end := end_of(self.snapshot, job, self.now)) <= limit
        )
        for number, (end, _, _) in enumerate(ending, 1):
            left = self._left([job for _, _, job in ending[:number]])
            if self.lanes.startable(item.form, left):
                self.awaited[item.job.id] = end
                return True
        return False

    def _victims(self, item: Item, marks: int) -> list[Job]:
        """The jobs to stop; none where that does not help."""
        there = {lane.card.gpu.uuid for lane in self.lanes.chosen(marks)}
        short = not (self._left(()) - item.form.test) & self.lanes.slot_guard
        candidates = [
            job
            for job in self._candidates
            if job.request.priority < item.priority
            and yields(self.snapshot, job, self.now, item.form.gpus)
            and job.id not in self.gone
            and (short or any(uuid in there for uuid in (job.placement or _NOWHERE).gpus))
        ]

        def helps(victims: Sequence[Job]) -> bool:
            return self._fits(item, marks, self._left(victims))

        if not helps(candidates):
            return []
        for job in candidates:
            if helps([job]):
                return [job]
        chosen: list[Job] = []
        for job in candidates:
            chosen.append(job)
            if helps(chosen):
                break
        # spare whom it can be done without, the dearest first
        for job in reversed(chosen[:-1]):
            rest = [other for other in chosen if other is not job]
            if helps(rest):
                chosen = rest
        return chosen
