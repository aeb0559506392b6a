"""One turn of the controller: all its changes, recorded in one transaction or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpuqueue.model import TERMINAL, Intent, Job, Mode
from gpuqueue.store import Store

__all__ = ["Turn"]


@dataclass(slots=True)
class Turn:
    """A working copy of the live jobs and what has been decided about them.

    Attributes
    ----------
    jobs
        Live jobs by id, as they will be once the turn is recorded.
    now
        The moment that the turn's events carry.
    promised
        The jobs that something is known of besides their state: a latest start, a run time.
    notes
        Events that change no job's state: job, kind, data.
    mode
        Who has the GPUs, as it will be once the turn is recorded.
    actions
        What to do after it is recorded; none of it may be needed for the record to be true.
    """

    jobs: dict[int, Job]
    now: float
    mode: Mode = field(default_factory=Mode)
    moves: list[tuple[Job, Job, str]] = field(default_factory=list)
    intents: list[tuple[Intent, str]] = field(default_factory=list)
    actions: list[Callable[[], object]] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    notes: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    _modes: list[tuple[Mode, dict[str, Any]]] = field(default_factory=list)
    _entered: list[Job] = field(default_factory=list)
    _left: list[Job] = field(default_factory=list)

    def move(self, job: Job, event: str, **changes: Any) -> Job:
        """Decide a change of a job, to be recorded with this event. An ended job stays as it is."""
        current = self.jobs.get(job.id, job)
        if current.state in TERMINAL:
            return current
        after = replace(job, **changes)
        self.jobs[job.id] = after
        self.moves.append((job, after, event))
        return after

    def change_mode(self, mode: Mode, **data: Any) -> None:
        """Decide who has the GPUs; ``data`` goes into the event."""
        self.mode = mode
        self._modes.append((mode, data))

    def know(self, job_id: int, **facts: Any) -> None:
        """Keep with a job what earlier runs teach of it, or how much memory it uses."""
        self.jobs[job_id] = replace(self.jobs[job_id], **facts)
        self.promised.append(job_id)

    def promise(self, job_id: int, expected: float, latest: float) -> None:
        """Promise a waiting job the latest moment at which it starts."""
        self.jobs[job_id] = replace(self.jobs[job_id], expected=expected, latest=latest)
        self.promised.append(job_id)

    @property
    def starts(self) -> frozenset[int]:
        """Jobs that take a placement."""
        return frozenset(job.id for job in self._entered)

    @property
    def ends(self) -> bool:
        """Whether a job ends for good."""
        return any(after.state in TERMINAL for _, after, _ in self.moves)

    @property
    def lasting(self) -> bool:
        """Whether it has to be on the disk before anybody hears of it."""
        return self.ends or bool(self._modes)

    @property
    def told(self) -> bool:
        """Whether something in it is worth telling those who watch."""
        return bool(self.moves or self.intents or self.notes or self._modes)

    def enter(self, job: Job) -> None:
        """A job takes its placement."""
        self._entered.append(job)

    def leave(self, job: Job) -> None:
        """A job gives its placement back."""
        self._left.append(job)

    def commit(self, store: Store) -> None:
        """Record all of it."""
        if not (self.told or self.promised):
            return
        with store.transaction() as db:
            last = {after.id: number for number, (_, after, _) in enumerate(self.moves)}
            for number, (before, after, event) in enumerate(self.moves):
                final = last[after.id] == number
                store.move(db, before, after, event, self.now, last=final)
            for job_id in dict.fromkeys(self.promised):
                store.promise(db, self.jobs[job_id])
            for mode, about in self._modes:
                store.set_mode(db, mode, self.now, about)
            for job_id, kind, data in self.notes:
                store.record(db, self.now, job_id, kind, data)
            for job in self._left:
                store.vacate(db, job, self.now)
            for job in self._entered:
                if job.placement is not None:
                    store.occupy(db, job, job.placement, self.now)
            for intent, error in self.intents:
                store.finish_intent(db, intent, self.now, error)
