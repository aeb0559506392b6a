"""The queue: who is in it, in what order, and who is free to start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby, islice
from operator import attrgetter, lt

from gpuqueue.model import TERMINAL, WHOLE, Job, JobState, Preset
from gpuqueue.plan.types import Drop, Snapshot

__all__ = ["fairly", "in_order", "sift"]

_BY_ARRIVAL = attrgetter("position", "id")
_BY_PRIORITY = attrgetter("request.priority")


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Sort jobs by ``Job.order``."""
    queue = list(jobs)
    places = [job.position for job in queue]
    if not all(map(lt, places, islice(places, 1, None))):
        queue.sort(key=_BY_ARRIVAL)
    # two stable sorts on C-level keys take half the time of one on the property
    if len({job.request.priority for job in queue}) > 1:
        queue.sort(key=_BY_PRIORITY, reverse=True)
    return queue


_UNTOLD = 3600.0
"""Seconds that a job of unknown run time is taken to use of its GPUs, for whose turn it is."""


def fairly(queue: Sequence[Job], snapshot: Snapshot, most: int) -> list[Job]:
    """Put jobs in the order in which their owners' turns come; ``queue`` is in ``in_order``.

    Within equal priority it is the turn of whoever has had the least, counting what those jobs
    will have used that come before (fair queueing by virtual time). Only the first ``most`` are
    put in order; the rest follow as they were.
    """
    used = dict(snapshot.usage)
    cards = len(snapshot.cards)
    ordered: list[Job] = []
    for _, band in groupby(queue, key=_BY_PRIORITY):
        jobs = list(band)
        if len(ordered) >= most:
            ordered += jobs
            continue
        lines: dict[str, deque[Job]] = {}
        for job in jobs:
            lines.setdefault(job.owner, deque()).append(job)
        turns = [(used.get(owner, 0.0), line[0].order, owner) for owner, line in lines.items()]
        heapify(turns)
        taken = set()
        while turns and len(ordered) < most:
            had, _, owner = heappop(turns)
            job = lines[owner].popleft()
            ordered.append(job)
            taken.add(job.id)
            used[owner] = had + _cost(job, snapshot, cards)
            if lines[owner]:
                heappush(turns, (used[owner], lines[owner][0].order, owner))
        ordered += [job for job in jobs if job.id not in taken]
    return ordered


def _cost(job: Job, snapshot: Snapshot, cards: int) -> float:
    """GPU seconds that a job is expected to use."""
    request = job.request
    estimate = snapshot.estimates.get(job.id)
    seconds = request.eta
    if estimate is not None and estimate.run_time is not None:
        seconds = estimate.run_time
    if request.preset is Preset.CPU or request.gpus == 0:
        return 0.0
    every = request.preset in {Preset.TWO, Preset.EXCLUSIVE}
    gpus = request.gpus or (cards if every else 1)
    return (_UNTOLD if seconds is None else seconds) * gpus * (request.share or WHOLE) / WHOLE


def sift(snapshot: Snapshot) -> tuple[list[Drop], list[Job], list[Job]]:
    """Part the waiting jobs: those whose parents rule them out, those free to start, the rest.

    The rest still wait for a parent; they come in queue order, the others in any.
    """
    bound = [job for job in snapshot.waiting if job.request.after]
    if not bound:
        return [], list(snapshot.waiting), []
    ready = [job for job in snapshot.waiting if not job.request.after]
    drops, held = [], []
    for job in in_order(bound):
        states = {parent: snapshot.parents.get(parent) for parent in job.request.after}
        if all(state is JobState.SUCCEEDED for state in states.values()):
            ready.append(job)
            continue
        bad = [
            f"job {parent}, which {_FATE[state]}"
            for parent, state in states.items()
            if state in _FATE
        ]
        if bad:
            drops.append(Drop(job.id, f"comes after {' and '.join(bad)}"))
        else:
            held.append(job)
    return drops, ready, held


_FATE: dict[JobState | None, str] = {
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    None: "is gone",
}
assert set(_FATE) >= TERMINAL - {JobState.SUCCEEDED}
