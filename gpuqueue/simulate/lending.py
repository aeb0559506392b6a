"""A workload beside notebooks that compute now and then: what becomes of the compute they lend.

As ``engine.py``, and cells begin and end; after each the same ``allot`` decides as in the
controller. A stop and a start take no time here: what they take on a machine, ``bench/lend.py``
measures.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from typing import Any

from gpuqueue.model import WHOLE, Gpu, Job, JobKind, JobState, Loan
from gpuqueue.plan import Policy, Snapshot, need_of, plan
from gpuqueue.plan.lend import allot
from gpuqueue.simulate.engine import Estimates, Outcome, Replay
from gpuqueue.simulate.notebooks import Habits
from gpuqueue.simulate.trace import TraceJob

__all__ = ["Lent", "beside", "fitting"]


@dataclass(slots=True)
class Lent:
    """What became of the notebooks' idle compute; times in seconds, compute in GPU seconds.

    ``idle`` is what no notebook used; ``fits`` is the most of it that the jobs which were on the
    GPUs could have used at each moment, ``used`` what they used. ``cells`` are the waits of all
    cells for their compute, ``pauses`` for how long jobs stood still each time, ``present`` for how
    long they were there.
    """

    idle: float = 0.0
    fits: float = 0.0
    used: float = 0.0
    cells: list[float] = field(default_factory=list)
    taken_back: int = 0
    pauses: list[float] = field(default_factory=list)
    present: float = 0.0
    borrowed: int = 0

    def told(self) -> dict[str, Any]:
        """The figures, for people and programs."""
        cells, pauses = sorted(self.cells), self.pauses
        return {
            "idle_gpu_s": round(self.idle, 1),
            "idle_used": round(self.used / self.idle, 4) if self.idle else None,
            "idle_used_of_what_fits": round(self.used / self.fits, 4) if self.fits else None,
            "borrowers": self.borrowed,
            "pauses": len(pauses),
            "pause_mean_s": round(sum(pauses) / len(pauses), 1) if pauses else None,
            "pause_max_s": round(max(pauses), 1) if pauses else None,
            "paused_share": round(sum(pauses) / self.present, 4) if self.present else None,
            "cells": len(cells),
            "cells_that_took_back": self.taken_back,
            "cells_that_waited": sum(wait > 0 for wait in cells),
            "cell_wait_mean_s": round(sum(cells) / len(cells), 2) if cells else None,
            "cell_wait_p99_s": round(cells[max(0, -(-99 * len(cells) // 100) - 1)], 2)
            if cells
            else None,
        }


def fitting(
    jobs: Sequence[TraceJob], kernels: Sequence[Job], gpus: Sequence[Gpu], policy: Policy
) -> list[TraceJob]:
    """The jobs that could ever start beside these notebooks, which stay."""
    full = {gpu for job in kernels for gpu in (job.placement.gpus if job.placement else ())}
    empty = sum(gpu.uuid not in full for gpu in gpus)
    return [
        job
        for job in jobs
        if not (need := need_of(job.request, gpus, policy)).whole or need.gpus <= empty
    ]


def beside(
    jobs: Sequence[TraceJob],
    kernels: Sequence[Job],
    gpus: Sequence[Gpu],
    policy: Policy,
    habits: Habits,
    *,
    estimates: Estimates = Estimates.EXACT,
    on_progress: Callable[[int], object] | None = None,
) -> tuple[Outcome, Lent]:
    """Replay jobs beside notebooks, from the first submission to the last."""
    run = _Beside(jobs, gpus, policy, estimates)
    run.on_progress = on_progress
    run.open(kernels, habits)
    return run.run(), run.lent


class _Beside(Replay):
    """The notebooks' cells are events in a heap of their own; a number says which still count."""

    lent: Lent

    def open(self, kernels: Sequence[Job], habits: Habits) -> None:
        """Put the notebooks there, idle."""
        self.lent = Lent()
        self.habits = habits
        self.now = begin = self.trace[0].submit if self.trace else 0.0
        self.kernels = {job.id for job in kernels}
        self.running |= {job.id: replace(job, started=begin) for job in kernels}
        self.idle: dict[int, float] = {}
        self.numbers = count()
        self.events: list[tuple[float, int, str, int, int]] = []
        self.token: dict[int, int] = dict.fromkeys(self.kernels, 0)
        self.cell_left: dict[int, float] = {}
        self.cell_since: dict[int, float] = {}
        self.cell_came: dict[int, float] = {}
        self.on_since: dict[int, float] = {}
        for id_ in sorted(self.kernels):
            self._rest(id_, begin)

    def run(self) -> Outcome:
        """Play all of it."""
        number, trace = 0, self.trace
        while number < len(trace):
            now = min(
                trace[number].submit,
                self.ends[0][0] if self.ends else inf,
                self.events[0][0] if self.events else inf,
            )
            self._count(now)
            decide = False
            while self.ends and self.ends[0][0] <= now:
                _, job_id, attempt = heapq.heappop(self.ends)
                if job_id in self.running and self.running[job_id].attempt == attempt:
                    self._end(job_id, now)
                    self.on_since.pop(job_id, None)
                    decide = True
            while self.events and self.events[0][0] <= now:
                _, _, what, id_, token = heapq.heappop(self.events)
                decide |= self._event(what, id_, token, now)
            while number < len(trace) and trace[number].submit <= now:
                self._submit(trace[number], number)
                number += 1
                decide = True
            if decide and (self.waiting or any(job.borrows for job in self.running.values())):
                self._decide(now)
            self._settle(now)
            self.out.queue.append((now, len(self.waiting), self.work))
            if self.on_progress is not None:
                self.on_progress(number)
        self._close()
        return self.out

    # -- cells -------------------------------------------------------------------------------

    def _event(self, what: str, id_: int, token: int, now: float) -> bool:
        """Take one in; whether somebody might start because of it."""
        if what == "cell":
            self.idle.pop(id_, None)
            self.cell_left[id_] = self.habits.cell()
            self.cell_came[id_] = now
            loan = self.running[id_].loan
            self.lent.taken_back += loan is not None and bool(loan.away) and not loan.borrows
            return False
        if what == "over":
            if token == self.token[id_]:
                self.cell_left.pop(id_)
                self.cell_since.pop(id_)
                self._rest(id_, now)
            return False
        return what == "lends"

    def _rest(self, id_: int, now: float) -> None:
        """A cell is over, and the next one comes after a gap."""
        self.idle[id_] = now
        gap = self.habits.gap()
        self._push(now + gap, "cell", id_)
        for patience, what in (
            (self.policy.lend_again, "rests"),
            (self.policy.lend_after, "lends"),
        ):
            if patience < gap:
                self._push(now + patience, what, id_)

    def _push(self, at: float, what: str, id_: int) -> None:
        token = self.token[id_]
        heapq.heappush(self.events, (at, next(self.numbers), what, id_, token))

    def _compute(self, id_: int, now: float, *, has: bool) -> None:
        """A notebook in which a cell runs has its compute, or has to wait for it."""
        if has and id_ not in self.cell_since:
            self.cell_since[id_] = now
            if id_ in self.cell_came:
                self.lent.cells.append(now - self.cell_came.pop(id_))
            self.token[id_] += 1
            self._push(now + self.cell_left[id_], "over", id_)
        elif not has and id_ in self.cell_since:
            self.cell_left[id_] -= now - self.cell_since.pop(id_)
            self.token[id_] += 1

    # -- who has what ------------------------------------------------------------------------

    def _snapshot(self, now: float) -> Snapshot:
        return replace(super()._snapshot(now), idle=self.idle)

    def _decide(self, now: float) -> bool:
        snapshot = self._snapshot(now)
        decision = plan(snapshot, now)
        self.out.decisions += 1
        for promise in decision.promises:
            self.latest[promise.job] = self.out.latest[promise.job] = promise.latest
        for job_id in decision.settled:
            self.running[job_id] = replace(self.running[job_id], loan=None)
            if self.running[job_id].state is JobState.FROZEN:
                self._go_on(job_id, now)
        for start in decision.starts:
            self._start(start.job, start.placement, now)
            self.on_since[start.job] = now
            if start.borrows:
                self.lent.borrowed += 1
                lent = replace(self.running[start.job], loan=Loan(borrows=True))
                self.running[start.job] = lent
        return False

    def _settle(self, now: float) -> None:
        """As the controller at the end of each turn."""
        running = tuple(self.running.values())
        found = allot(Snapshot(self.cards, (), running, self.policy, idle=self.idle), now)
        for job_id, each in found.items():
            self.running[job_id] = replace(self.running[job_id], loan=each.loan)
        for job_id in list(self.running):
            job = self.running[job_id]
            stands = job_id in found and found[job_id].stands
            if job.kind is JobKind.KERNEL:
                state = JobState.FROZEN if stands else JobState.RUNNING
                self.running[job_id] = replace(job, state=state)
                if job_id in self.cell_left:
                    self._compute(job_id, now, has=not stands)
            elif stands and job.state is JobState.RUNNING:
                self.left[job_id] -= now - self.on_since[job_id]
                self.lent.present += now - self.on_since.pop(job_id)
                self.running[job_id] = replace(
                    job, state=JobState.FROZEN, frozen_at=now, attempt=job.attempt + 1
                )
            elif not stands and job.state is JobState.FROZEN:
                self._go_on(job_id, now)

    def _go_on(self, job_id: int, now: float) -> None:
        job = self.running[job_id]
        assert job.frozen_at is not None
        stood = now - job.frozen_at
        self.lent.pauses.append(stood)
        self.lent.present += stood
        self.running[job_id] = replace(
            job, state=JobState.RUNNING, frozen=job.frozen + stood, frozen_at=None,
            attempt=job.attempt + 1,
        )  # fmt: skip
        self.on_since[job_id] = now
        heapq.heappush(self.ends, (now + max(0.0, self.left[job_id]), job_id, job.attempt + 1))

    def _leave(self, job_id: int, now: float) -> Job:
        self.lent.present += now - self.on_since.get(job_id, now)
        return super()._leave(job_id, now)

    # -- figures -----------------------------------------------------------------------------

    def _count(self, now: float) -> None:
        """Add up the time since the last event, in which nothing has changed."""
        seconds, self.now = now - self.now, now
        if seconds <= 0:
            return
        for card in self.cards:
            free, used, there = WHOLE, 0, []
            for job in self.running.values():
                for grant in job.placement.grants if job.placement else ():
                    if grant.gpu != card.gpu.uuid:
                        continue
                    if job.kind is JobKind.KERNEL:
                        free -= grant.compute if job.id in self.cell_since else 0
                    else:
                        there.append(grant.compute)
                        used += grant.compute if job.state is JobState.RUNNING else 0
            self.lent.idle += seconds * free / WHOLE
            self.lent.used += seconds * used / WHOLE
            self.lent.fits += seconds * max(used, _most(there, free)) / WHOLE

    def _close(self) -> None:
        """What is still under way as the last job comes counts as far as it has got."""
        for since in self.on_since.values():
            self.lent.present += self.now - since
        for job in self.running.values():
            if job.kind is not JobKind.KERNEL and job.frozen_at is not None:
                self.lent.pauses.append(self.now - job.frozen_at)
                self.lent.present += self.now - job.frozen_at
        self.lent.cells += [self.now - came for came in self.cell_came.values()]


def _most(parts: Sequence[int], room: int) -> int:
    """The most of ``room`` that some of these parts fill."""
    sums = {0}
    for part in parts:
        sums |= {total + part for total in sums if total + part <= room}
    return max(sums)
