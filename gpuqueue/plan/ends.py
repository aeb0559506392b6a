"""How long jobs are expected to run, and when those that run are expected to end."""

from __future__ import annotations

from math import inf

from gpuqueue.model import Job, JobKind, JobState, Request
from gpuqueue.plan.types import Estimate, Snapshot

__all__ = [
    "UNKNOWN",
    "end_of",
    "expected_end",
    "laid_out_for",
    "left_of",
    "length_of",
    "run_time",
]

UNKNOWN = 1e10
"""Seconds that a job of unknown run time is laid out for: longer than anybody waits."""
_MOMENT = 1.0
_SHORTEST = 0.001


def run_time(snapshot: Snapshot, job: Job) -> float | None:
    """Expected run time in seconds: the estimate, else what the request says; None if unknown."""
    estimate = snapshot.estimates.get(job.id)
    if estimate is not None and estimate.run_time is not None:
        return estimate.run_time
    return job.request.eta


def length_of(snapshot: Snapshot, job: Job) -> float:
    """Seconds to lay a job out for."""
    return laid_out_for(snapshot.estimates.get(job.id), job.request)


def laid_out_for(estimate: Estimate | None, request: Request) -> float:
    """As ``length_of``, for a job whose estimate is at hand."""
    seconds = None if estimate is None else estimate.run_time
    if seconds is None:
        seconds = request.eta
    return UNKNOWN if seconds is None else max(_SHORTEST, seconds)


def end_of(snapshot: Snapshot, job: Job, now: float) -> float:
    """When a running job was expected to end, in seconds since the epoch, by its estimate.

    In the past where it has outrun it; infinite where unknown, as for a frozen job; minus
    infinite for a job that is being evicted, which ends at any moment.
    """
    if job.state is JobState.EVICTING:
        return -inf
    if job.state is JobState.FROZEN:
        return inf
    seconds = run_time(snapshot, job)
    if seconds is None:
        return inf
    return (now if job.started is None else job.started + job.frozen) + seconds


def left_of(snapshot: Snapshot, job: Job, now: float) -> float:
    """Seconds that a running job is laid out for from now on, had it its compute."""
    seconds = run_time(snapshot, job)
    if seconds is None:
        return UNKNOWN
    ran = job.ran(now)
    return seconds - ran if ran < seconds else max(60.0, ran // 4)


def expected_end(snapshot: Snapshot, job: Job, now: float) -> tuple[float, bool]:
    """When a running job is expected to end, after ``now``, and whether others may rely on it.

    A notebook's kernel has no end that anybody waits for, so it is infinite and relied upon: what
    needs its part of a GPU is laid out nowhere, and holds nothing back from others meanwhile.
    """
    if job.kind is JobKind.KERNEL:
        return inf, True
    end = end_of(snapshot, job, now)
    if now < end < inf:
        return end, True
    if job.borrows and job.state is JobState.FROZEN and run_time(snapshot, job) is not None:
        return now + left_of(snapshot, job, now), False  # it stands still for a notebook's cell
    if end == inf:
        return now + UNKNOWN, False
    if end == -inf:
        return now + _MOMENT, False
    ran = job.ran(now)
    # one that was only learned from other runs was a guess from the first: it is made anew
    estimate = snapshot.estimates.get(job.id)
    learned = estimate is not None and estimate.learned
    return now + max(60.0, ran // 4), learned
