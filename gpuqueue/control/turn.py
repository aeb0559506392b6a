"""One turn of the controller: all its changes, recorded in one transaction or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuqueue.model import TERMINAL, Intent, Job, JobState, Mode, Placement
from gpuqueue.store import Store

__all__ = ["Turn", "unfrozen"]


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
    moves: list[tuple[Job, Job, str, Mapping[str, Any]]] = field(default_factory=list)
    intents: list[tuple[Intent, str]] = field(default_factory=list)
    actions: list[Callable[[], object]] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    notes: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    _modes: list[tuple[Mode, dict[str, Any]]] = field(default_factory=list)
    _entered: list[Job] = field(default_factory=list)
    _left: list[tuple[Job, float]] = field(default_factory=list)

    def move(
        self, job: Job, event: str, *, about: Mapping[str, Any] | None = None, **changes: Any
    ) -> Job:
        """Decide a change of a job, to be recorded with this event. An ended job stays as it is.

        ``about`` goes into the event.
        """
        current = self.jobs.get(job.id, job)
        if current.state in TERMINAL:
            return current
        after = job.changed(**changes)
        self.jobs[job.id] = after
        self.moves.append((job, after, event, about or {}))
        return after

    def change_mode(self, mode: Mode, **data: Any) -> None:
        """Decide who has the GPUs; ``data`` goes into the event."""
        self.mode = mode
        self._modes.append((mode, data))

    def know(self, job_id: int, **facts: Any) -> None:
        """Keep with a job what earlier runs teach of it, or how much memory it uses."""
        self.jobs[job_id] = self.jobs[job_id].changed(**facts)
        self.promised.append(job_id)

    def promise(self, job_id: int, expected: float, latest: float) -> None:
        """Promise a waiting job the latest moment at which it starts."""
        self.jobs[job_id] = self.jobs[job_id].changed(expected=expected, latest=latest)
        self.promised.append(job_id)

    @property
    def starts(self) -> frozenset[int]:
        """Jobs that take a placement."""
        return frozenset(job.id for job in self._entered)

    @property
    def ends(self) -> bool:
        """Whether a job ends for good."""
        return any(after.state in TERMINAL for _, after, *_ in self.moves)

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

    def leave(self, job: Job, at: float | None = None) -> None:
        """A job gives its placement back; ``at`` is until when it had it, if not until now."""
        self._left.append((job, self.now if at is None else at))

    @property
    def left(self) -> tuple[Job, ...]:
        """Jobs that give their placement back, as they were then."""
        return tuple(job for job, _ in self._left)

    def commit(self, store: Store) -> None:
        """Record all of it."""
        if not (self.told or self.promised):
            return
        with store.transaction() as db:
            last = {after.id: number for number, (_, after, *_) in enumerate(self.moves)}
            for number, (before, after, event, about) in enumerate(self.moves):
                final = last[after.id] == number
                store.move(db, before, after, event, self.now, last=final, about=about)
            for job_id in dict.fromkeys(self.promised):
                store.promise(db, self.jobs[job_id])
            for mode, told in self._modes:
                store.set_mode(db, mode, self.now, told)
            for job_id, kind, data in self.notes:
                store.record(db, self.now, job_id, kind, data)
            self._split(store, db)
            for job, at in self._left:
                store.vacate(db, job, at)
            for job in self._entered:
                now = self.jobs.get(job.id, job)  # what is lent of it is decided after its start
                held = now if now.attempt == job.attempt and now.placement else job
                if held.placement is not None:
                    store.occupy(db, held, held.placement, self.now)
            for intent, error in self.intents:
                store.finish_intent(db, intent, self.now, error)

    def _split(self, store: Store, db: sqlite3.Connection) -> None:
        """Close the usage records of who stays and holds something else now, and open others."""
        first: dict[int, Job] = {}
        for before, after, *_ in self.moves:
            first.setdefault(after.id, before)
        for job in (*self.left, *self._entered):
            first.pop(job.id, None)
        for job_id, before in first.items():
            after = self.jobs[job_id]
            if after.placement is not None and _held(before) != _held(after):
                store.vacate(db, before, self.now)
                store.occupy(db, after, after.placement, self.now)


def _held(job: Job) -> tuple[Placement | None, bool, tuple[tuple[str, int], ...]]:
    """What a usage record is about: what is held, whether it stands still, what others have."""
    away = () if job.loan is None else job.loan.away
    return job.placement, job.state is JobState.FROZEN, away


def unfrozen(job: Job, now: float) -> dict[str, Any]:
    """What changes of a job as it goes on: it was frozen for that long; nothing if it was not."""
    if job.frozen_at is None:
        return {}
    return {"frozen": job.frozen + max(0.0, now - job.frozen_at), "frozen_at": None}
