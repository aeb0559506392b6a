"""Having a running job step aside and go back into the queue, for another or for the person."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping

from gpuqueue.control.runners import ask, ask_aside
from gpuqueue.control.turn import Turn
from gpuqueue.model import Job, JobState
from gpuqueue.paths import Home
from gpuqueue.run.files import ask_to_stop, has_begun, is_resumable

__all__ = ["BROKEN", "EVICT", "FREE", "Evictor", "in_front", "resumes", "saving"]

EVICT = "evict"
"""What ``Job.asked`` says of a job that is to make room for another."""
FREE = "free"
"""What it says of one that is to step aside for the person at the machine."""
BROKEN = "broken"
"""What it says of one that is stopped because its GPU memory could not be brought back."""


class Evictor:
    """Asks jobs to step aside. What it remembers is only for how long it has asked.

    Parameters
    ----------
    home
        Where the jobs' directories are.
    can_return
        Whether there is still all that a job needs to start again: with a damaged database its
        command may be lost.
    """

    def __init__(self, home: Home, can_return: Callable[[Job], bool] = lambda _: True) -> None:
        self._home = home
        self.can_return = can_return
        self._since: dict[tuple[int, int], float] = {}

    def evict(self, turn: Turn, job: Job, asked: str, reason: str, patience: float) -> None:
        """Decide that a running job is to step aside; it keeps its placement until it is gone."""
        if job.process is None or job.asked or job.state is not JobState.RUNNING:
            return
        leaving = turn.move(job, "evicting", state=JobState.EVICTING, asked=asked, reason=reason)
        turn.actions.append(lambda: self.press(leaving, patience))

    def press(self, job: Job, patience: float) -> None:
        """Ask a job once more.

        A resumable one is asked to save and step aside, for ``patience`` seconds. Any other, and
        one that has not done so by then, gets SIGTERM, as for a cancel, and after the grace time
        SIGKILL. It does no harm to repeat either; a lead may have died before it asked.
        """
        folder = self._home.attempt(job.id, job.attempt)
        if not self.is_late(job, patience):
            if ask_to_stop(folder):
                return
            if job.request.resumable and ask_aside(folder):
                return
        self.stop(job)

    def stop(self, job: Job) -> None:
        """End an attempt as a cancel does, whether or not it could save."""
        folder = self._home.attempt(job.id, job.attempt)
        if job.process is not None:
            ask(folder, job.process, signal.SIGTERM)

    def saves(self, job: Job) -> bool:
        """Whether a job can save and step aside."""
        return _saves(self._home, job)

    def is_late(self, job: Job, patience: float) -> bool:
        """Whether this job has been asked for longer than ``patience`` seconds."""
        now = time.monotonic()
        return now - self._since.setdefault((job.id, job.attempt), now) >= patience

    def forget(self, job: Job) -> None:
        """An attempt has ended, or is not asked any more."""
        self._since.pop((job.id, job.attempt), None)


def resumes(home: Home, job: Job) -> bool:
    """Whether an attempt goes on from what an earlier one has saved."""
    says = has_begun if job.request.resumable else is_resumable
    return any(says(home.attempt(job.id, earlier)) for earlier in range(1, job.attempt))


def saving(home: Home, jobs: Iterable[Job]) -> frozenset[int]:
    """Ids of the preemptible jobs among those that run which save when they are to make room."""
    return frozenset(
        job.id
        for job in jobs
        if job.state is JobState.RUNNING and job.request.preemptible and _saves(home, job)
    )


def _saves(home: Home, job: Job) -> bool:
    return job.request.resumable or is_resumable(home.attempt(job.id, job.attempt))


def in_front(jobs: Mapping[int, Job], job: Job) -> int:
    """The position at the head of a job's priority: evicted work resumes first."""
    others = [
        other.position
        for other in jobs.values()
        if other.state is JobState.QUEUED and other.request.priority == job.request.priority
    ]
    return min([job.position, *(place - 1 for place in others)])
