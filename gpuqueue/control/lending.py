"""The compute of idle notebooks: who is stopped as a cell begins, and who goes on after it.

What is lent to whom ``gpuqueue.plan.lend`` decides. It follows from the jobs and from who idles
alone and is looked at in every turn, so a lead that takes over in the middle goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpuqueue.control.idling import Idling
from gpuqueue.control.machine import Machine, snapshot_of
from gpuqueue.control.runners import are_still, go_on, keep_still
from gpuqueue.control.turn import Turn, unfrozen
from gpuqueue.model import ACTIVE, Job, JobState, ProcessId
from gpuqueue.paths import Home
from gpuqueue.plan.lend import Allotted, allot
from gpuqueue.plan.wording import lent_words, paused_words
from gpuqueue.settings import Settings
from gpuqueue.store import Store

__all__ = ["PAUSE", "Lender"]

PAUSE = "pause"
"""What ``Job.asked`` says of one that stands still while a notebook computes."""
_AGAIN = 0.2
"""Seconds that a second look spends on processes that do not stop: others wait meanwhile."""
_NOT_WHOLE = "; some of its processes could not be stopped"


class Lender:
    """Has borrowers stand still and go on.

    Attributes
    ----------
    idling
        Which notebooks compute nothing.
    """

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self.idling = Idling(home, store)
        self._known: set[tuple[int, int]] = set()
        self._open = True

    def look(self, turn: Turn, machine: Machine, settings: Settings, *, tick: bool) -> None:
        """See who idles; in free mode, let go on who stands still: that sees to them as to all."""
        self.idling.look(turn.jobs, machine, settings, turn.now, tick=tick)
        if not turn.mode.normal:
            self.wake(turn, list(turn.jobs.values()))

    def wake(self, turn: Turn, jobs: Iterable[Job]) -> None:
        """Let those go on that stand still, whoever computes."""
        paused = [job for job in jobs if job.asked == PAUSE]
        go_on(self._attempts(paused))
        for job in paused:
            self._continue(turn, job)

    def expect(self) -> None:
        """Something is lent in this turn."""
        self._open = True

    def settle(self, turn: Turn, machine: Machine, settings: Settings, *, look: bool) -> None:
        """Give lenders and borrowers what is theirs at this moment; to be called last in a turn.

        ``look`` also sees that those who are to stand still do.
        """
        if not (self._open or look):
            return  # nobody had anything lent a moment ago
        jobs = [job for job in turn.jobs.values() if job.state in ACTIVE]
        paused = [job for job in jobs if job.asked == PAUSE]
        self._open = bool(paused) or any(job.loan is not None for job in jobs)
        if not turn.mode.normal or not self._open:
            return
        snapshot = snapshot_of(jobs, {}, machine, settings, idle=self.idling.since)
        found = allot(snapshot, turn.now)
        index = {card.gpu.uuid: card.gpu.index for card in snapshot.cards}
        self._keep(turn, jobs, found, index)
        stands = {id_ for id_, each in found.items() if each.stands}
        jobs = [turn.jobs[job.id] for job in jobs]
        going = [job for job in jobs if job.asked == PAUSE and job.id not in stands]
        go_on(self._attempts(going))
        for job in going:
            self._continue(turn, job)
        self._stop(turn, [job for job in jobs if job.id in stands])
        still = self._attempts(job for job in paused if job.id in stands)
        if look and still and not are_still(still):
            keep_still(still, _AGAIN)
        self._take_over(turn, jobs, stands)

    def _keep(self, turn: Turn, jobs: Sequence[Job], found: Any, index: dict[str, int]) -> None:
        """Record whose compute is lent to whom, and tell borrowers in words."""
        for job in jobs:
            allotted: Allotted | None = found.get(job.id)
            if allotted is None:
                continue
            changes: dict[str, Any] = {}
            if allotted.loan != job.loan:
                changes["loan"] = allotted.loan
            if allotted.loan is not None and allotted.loan.borrows and job.asked in ("", PAUSE):
                where = [
                    (index[gpu], [turn.jobs[id_] for id_ in ids]) for gpu, ids in allotted.for_
                ]
                words = paused_words(where) if allotted.stands else lent_words(job, where)
                if words != job.reason.removesuffix(_NOT_WHOLE):
                    changes["reason"] = words
            if changes:
                turn.move(job, "borrows" if job.borrows else "lends", **changes)

    def _stop(self, turn: Turn, jobs: Iterable[Job]) -> None:
        """Stop those that run yet; one that is asked to end or to step aside does that."""
        stop = [
            job
            for job in jobs
            if job.state is JobState.RUNNING
            and job.asked in ("", PAUSE)
            and job.process is not None
        ]
        if not stop:
            return
        attempts = self._attempts(stop)
        keep_still(attempts)
        whole = are_still(attempts)
        for job in stop:
            more = "" if whole or are_still(self._attempts([job])) else _NOT_WHOLE
            turn.move(job, "paused", state=JobState.FROZEN, asked=PAUSE, frozen_at=turn.now,
                      reason=job.reason + more)  # fmt: skip

    def _continue(self, turn: Turn, job: Job) -> None:
        reason = job.reason if job.borrows and not job.reason.startswith("paused") else ""
        turn.move(job, "continued", state=JobState.RUNNING, asked="", reason=reason,
                  **unfrozen(job, turn.now))  # fmt: skip

    def _take_over(self, turn: Turn, jobs: Iterable[Job], stands: set[int]) -> None:
        """Once for each borrower that runs: a lead that has died may have stopped it unrecorded."""
        new = [
            job
            for job in jobs
            if job.borrows and job.id not in stands and (job.id, job.attempt) not in self._known
            and turn.jobs[job.id].state is JobState.RUNNING
        ]  # fmt: skip
        self._known &= {(job.id, job.attempt) for job in jobs}
        self._known |= {(job.id, job.attempt) for job in new}
        go_on(self._attempts(new))

    def _attempts(self, jobs: Iterable[Job]) -> list[tuple[Path, ProcessId]]:
        return [
            (self._home.attempt(job.id, job.attempt), job.process)
            for job in jobs
            if job.process is not None
        ]
