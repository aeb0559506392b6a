"""Who starts on compute that idle notebooks lend, and which borrowers get compute of their own.

A job borrows where it cannot start otherwise. Its memory and slots must be free beside all that is
reserved for others, so that it delays nobody; only its compute is lent. From then on it stays in
the queue with what it lacks, its compute on the GPUs that it is on: when its turn comes it is
*settled*, an ordinary holder.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from gpuqueue.model import WHOLE, Job, JobKind, JobState, Loan
from gpuqueue.plan.ends import left_of
from gpuqueue.plan.items import Item
from gpuqueue.plan.lanes import Form
from gpuqueue.plan.lend import free_to_lend
from gpuqueue.plan.types import Policy, Snapshot

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Decision

__all__ = ["borrowings", "claim_of", "claimants", "stranded"]

_TRIES = 8
"""How many jobs are looked at in one decision; each costs another."""
_BOUND_BY_NOTHING = 1e300
"""A latest start that is later than any: a borrower runs already, and is promised nothing more."""


def claimants(snapshot: Snapshot) -> list[Job]:
    """The borrowers that wait for compute of their own."""
    return [
        job
        for job in snapshot.running
        if job.borrows and job.state is not JobState.EVICTING and job.asked != "cancel"
    ]


def stranded(snapshot: Snapshot, now: float) -> Job | None:
    """A borrower that stands still for long and would have compute of its own if it started anew.

    It has to be one that may be run again. One at a time: where it goes, the next cannot.
    """
    from gpuqueue.plan.decide import Decision

    for job in snapshot.running:
        request, since = job.request, job.frozen_at
        again = request.restartable or request.preemptible or request.resumable
        if not (job.borrows and again and since is not None and job.kind is not JobKind.KERNEL):
            continue
        if now - since < snapshot.policy.lend_patience:
            continue
        waits = replace(
            job, state=JobState.QUEUED, placement=None, loan=None, started=None, frozen_at=None,
            position=min((other.position for other in snapshot.waiting), default=job.position) - 1,
        )  # fmt: skip
        others = tuple(other for other in snapshot.running if other.id != job.id)
        trial = replace(snapshot, running=others, waiting=(*snapshot.waiting, waits))
        if any(started.id == job.id for started, _, _ in Decision(trial, now).starts):
            return job
    return None


def claim_of(decision: Decision, job: Job, order: int) -> Item:
    """A borrower as it stands in the queue: its compute, for as long as it still runs."""
    snapshot, now = decision.snapshot, decision.now
    form = decision.lanes.claim(job)
    item = Item(job, form, max(1.0, left_of(snapshot, job, now)), order)
    item.latest = _BOUND_BY_NOTHING
    item.movable = False
    estimate = snapshot.estimates.get(job.id)
    item.loose = (estimate is not None and estimate.learned) or (
        not snapshot.policy.starvation_guard
    )
    return item


def borrowings(decision: Decision) -> list[tuple[Job, Form, int]]:
    """The jobs that start now on lent compute, in queue order, with their GPUs."""
    snapshot = decision.snapshot
    policy = snapshot.policy
    kernels = policy.overcommit > WHOLE
    lends = policy.lend != "off" and bool(snapshot.idle)
    if not (lends or kernels):
        return []
    begun = _begun(decision)
    starting = {job.id for job in begun}
    borrowed: list[Job] = []
    found: list[tuple[Job, Form, int]] = []
    failed: dict[Form, float] = {}
    tries = 0
    for item in decision.items:
        job, form = item.job, item.form
        if job.state is not JobState.QUEUED or job.id in starting:
            continue
        if item.length >= failed.get(form, inf) or not _may(policy, job, form):
            continue
        now = replace(snapshot, running=(*snapshot.running, *borrowed))
        able = _able(decision, now, begun, item)
        if able.bit_count() < form.gpus:
            continue
        tries += 1
        marks = _beside_others(decision, now, item, able)
        if marks is None:
            failed[form] = min(item.length, failed.get(form, inf))
        else:
            borrowed.append(_as_borrower(decision, job, form, marks))
            found.append((job, form, marks))
        if tries == _TRIES:
            break
    return found


def _may(policy: Policy, job: Job, form: Form) -> bool:
    """Whether it is somebody who may borrow, and asks for what may be lent: a part of a GPU."""
    need = form.need
    if not need.gpus or need.whole or need.light or not need.compute:
        return False
    if job.kind is JobKind.KERNEL:
        return policy.overcommit > WHOLE
    return policy.lend == "all" or (policy.lend == "preemptible" and job.request.preemptible)


def _able(decision: Decision, now: Snapshot, begun: list[Job], item: Item) -> int:
    """Marks of the GPUs that have so much compute to lend, and memory for it at this moment."""
    lanes, form = decision.lanes, item.form
    if item.job.kind is JobKind.KERNEL:
        left = _for_kernels(now, begun)
    else:
        left = free_to_lend(now, decision.now, begun)
    marks = 0
    for lane in lanes.lanes:
        if left.get(lane.card.gpu.uuid, 0) >= form.need.compute:
            marks |= lane.guard
    if not marks:
        return 0
    twin = lanes.without_compute(form)
    free = decision.base.free[0]
    if not (free - twin.test) & lanes.slot_guard:
        return 0
    return marks & lanes.fits(twin, free)


def _for_kernels(now: Snapshot, begun: list[Job]) -> dict[str, int]:
    """What a notebook more may have of each GPU, in thousandths, though others have it already.

    Only what notebooks hold counts: they let go of it every now and then, which jobs do not.
    """
    books = dict.fromkeys((card.gpu.uuid for card in now.cards), 0)
    jobs = dict(books)
    for job in (*now.running, *begun):
        for grant in job.placement.grants if job.placement else ():
            if grant.gpu not in books:
                continue
            if job.kind is JobKind.KERNEL:
                books[grant.gpu] += grant.compute
            elif not job.borrows:
                jobs[grant.gpu] += grant.compute
    return {
        gpu: min(now.policy.overcommit - held, WHOLE - jobs[gpu]) for gpu, held in books.items()
    }


def _beside_others(decision: Decision, now: Snapshot, item: Item, able: int) -> int | None:
    """The GPUs on which its memory and slots touch nothing that is reserved for others.

    What is reserved is laid out anew as if it were not in the queue itself. Of several, those that
    have the most compute to lend.
    """
    from gpuqueue.plan.decide import Decision

    borrowed = {job.id for job in now.running if job.borrows}
    waiting = tuple(job for job in now.waiting if job.id != item.job.id and job.id not in borrowed)
    policy = replace(now.policy, lend="off", overcommit=WHOLE)
    others = Decision(replace(now, waiting=waiting, policy=policy), decision.now)
    lanes = decision.lanes
    twin = Item(item.job, lanes.without_compute(item.form), item.length, item.order)
    twin.form.able &= able
    marks = others.reserved.open_now(twin)
    if marks is None:
        return None
    left = free_to_lend(now, decision.now, _begun(decision))
    best = sorted(
        lanes.chosen(marks),
        key=lambda lane: (-left.get(lane.card.gpu.uuid, 0), lane.shared, lane.number),
    )
    return sum(lane.guard for lane in best[: item.form.gpus])


def _begun(decision: Decision) -> list[Job]:
    """Those that start at this moment with what is their own, as they are then."""
    return [
        replace(job, state=JobState.STARTING, placement=decision.lanes.placement(form, marks))
        for job, form, marks in decision.starts
    ]


def _as_borrower(decision: Decision, job: Job, form: Form, marks: int) -> Job:
    placement = decision.lanes.placement(form, marks)
    return replace(job, state=JobState.STARTING, placement=placement, loan=Loan(borrows=True))
