"""Compute that notebooks lend while they idle: who has it now, and who stands still for whom.

A notebook's kernel holds its share for days and computes little of the time. While it *rests*, its
compute is lent: a job that fits nowhere else may start on it as a *borrower*. What a borrower holds
of memory and slots is its own; its compute counts for nothing where others are placed
(``Lanes.held``), and it has it only as long as nobody who owns it computes. A notebook may be a
borrower itself, where more of them are let in than a GPU has compute for (``kernel_overcommit``):
then it needs compute only while it computes.

On each GPU, never more than 1,000 thousandths are in use: what every owner has that does not
rest, and what those borrowers have that do not stand still. Notebooks come before other borrowers,
the older first. Of other borrowers as few stand still as do, of lowest priority first, then the
newest; they go on in the opposite order, and no one is passed by another that came later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from gpuqueue.model import WHOLE, Grant, Job, JobKind, JobState, Loan
from gpuqueue.plan.types import Snapshot

__all__ = ["Allotted", "allot", "free_to_lend", "is_on", "rests", "seniority"]


@dataclass(frozen=True, slots=True)
class Allotted:
    """What a job has of its compute from now on.

    Attributes
    ----------
    loan
        As it is to be kept with the job; None where it neither lends nor borrows.
    stands
        It is to stand still: what it needs is in use by those who own it.
    for_
        By GPU: who is in its way, where it stands still; else whose compute it has.
    """

    loan: Loan | None = None
    stands: bool = False
    for_: tuple[tuple[str, tuple[int, ...]], ...] = ()


def rests(snapshot: Snapshot, job: Job, now: float, patience: float) -> bool:
    """Whether a notebook's kernel has computed nothing for so many seconds."""
    if job.kind is not JobKind.KERNEL:
        return False
    since = snapshot.idle.get(job.id)
    return since is not None and now - since >= patience


def is_on(job: Job) -> bool:
    """Whether a borrower has what it borrows; else it stands still, or needs nothing."""
    return job.loan is not None and job.loan.borrows and not job.loan.away


def seniority(job: Job) -> tuple[bool, int, float, int]:
    """Sort key of borrowers: who comes first has compute first."""
    kernel = job.kind is JobKind.KERNEL
    began = job.submitted if kernel else (inf if job.started is None else job.started)
    return not kernel, -job.request.priority, began, job.id


