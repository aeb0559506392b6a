"""What would let a waiting job start now. A hint is tried before it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gpuqueue.model import WHOLE, Job, Preset, Request
from gpuqueue.plan.board import Board, Space, end_if_started
from gpuqueue.plan.passes import Shapes, run_pass
from gpuqueue.plan.types import Snapshot
from gpuqueue.units import format_bytes, format_share

__all__ = ["Trial", "hint_for"]

_GIB = 1024**3
_MIB = 1024**2


class Trial(NamedTuple):
    """The present moment, up to and including one waiting job.

    ``ahead`` are the jobs before it, in queue order, whose parents have succeeded.
    """

    snapshot: Snapshot
    now: float
    shapes: Shapes
    ahead: Sequence[Job]
    job: Job

    def starts_on(self, space: Space, request: Request) -> bool:
        """Whether the job would start on this GPU now, had it asked for that."""
        changed = replace(self.job, request=request)
        board = Board(self.snapshot, self.now)
        end = partial(end_if_started, self.snapshot, self.now)
        queue = [*self.ahead, changed]
        starts = run_pass(board, queue, self.shapes, end).starts
        return any(job is changed and place.gpus == (space.gpu.uuid,) for job, place in starts)


def hint_for(trial: Trial, board: Board) -> str:
    """One change to the request with which the job would start now; empty if none is found.

    ``board`` is the machine once this moment's starts are made.
    """
    request = trial.job.request
    if request.preset is not Preset.ONE or request.gpus not in {None, 1}:
        return ""
    if not trial.snapshot.policy.packing:
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


def _share_by_memory(space: Space, request: Request, trial: Trial) -> str:
    size = _readable(space.memory_left or 0)
    if space.held.empty or not size or not trial.starts_on(space, replace(request, memory=size)):
        return ""
    return f"with --mem, up to {format_bytes(size)}, it could share GPU {space.index} now"


def _less_memory(space: Space, request: Request, trial: Trial) -> str:
    size = _readable(space.memory_left or 0)
    if not size or not request.memory or size >= request.memory:
        return ""
    if not trial.starts_on(space, replace(request, memory=size)):
        return ""
    return f"with --mem {format_bytes(size)} or less it would fit on GPU {space.index} now"


def _smaller_share(space: Space, request: Request, trial: Trial) -> str:
    compute = WHOLE - space.held.compute
    if request.memory is None and space.total:
        compute = min(compute, (space.memory_left or 0) * WHOLE // space.total)
    compute = compute // space.gpu.grain * space.gpu.grain
    if compute <= 0 or compute >= (request.share or 0):
        return ""
    if not trial.starts_on(space, replace(request, share=compute)):
        return ""
    return f"a share of {format_share(compute)} would fit on GPU {space.index} now"
