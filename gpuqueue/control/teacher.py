"""What earlier runs teach about waiting jobs, kept with them.

It stays with the job, so that whoever explains its waiting plans on the same. Each turn costs only
what is new: a job that came, or a kind of work of which something else is believed than before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from gpuqueue.control.turn import Turn
from gpuqueue.model import Job, JobKind, JobState
from gpuqueue.plan import History, kind_of

__all__ = ["Teacher"]


class Teacher:
    """The history of runs, and the waiting jobs by kind of work."""

    def __init__(self) -> None:
        self._history = History()
        self._new: list[int] = []
        self._waiting: dict[Hashable, set[int]] = {}
        self._changed: set[Hashable] = set()
        self._believed: dict[Hashable, tuple[float, bool]] = {}

    def remember(self, ended: Iterable[Job]) -> None:
        """Begin with runs of before, oldest first."""
        for job in ended:
            self.note(job)
        self._changed.clear()

    def expect(self, job_ids: Iterable[int]) -> None:
        """Jobs that have come."""
        self._new += job_ids

    def note(self, job: Job) -> None:
        """Take in a job that succeeded; those of its kind that wait believe what it teaches."""
        if not _teaches(job) or job.started is None or job.ended is None:
            return
        kind = kind_of(job.owner, job.command, job.request)
        self._history.add(kind, max(0.0, job.ended - job.started))
        self._changed.add(kind)

    def teach(self, turn: Turn) -> None:
        """Give jobs that came without an estimate the one that their command has taught."""
        for job_id in self._new:
            job = turn.jobs.get(job_id)
            if job is not None and job.request.eta is None and _teaches(job):
                kind = kind_of(job.owner, job.command, job.request)
                self._waiting.setdefault(kind, set()).add(job_id)
                self._tell(turn, job, self._belief(kind))
        self._new = []
        for kind in self._changed:
            before = self._believed.pop(kind, None)
            belief = self._belief(kind)
            if belief == before or kind not in self._waiting:
                continue
            for job_id in list(self._waiting[kind]):
                job = turn.jobs.get(job_id)
                if job is None:
                    self._waiting[kind].discard(job_id)
                else:
                    self._tell(turn, job, belief)
            if not self._waiting[kind]:
                del self._waiting[kind]
        self._changed.clear()

    def _belief(self, kind: Hashable) -> tuple[float, bool] | None:
        if kind not in self._believed:
            found = self._history.estimate(kind)
            if found is None or found.run_time is None:
                return None
            self._believed[kind] = found.run_time, found.sound
        return self._believed[kind]

    @staticmethod
    def _tell(turn: Turn, job: Job, belief: tuple[float, bool] | None) -> None:
        if belief is not None and job.state is JobState.QUEUED:
            run_time, sound = belief
            if (job.learned, job.sound) != belief:
                turn.learn(job.id, run_time, sound=sound)


def _teaches(job: Job) -> bool:
    """Whether the command says what ran: a cell's or a nameless function's does not."""
    return job.kind is JobKind.SCRIPT or (
        job.kind is JobKind.FUNCTION and "<lambda>" not in job.command
    )
