"""Stopping a running job so that one of higher priority gets its room, and putting it back."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from gpuqueue.control.turn import Turn
from gpuqueue.model import Job, JobState
from gpuqueue.run.process import send_signal

__all__ = ["EVICT", "evict", "in_front"]

EVICT = "evict"
"""What ``Job.asked`` says of a job that is to make room."""


def evict(turn: Turn, job: Job, for_job: int) -> None:
    """Ask a running job to stop, as a cancel does: SIGTERM, and after the grace time SIGKILL.

    It keeps its placement until it is gone, and then goes back into the queue.
    """
    process = job.process
    if process is None or job.asked or job.state is not JobState.RUNNING:
        return
    turn.move(
        job, "evicting", state=JobState.EVICTING, asked=EVICT,
        reason=f"makes room for job {for_job}",
    )  # fmt: skip
    turn.actions.append(lambda: send_signal(process, signal.SIGTERM))


def in_front(jobs: Mapping[int, Job], job: Job) -> int:
    """The position at the head of a job's priority: evicted work resumes first."""
    others = [
        other.position
        for other in jobs.values()
        if other.state is JobState.QUEUED and other.request.priority == job.request.priority
    ]
    return min([job.position, *(place - 1 for place in others)])
