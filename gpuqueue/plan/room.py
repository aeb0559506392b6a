"""Why a notebook's kernel cannot start now, who is in its way, and what would fit."""

from __future__ import annotations

from dataclasses import replace

from gpuqueue.model import WHOLE, Job, JobKind, Loan, Request
from gpuqueue.plan.board import Board, Space
from gpuqueue.plan.decide import Plan
from gpuqueue.plan.types import WaitReason
from gpuqueue.plan.wording import Names, strangers
from gpuqueue.units import format_bytes, format_share

__all__ = ["asked_words", "refusal"]

_HOLDERS = 6
_CELLS = "Cells can be queued without a share."
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
    """Why a kernel that the plan does not start has no room now, in short plain lines.

    They name what is left of each GPU, by whom the rest is held, and what to do. JupyterLab shows
    them in a dialog that breaks no line by itself.
    """
    lead = f"There is no room now for {asked_words(job.request)}"
    wait = plan.waits.get(job.id)
    if not plan.snapshot.cards:
        return f"{lead}: this machine has no GPU that the queue may use."
    if wait is not None and wait.reason in _ELSEWHERE:
        return f"{lead}: {wait.sentence}."
    snapshot = plan.snapshot
    board = Board(snapshot, plan.now)
    jobs = {other.id: other for other in (*snapshot.waiting, *snapshot.running)}
    for start in plan.starts:
        loan = Loan(borrows=True) if start.borrows else None
        board.take(replace(jobs[start.job], loan=loan), start.placement, plan.now)
    names = Names(jobs, plan.now)
    lines = [f"{lead}."]
    for space in board.spaces:
        lines += _space_lines(space, names)
    if wait is not None and wait.reason is WaitReason.RESERVATION:
        lines.append(f"{wait.sentence[0].upper()}{wait.sentence[1:]}.")
        lines.append("Wait for that job or cancel it, or ask for less.")
        return "\n".join([*lines, _CELLS])
    return "\n".join([*lines, *_way_out(board, jobs)])


def _space_lines(space: Space, names: Names) -> list[str]:
    where = f"GPU {space.index}"
    if space.drained:
        return [f"{where} takes no new work."]
    if space.held.empty and not space.free:
        return [f"{where} is used outside the queue by {strangers(space)}."]
    left = f"{where} has {_left_words(space)} left"
    numbers = sorted(space.parts)
    holders = [f"{names.job(number)} has {_part_words(space, number)}" for number in numbers]
    if len(holders) > _HOLDERS:
        holders[_HOLDERS:] = [f"and {len(holders) - _HOLDERS} more"]
    if space.outside:
        holders.append(f"{format_bytes(space.outside)} are used outside the queue")
    return [f"{left}:", *(f"    {holder}" for holder in holders)] if holders else [f"{left}."]


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


def _way_out(board: Board, jobs: dict[int, Job]) -> list[str]:
    kinds = {jobs[number].kind for space in board.spaces for number in space.parts}
    # no per cent sign: what a server puts into its answer for a dialog, it doubles
    way = "Ask for less, or try again when a job has ended."
    if JobKind.KERNEL in kinds:
        way = "Shut one of these notebooks down, or release its share in it, or ask for less."
    return [way, _CELLS]
