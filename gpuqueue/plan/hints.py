"""What would let a waiting job start now. A hint is tried before it is given."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpuqueue.model import WHOLE, Job, JobKind, Preset, Request
from gpuqueue.plan.board import Board, Space
from gpuqueue.plan.items import Item
from gpuqueue.plan.timeline import Timeline
from gpuqueue.plan.wording import Names, is_own
from gpuqueue.units import format_bytes, format_share

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Decision

__all__ = ["FIRST", "HINTED", "hint_for"]

HINTED = 50
"""How many jobs from the front of the queue get a hint."""
FIRST = 3
"""How many of those are told which notebook is in their way: each trial is a whole plan."""
_TRIED = 8
_GIB = 1024**3
_MIB = 1024**2


class _Trial(NamedTuple):
    """One waiting job, and the machine with what is reserved ahead of it."""

    decision: Decision
    timeline: Timeline
    item: Item

    def starts_on(self, space: Space, request: Request) -> bool:
        """Whether the job would start on this GPU now, had it asked for that."""
        from gpuqueue.plan.decide import Decision

        decision, item = self.decision, self.item
        changed = replace(item.job, request=request)
        form = decision.forms.of(changed)
        if form.never is not None:
            return False
        decision.lanes.compile(form)
        guard = decision.lanes.by_uuid[space.gpu.uuid].guard
        marks = self.timeline.copy().take_now(Item(changed, form, item.length, item.order))
        if marks != guard:
            return False
        # others may be moved ahead of it: only the whole decision tells
        snapshot = decision.snapshot
        waiting = tuple(changed if job.id == changed.id else job for job in snapshot.waiting)
        again = Decision(replace(snapshot, waiting=waiting), decision.now)
        return any(job is changed and at == guard for job, _, at in again.starts)


def hint_for(
    decision: Decision, timeline: Timeline, item: Item, board: Board, *, others: bool
) -> str:
    """One change to the request with which the job would start now; empty if none is found.

    ``timeline`` holds what is reserved ahead of it, ``board`` is the machine once this moment's
    starts are made. With ``others`` it may also be that another's notebook lets go.
    """
    hint = _smaller(decision, timeline, item, board)
    kernels = [job for job in decision.snapshot.running if job.kind is JobKind.KERNEL]
    own = [kernel for kernel in kernels if is_own(kernel, item.job)]
    if own:
        way = "%gpu release gives back what this notebook's kernel holds, so that it could start"
        found = way if _starts_without(decision, item, own) else ""
        return "; ".join(text for text in (hint, found) if text)
    if hint or not others:
        return hint
    for kernel in kernels[:_TRIED]:
        if _starts_without(decision, item, [kernel]):
            who = Names({kernel.id: kernel}, decision.now).job(kernel.id)
            return (
                f"it could start if {who} were shut down, or let go: `gpuqueue release {kernel.id}`"
            )
    return ""


def _starts_without(decision: Decision, item: Item, gone: Collection[Job]) -> bool:
    """Whether a job would start now if some that run were not there."""
    from gpuqueue.plan.decide import Decision

    snapshot = decision.snapshot
    left = tuple(job for job in snapshot.running if job not in gone)
    again = Decision(replace(snapshot, running=left), decision.now)
    return any(job.id == item.job.id for job, _, _ in again.starts)


def _smaller(decision: Decision, timeline: Timeline, item: Item, board: Board) -> str:
    trial = _Trial(decision, timeline, item)
    request = item.job.request
    if request.preset is not Preset.ONE or request.gpus not in {None, 1}:
        return ""
    if not decision.snapshot.policy.packing:
        return ""
    spaces = sorted(
        (s for s in board.spaces if not s.held.light),
        key=lambda s: (-(s.memory_left or 0), s.index),
    )
    for space in spaces:
        if request.share is None and request.memory is None:
            hint = _share_by_memory(space, request, trial)
        elif request.share is None:
            hint = _less_memory(space, request, trial)
        else:
            hint = _smaller_share(space, request, trial)
        if hint:
            return hint
    return ""


def _readable(size: int) -> int:
    """The largest size at most this that prints without rounding: whole GiB, else whole MiB."""
    return size // _GIB * _GIB or size // _MIB * _MIB


def _readable_above(size: int) -> int:
    step = _GIB if size >= _GIB else _MIB
    return -(-size // step) * step


def _share_by_memory(space: Space, request: Request, trial: _Trial) -> str:
    size = _readable(space.memory_left or 0)
    estimate = trial.decision.snapshot.estimates.get(trial.item.job.id)
    learned = None if estimate is None else estimate.memory
    if learned is not None:
        if _readable_above(learned) > size:
            return ""  # what would let it start is known to be too little for it
        size = _readable_above(learned)
    if space.held.empty or not size or not trial.starts_on(space, replace(request, memory=size)):
        return ""
    if learned is None:
        return f"with --mem, up to {format_bytes(size)}, it could share GPU {space.index} now"
    enough = f"--mem {format_bytes(size)} should be enough, by earlier runs of this command"
    return f"{enough}; with it, it could share GPU {space.index} now"


def _less_memory(space: Space, request: Request, trial: _Trial) -> str:
    size = _readable(space.memory_left or 0)
    if not size or not request.memory or size >= request.memory:
        return ""
    if not trial.starts_on(space, replace(request, memory=size)):
        return ""
    return f"with --mem {format_bytes(size)} or less it would fit on GPU {space.index} now"


def _smaller_share(space: Space, request: Request, trial: _Trial) -> str:
    compute = WHOLE - space.held.compute
    if trial.item.form.need.memory is None and space.total:
        compute = min(compute, (space.memory_left or 0) * WHOLE // space.total)
    compute = compute // space.gpu.grain * space.gpu.grain
    if compute <= 0 or compute >= (request.share or 0):
        return ""
    if not trial.starts_on(space, replace(request, share=compute)):
        return ""
    return f"a share of {format_share(compute)} would fit on GPU {space.index} now"
