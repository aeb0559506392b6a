"""Another size for a job that runs: whether it may have it, and what it holds then.

Growing takes what is free on each card that the job is on, at this moment: it moves no other job,
and takes nothing that a waiting job was promised. Shrinking always goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuqueue.model import WHOLE, Grant, Job, JobKind, Placement, Preset, Request
from gpuqueue.plan.board import Board, Space
from gpuqueue.plan.decide import plan
from gpuqueue.plan.need import need_of, never_fits, sizes_apart
from gpuqueue.plan.types import Need, Snapshot
from gpuqueue.plan.wording import Names
from gpuqueue.units import format_bytes, format_share

__all__ = ["resized"]


def resized(snapshot: Snapshot, job: Job, wanted: Request, now: float) -> Placement | str:
    """What a job that runs holds once it asks for ``wanted``, or why it cannot have that.

    Parameters
    ----------
    snapshot
        The machine; ``job`` is among those that run.
    wanted
        Its request with another share or memory, and nothing else changed.
    now
        Seconds since the epoch.

    Returns
    -------
    Placement or str
        On the same GPUs, in the same order; or a clause whose subject is the job, with what is
        free.
    """
    gpus = [card.gpu for card in snapshot.cards]
    placement = job.placement or Placement()
    if refused := _never(snapshot, wanted, placement):
        return refused
    need = need_of(wanted, gpus, snapshot.policy)
    others = tuple(one for one in snapshot.running if one.id != job.id)
    board = Board(replace(snapshot, running=others), now)
    spaces = {space.gpu.uuid: space for space in board.spaces}
    lacking: list[str] = []
    grants: list[Grant] = []
    for grant in placement.grants:
        space = spaces.get(grant.gpu)
        if space is None:
            return f"holds {grant.gpu}, which the queue no longer has"
        new = _grant(snapshot, job, grant, space, need)
        lacking += _lacking(space, grant, new)
        grants.append(new)
    slots = 0 if job.kind is JobKind.KERNEL else need.slots  # which takes none, see lanes
    after = Placement(tuple(grants), slots)
    if slots > placement.slots and board.used + slots > board.slots:
        left = max(0, board.slots - board.used)
        lacking.append(f"it would take {slots} slots, and {left} of {board.slots} are free")
    if lacking:
        return f"cannot grow: {'; '.join(lacking)}"
    if _grows(placement, after) and (broken := _broken(snapshot, job, after, now)):
        return f"cannot grow: {broken}"
    return after


def _never(snapshot: Snapshot, wanted: Request, placement: Placement) -> str | None:
    gpus = [card.gpu for card in snapshot.cards]
    if not placement.grants:
        return "holds no GPU, so it has no share or memory of one"
    if wanted.preset is Preset.EXCLUSIVE:
        return "has the whole machine; that has no other size"
    if not snapshot.policy.packing and wanted.preset is not Preset.LIGHT:
        return "has its GPUs for itself, for the setting packing is off"
    return never_fits(wanted, gpus, snapshot.policy)


def _grant(snapshot: Snapshot, job: Job, grant: Grant, space: Space, need: Need) -> Grant:
    """What the job holds of one of its GPUs then."""
    total = space.total
    if need.whole:
        left = 0 if total is None else max(0, total - space.outside)
        return Grant(grant.gpu, WHOLE, left, whole=True)
    memory = need.memory
    if memory is None:
        estimate = snapshot.estimates.get(job.id)
        learned = estimate is not None and estimate.memory is not None and not grant.whole
        # what earlier runs have taught does not hang on the share
        memory = grant.memory if learned else need.compute * (total or 0) // WHOLE
    return Grant(grant.gpu, need.compute, memory, whole=False)


def _lacking(space: Space, old: Grant, new: Grant) -> Iterator[str]:
    """What is not there of what the job would hold more of, as clauses."""
    held = space.held
    name = f"GPU {space.index}"
    if new.whole:
        if not old.whole and not held.empty:
            many = "another job holds" if len(space.parts) == 1 else "other jobs hold"
            yield f"{name} cannot be its own, {many} {format_share(held.compute)} of it"
        return
    free = max(0, WHOLE - held.compute)
    if new.compute > max(free, old.compute):
        yield (
            f"{name} has {format_share(free)} of its compute for it, the "
            f"{format_share(old.compute)} that it holds included, and it asks for "
            f"{format_share(new.compute)}"
        )
    if space.total is not None:
        left = max(0, space.total - space.outside - held.memory)
        if new.memory > max(left, old.memory):
            asked, there = sizes_apart(new.memory, left)
            yield (
                f"{name} has {there} of memory for it, the {format_bytes(old.memory)} that it "
                f"holds included, and it asks for {asked}"
            )


def _grows(before: Placement, after: Placement) -> bool:
    pairs = zip(before.grants, after.grants, strict=True)
    return after.slots > before.slots or any(
        new.compute > old.compute or new.memory > old.memory or new.whole > old.whole
        for old, new in pairs
    )


def _broken(snapshot: Snapshot, job: Job, after: Placement, now: float) -> str:
    """Which waiting job would come later than it was promised, and would not otherwise."""
    if not snapshot.latest:
        return ""
    grown = replace(job, placement=after)
    running = tuple(grown if one.id == job.id else one for one in snapshot.running)
    before = plan(snapshot, now).waits
    then = plan(replace(snapshot, running=running), now).waits
    jobs = {one.id: one for one in snapshot.waiting}
    for job_id, latest in snapshot.latest.items():
        was, would = before.get(job_id), then.get(job_id)
        if was is None or was.expected is None or was.expected > latest or would is None:
            continue
        if would.expected is None or would.expected > latest:
            name = Names(jobs, now).job(job_id)
            return f"{name} waits for that room, and would start later than it was promised"
    return ""
