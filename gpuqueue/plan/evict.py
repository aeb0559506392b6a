"""Which running jobs have to make room for one of higher priority.

Only preemptible jobs of lower priority, as few as do, and of those the ones of lowest priority
that lose least. A job for which room is being made already, or will be by itself within
``_PATIENCE``, costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from gpuqueue.model import Job, JobState
from gpuqueue.plan.begin import begun
from gpuqueue.plan.items import Item
from gpuqueue.plan.types import Evict

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Decision
    from gpuqueue.plan.lanes import Form

__all__ = ["evictions"]

_PATIENCE = 60.0
"""Seconds that a job waits for others to end by themselves rather than have them stopped."""
_MOST = 16
"""For how many waiting jobs room is looked for in one decision."""


def evictions(decision: Decision) -> list[Evict]:
    """Whom to stop for whom, in queue order of the latter.

    What starts at this moment behind the first of them is left out of account: it is not to start.
    """
    candidates = _candidates(decision)
    if not candidates:
        return []
    lowest = min(job.request.priority for job in candidates)
    started = {job.id for job, _, _ in decision.starts}
    found: list[Evict] = []
    gone: set[int] = set()
    ahead: list[Item] = []
    stuck: dict[Form, float] = {}
    tried = 0
    for item in decision.items:
        if item.job.id in started:
            ahead.append(item)
            continue
        if item.priority <= lowest or tried == _MOST:
            break
        if item.length >= stuck.get(item.form, inf):
            ahead.append(item)
            continue
        tried += 1
        victims = _Room(decision, ahead, item, gone).victims(
            [job for job in candidates if job.request.priority < item.priority]
        )
        if victims:
            candidates = [job for job in candidates if job not in victims]
            gone |= {job.id for job in victims}
            found += [Evict(job.id, item.job.id) for job in victims]
        else:
            stuck[item.form] = item.length
        ahead.append(item)
    return found


def _candidates(decision: Decision) -> list[Job]:
    """Running jobs that may be stopped, those that are to go first in front."""
    now = decision.now

    def cost(job: Job) -> tuple[int, float, float, int]:
        ran = now - (now if job.started is None else job.started)
        every = decision.snapshot.policy.checkpoint
        lost = ran % every if every else ran
        gpus = len(job.placement.grants) if job.placement else 0
        return job.request.priority, lost * max(1, gpus), -(job.started or 0.0), job.id

    running = decision.snapshot.running
    return sorted(
        (job for job in running if job.request.preemptible and job.state is JobState.RUNNING),
        key=cost,
    )


class _Room:
    """Whether a job could start at once if some running jobs were not there."""

    def __init__(
        self, decision: Decision, ahead: Sequence[Item], item: Item, gone: set[int]
    ) -> None:
        self.decision = decision
        self.line = [*ahead, item]
        self.item = item
        self.gone = gone

    def victims(self, candidates: Sequence[Job]) -> list[Job]:
        """The jobs to stop; none where that does not help, or is not needed."""
        if not self._helps(candidates):
            return []
        if self._start(self.gone) <= self.decision.now + _PATIENCE:
            return []
        for job in candidates:
            if self._helps([job]):
                return [job]
        chosen: list[Job] = []
        for job in candidates:
            chosen.append(job)
            if self._helps(chosen):
                break
        # spare whom it can be done without, the dearest first
        for job in reversed(chosen[:-1]):
            rest = [other for other in chosen if other is not job]
            if self._helps(rest):
                chosen = rest
        return chosen

    def _helps(self, victims: Sequence[Job]) -> bool:
        return self._start(self.gone | {job.id for job in victims}) <= self.decision.now

    def _start(self, without: set[int]) -> float:
        decision = self.decision
        snapshot = decision.snapshot
        left = tuple(job for job in snapshot.running if job.id not in without)
        timeline = begun(replace(snapshot, running=left), decision.lanes, decision.now)
        return timeline.lay(self.line).starts[-1]
