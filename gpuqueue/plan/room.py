"""Why a notebook's kernel cannot start now, who is in its way, and what would fit."""

from __future__ import annotations

from gpuqueue.model import WHOLE, Job, JobKind, Request
from gpuqueue.plan.board import Board, Space
from gpuqueue.plan.decide import Plan
from gpuqueue.plan.types import Wait, WaitReason
from gpuqueue.plan.wording import Names, listed, strangers
from gpuqueue.units import format_bytes, format_share

__all__ = ["asked_words", "refusal"]

_HOLDERS = 6
_ELSEWHERE = frozenset({WaitReason.FREE, WaitReason.AFTER, WaitReason.NEVER})
"""Reasons that who holds what does not explain."""


def asked_words(request: Request) -> str:
    """``a share of 0.25 and 20G of a GPU``."""
    parts = []
    if request.share is not None:
        parts.append(f"a share of {format_share(request.share)}")
    if request.memory is not None:
        parts.append(format_bytes(request.memory))
    what = " and ".join(parts) or "all"
    count = request.gpus or 1
    return f"{what} of a GPU" if count == 1 else f"{what} of each of {count} GPUs"


def refusal(plan: Plan, job: Job) -> str:
    """Why a kernel that the plan does not start has no room now, in a few plain sentences.

    They name what is left of each GPU, by whom the rest is held, and what to do.
    """
    asked = asked_words(job.request)
    wait = plan.waits.get(job.id)
    lead = f"There is no room now for {asked}"
    if not plan.snapshot.cards:
        return f"{lead}: this machine has no GPU that the queue may use."
    if wait is not None and wait.reason in _ELSEWHERE:
        return f"{lead}: {wait.sentence}."
    snapshot = plan.snapshot
    board = Board(snapshot, plan.now)
    jobs = {other.id: other for other in (*snapshot.waiting, *snapshot.running)}
    for start in plan.starts:
        board.take(jobs[start.job], start.placement, plan.now)
    names = Names(jobs, plan.now)
    told = [_space_words(space, names) for space in board.spaces]
    sentences = [f"{lead}.", *told]
    if why := _queued_words(wait):
        sentences.append(why)
    return " ".join([*sentences, _way_out(board, jobs)])


def _queued_words(wait: Wait | None) -> str:
    if wait is None or wait.reason is not WaitReason.RESERVATION:
        return ""
    return f"{wait.sentence[0].upper()}{wait.sentence[1:]}."


def _space_words(space: Space, names: Names) -> str:
    where = f"GPU {space.index}"
    if space.drained:
        return f"{where} takes no new work."
    if space.held.empty and not space.free:
        return f"{where} is used outside the queue by {strangers(space)}."
    left = _left_words(space)
    if space.held.empty:
        return f"{where} has {left} left."
    holders = [
        f"{names.job(number)} has {_part_words(space, number)}" for number in sorted(space.parts)
    ]
    if space.outside:
        holders.append(f"{format_bytes(space.outside)} are used outside the queue")
    return f"{where} has {left} left: {listed(holders, shown=_HOLDERS)}."


def _part_words(space: Space, number: int) -> str:
    part = space.parts[number]
    if part.whole:
        return "all of it"
    if not part.compute:
        return format_bytes(part.memory)
    return f"{format_share(part.compute)} and {format_bytes(part.memory)}"


def _left_words(space: Space) -> str:
    compute = 0 if space.held.whole else max(0, WHOLE - space.held.compute)
    if not compute or space.memory_left == 0:
        return "nothing"
    memory = "" if space.memory_left is None else f" and {format_bytes(space.memory_left)}"
    return f"{format_share(compute)} of its compute{memory}"


def _way_out(board: Board, jobs: dict[int, Job]) -> str:
    kinds = {jobs[number].kind for space in board.spaces for number in space.parts}
    # no per cent sign: what a server puts into its answer for a dialog, it doubles
    if JobKind.KERNEL in kinds:
        return (
            "Shut one of these notebooks down, or release its share in it, or ask for less. Cells "
            "can be queued without a share."
        )
    return "Ask for less, or try again when a job has ended. Cells can be queued without a share."