class _Room:
    """What is left of each GPU's compute for borrowers, in thousandths."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.left = {card.gpu.uuid: WHOLE for card in snapshot.cards}

    def take(self, job: Job) -> None:
        for grant in self.grants(job):
            self.left[grant.gpu] -= grant.compute

    def give(self, job: Job) -> None:
        for grant in self.grants(job):
            self.left[grant.gpu] += grant.compute

    def grants(self, job: Job) -> Sequence[Grant]:
        """Its parts of the GPUs that the queue has."""
        return [g for g in _grants(job) if g.gpu in self.left]

    def fits(self, job: Job) -> bool:
        return all(self.left[grant.gpu] >= grant.compute for grant in self.grants(job))

    def over(self) -> set[str]:
        return {gpu for gpu, left in self.left.items() if left < 0}


def allot(snapshot: Snapshot, now: float) -> Mapping[int, Allotted]:
    """What lenders and borrowers have of their compute now, by job.

    Jobs that are not in the answer have all that they hold and lend nothing.
    """
    borrowers = sorted((job for job in snapshot.running if job.borrows), key=seniority)
    if not borrowers and not any(job.loan for job in snapshot.running):
        return {}
    again = snapshot.policy.lend_again
    owners = [job for job in snapshot.running if not job.borrows]
    resting = [job for job in owners if rests(snapshot, job, now, again)]
    asleep = {job.id for job in resting}
    room = _Room(snapshot)
    for job in owners:
        if job.id not in asleep:
            room.take(job)
    found: dict[int, Allotted] = {}
    awake: list[Job] = []
    for job in borrowers:
        # a notebook that has borrowed needs nothing until a cell runs in it
        begins = job.kind is JobKind.KERNEL and job.state is JobState.STARTING
        if begins or rests(snapshot, job, now, again):
            found[job.id] = Allotted(Loan(borrows=True, away=_all_of(job)))
        else:
            awake.append(job)
    served = _served(room, awake)
    on = [job for job in awake if job.id in served]
    lent = _lent(snapshot, owners, resting, on)
    ahead = [*(job for job in owners if job.id not in asleep), *on]
    for job in awake:
        if job.id in served:
            found[job.id] = Allotted(Loan(borrows=True), for_=_lenders(job, lent))
        else:
            why = _in_the_way(job, room, ahead)
            away = Loan(borrows=True, away=_all_of(job))
            found[job.id] = Allotted(away, stands=True, for_=why)
    for job in owners:
        parts = tuple(sorted(lent.get(job.id, {}).items()))
        if parts or job.loan is not None:
            found[job.id] = Allotted(Loan(away=parts) if parts else None)
    return found


def _served(room: _Room, awake: Sequence[Job]) -> set[int]:
    """Ids of the borrowers that have compute now; takes it from ``room``."""
    on: set[int] = set()
    for job in awake:
        if job.kind is JobKind.KERNEL and room.fits(job):
            room.take(job)
            on.add(job.id)
    others = [job for job in awake if job.kind is not JobKind.KERNEL]
    going = [job for job in others if is_on(job)]
    for job in going:
        room.take(job)
    stopped = _victims(room, going)
    for job in stopped:
        room.give(job)
    on |= {job.id for job in going} - {job.id for job in stopped}
    blocked: set[str] = set()
    for job in others:
        if job.id in on:
            continue
        gpus = {grant.gpu for grant in room.grants(job)}
        if not gpus & blocked and room.fits(job):
            room.take(job)
            on.add(job.id)
        else:
            blocked |= gpus  # nobody that came later goes on before it
    return on


def _victims(room: _Room, going: Sequence[Job]) -> list[Job]:
    """Who has to stand still so that no GPU has more in use than there is."""
    over = room.over()
    if not over:
        return []
    candidates = [
        job for job in reversed(going) if any(grant.gpu in over for grant in _grants(job))
    ]

    def helps(jobs: Iterable[Job]) -> bool:
        freed = dict.fromkeys(over, 0)
        for job in jobs:
            for grant in _grants(job):
                if grant.gpu in freed:
                    freed[grant.gpu] += grant.compute
        return all(room.left[gpu] + freed[gpu] >= 0 for gpu in over)

    for job in candidates:
        if helps([job]):
            return [job]
    chosen: list[Job] = []
    for job in candidates:
        if helps(chosen):
            break
        chosen.append(job)
    # spare whom it can be done without, the most senior first
    for job in reversed(chosen[:-1]):
        rest = [other for other in chosen if other is not job]
        if helps(rest):
            chosen = rest
    return chosen


def _lent(
    snapshot: Snapshot, owners: Iterable[Job], resting: Sequence[Job], on: Iterable[Job]
) -> dict[int, dict[str, int]]:
    """What of each lender is in use by borrowers, by GPU; who idles longest lends first."""
    needed = _Room(snapshot)
    for job in (*owners, *on):
        needed.take(job)
    short = {gpu: -left for gpu, left in needed.left.items() if left < 0}
    lent: dict[int, dict[str, int]] = {}
    for job in sorted(resting, key=lambda job: (snapshot.idle[job.id], job.id)):
        for grant in _grants(job):
            part = min(grant.compute, short.get(grant.gpu, 0))
            if part > 0:
                short[grant.gpu] -= part
                lent.setdefault(job.id, {})[grant.gpu] = part
    return lent


def _lenders(
    job: Job, lent: Mapping[int, Mapping[str, int]]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """By GPU, whose compute is in use there by borrowers."""
    found = (
        (grant.gpu, tuple(sorted(id_ for id_, parts in lent.items() if parts.get(grant.gpu))))
        for grant in _grants(job)
    )
    return tuple((gpu, ids) for gpu, ids in found if ids)


def _in_the_way(
    job: Job, room: _Room, ahead: Sequence[Job]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """By GPU on which there is too little for a borrower: who computes there, notebooks first."""
    tight = [g.gpu for g in room.grants(job) if room.left[g.gpu] < g.compute]
    found = []
    for gpu in tight or [grant.gpu for grant in room.grants(job)]:
        there = [other for other in ahead if any(g.gpu == gpu for g in _grants(other))]
        books = [other.id for other in there if other.kind is JobKind.KERNEL]
        found.append((gpu, tuple(sorted(books or [other.id for other in there]))))
    return tuple(found)


def free_to_lend(snapshot: Snapshot, now: float, starting: Iterable[Job] = ()) -> dict[str, int]:
    """What a new borrower may have of each GPU, in thousandths.

    Only notebooks count as lenders that have rested for ``Policy.lend_after``; where a borrower
    stands still nothing is lent to another. GPUs without a lender are left out. ``starting`` are
    owners that start at this moment, with their placements.
    """
    policy = snapshot.policy
    room = _Room(snapshot)
    lenders: set[str] = set()
    closed: set[str] = set()
    for job in (*snapshot.running, *starting):
        if not job.borrows:
            if rests(snapshot, job, now, policy.lend_after):
                lenders |= {grant.gpu for grant in _grants(job)}
            else:
                room.take(job)
        elif is_on(job):
            room.take(job)
        elif not rests(snapshot, job, now, policy.lend_again):
            closed |= {grant.gpu for grant in _grants(job)}
    return {gpu: left for gpu, left in room.left.items() if gpu in lenders - closed}


def _all_of(job: Job) -> tuple[tuple[str, int], ...]:
    return tuple((grant.gpu, grant.compute) for grant in _grants(job))


def _grants(job: Job) -> Sequence[Grant]:
    return job.placement.grants if job.placement is not None else ()
