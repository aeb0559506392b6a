"""The queue: who is in it, in what order, and who is free to start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from gpuqueue.model import TERMINAL, Job, JobState
from gpuqueue.plan.types import Drop, Snapshot

__all__ = ["in_order", "sift"]

_POSITION = attrgetter("position")
_BY_ARRIVAL = attrgetter("position", "id")
_BY_PRIORITY = attrgetter("request.priority")


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Sort jobs by ``Job.order``."""
    queue = list(jobs)
    places = [job.position for job in queue]
    ordered = sorted(places)
    if places != ordered or len(set(places)) < len(places):
        queue.sort(key=_BY_ARRIVAL)
    # two stable sorts on C-level keys take half the time of one on the property
    queue.sort(key=_BY_PRIORITY, reverse=True)
    return queue


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


def listed_ids(jobs: Sequence[Job]) -> list[int]:
    """Ids of jobs, for messages."""
    return [job.id for job in jobs]
