"""What earlier runs teach, as the controller keeps it: run times and peaks of memory."""

from __future__ import annotations

from collections.abc import Iterable

from gpuqueue.control.turn import Turn
from gpuqueue.model import Job, JobState
from gpuqueue.plan import History, kind_of, words_of, work_of
from gpuqueue.store import Store

__all__ = ["Teacher"]

_LEAST = 1.0
"""Seconds. What is learned of shorter jobs differs by chance only; no order is to hang on it."""
_SEEN = 3.0
"""Seconds. GPUs are read once a second: of a shorter run the peak was seen by chance only."""
_REMEMBERED = 5000
"""How many successful runs a new lead learns from."""


class Teacher:
    """Learns from the jobs that end, and tells those that wait.

    What is told stays with the job, so that whoever explains its waiting plans on the same.
    """

    def __init__(self) -> None:
        self._history = History()
        self._untaught: list[int] = []

    def remember(self, store: Store) -> None:
        """Learn from the runs that are on record, and from nothing else."""
        self._history = History()
        for job in store.lessons(_REMEMBERED):
            if job.lacked and job.state is JobState.SUCCEEDED and (words := _words(job)):
                self._note_memory(job, words)  # as when it ran out, before it ran again
            self.note(job)

    def note(self, job: Job) -> bool:
        """Take in a job that succeeded, or ran out of the memory that was learned for it.

        Whether something else is believed of its command than before.
        """
        words = _words(job)
        if words is None:
            return False
        kind = kind_of(job.owner, words, job.request)
        work = work_of(job.owner, words, job.request)
        before = self._history.estimate(kind), self._history.memory(work)
        took = 0.0
        if job.state is JobState.SUCCEEDED and job.started is not None and job.ended is not None:
            took = job.ran(job.ended)
            if job.resized is None:  # else it ran with one size and then with another
                self._history.add(kind, took)
        if took >= _SEEN or job.lacked:
            self._note_memory(job, words)
        return (self._history.estimate(kind), self._history.memory(work)) != before

    def _note_memory(self, job: Job, words: str) -> None:
        # too little was too little whatever was seen of it
        if least := max(job.peak or 0, job.lacked or 0):
            self._history.saw(work_of(job.owner, words, job.request), least)

    def ask_for(self, jobs: Iterable[int]) -> None:
        """Tell these jobs at the next occasion what is known by then."""
        self._untaught += jobs

    def ask_for_like(self, turn: Turn, job: Job) -> None:
        """Tell anew those of a command of which something was learned."""
        words = _words(job)
        self.ask_for(
            other.id
            for other in turn.jobs.values()
            if other.owner == job.owner and other.kind is job.kind and _words(other) == words
        )

    def teach(self, turn: Turn) -> None:
        """Give jobs that came without an estimate the one that their command has taught."""
        for job_id in self._untaught:
            job = turn.jobs.get(job_id)
            if job is None or job.state is not JobState.QUEUED:
                continue
            words = _words(job)
            if words is None:
                continue
            facts = self._run_time(job, words) | self._memory(job, words)
            if any(getattr(job, name) != value for name, value in facts.items()):
                turn.know(job_id, **facts)
        self._untaught = []

    def _run_time(self, job: Job, words: str) -> dict[str, object]:
        if job.request.eta is not None:
            return {}
        found = self._history.estimate(kind_of(job.owner, words, job.request))
        if found is None or found.run_time is None:
            return {}
        return {"learned": max(found.run_time, _LEAST), "sound": found.sound}

    def _memory(self, job: Job, words: str) -> dict[str, object]:
        # one that ran out of what was learned has been given all there is
        if job.request.memory is not None or job.lacked is not None:
            return {}
        found = self._history.memory(work_of(job.owner, words, job.request))
        return {} if found is None else {"learned_memory": found}


def _words(job: Job) -> str | None:
    return words_of(job.kind, job.command, job.cwd)
