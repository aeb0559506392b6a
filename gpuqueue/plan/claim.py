"""Reservation: what a job that cannot start now holds back from the jobs behind it.

The whole policy of not starving anybody is in ``claim``. It knows no backfill: what is claimed
stays untouched until its job starts.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from gpuqueue.model import Job
from gpuqueue.plan.board import NOTHING, Board, Space
from gpuqueue.plan.need import could_hold
from gpuqueue.plan.types import Need

__all__ = ["Claim", "claim"]

_OPENS = 0
_OUTSIDE = 1
_CONTESTED = 2


class Claim(NamedTuple):
    """What one waiting job holds back.

    ``slots`` counts only those that the jobs it waits for will not give back. ``contested`` says
    that it also waits for a claim ahead of it: an identical job behind could add nothing.
    """

    job: int
    gpus: tuple[int, ...]
    slots: int
    contested: bool = False
    alone: bool = False


class _Opening(NamedTuple):
    """When a GPU is expected to open up for a need; ordered, the first is the best."""

    rank: int
    end: float
    avoid: bool
    number: int
    space: Space
    leavers: tuple[int, ...]


def claim(board: Board, job: Job, need: Need) -> Claim:
    """Claim GPUs and slots for a job that cannot start now, and count them on the board.

    It takes the GPUs that are expected to open up first: by the expected ends of the jobs there,
    then those of unknown end, then those that programs outside the queue block, last those that
    jobs ahead of it have claimed; ties by index. A sharing job claims only its own part, but
    keeps the other kind (light, not light) off that GPU.

    Ends are compared as estimated, not clamped to the present. A claimed GPU takes no newcomer
    in its job's way, so its end never moves back, and the claim cannot wander between GPUs for
    ever while jobs behind it fill the one it just left.
    """
    openings = [
        _opening(board, space, need)
        for space in board.spaces
        if could_hold(space.gpu, need) and (space.shared or not need.light)
    ]
    openings.sort(key=lambda opening: opening[:4])
    chosen = openings[: need.gpus]
    contested = any(opening.rank == _CONTESTED for opening in chosen)
    slots = max(0, need.slots - _returned(board, chosen))
    for opening in chosen:
        part = opening.space.part(need)
        assert part is not None
        opening.space.claimed.add(part)
        opening.space.claimants.append((job.id, need.slots))
    board.claimed_slots += slots
    return Claim(job.id, tuple(sorted(opening.number for opening in chosen)), slots, contested)


def _opening(board: Board, space: Space, need: Need) -> _Opening:
    """Let the GPU's jobs go in the order of their ends until the need fits."""
    avoid = space.shared and not need.light
    held = space.held.copy()
    leavers: list[int] = []
    end = -inf
    going = sorted((board.residents[job].end, job) for job in space.parts)
    for at, job in [(end, None), *going]:
        if job is not None:
            held.add(space.parts[job], -1)
            leavers.append(job)
            end = at
        if space.admits(need, held, space.claimed):
            return _Opening(_OPENS, end, avoid, space.index, space, tuple(leavers))
    if not space.admits(need, held, NOTHING):
        return _Opening(_OUTSIDE, inf, avoid, space.index, space, tuple(leavers))
    claimants = tuple(job for job, _ in space.claimants)
    return _Opening(_CONTESTED, end, avoid, space.index, space, (*leavers, *claimants))


def _returned(board: Board, chosen: list[_Opening]) -> int:
    """Slots that come back from the jobs whose leaving is waited for, each counted only once."""
    slots = 0
    for opening in chosen:
        claimants = dict(opening.space.claimants)
        for job in opening.leavers:
            if job in board.credited:
                continue
            board.credited.add(job)
            resident = board.residents.get(job)
            slots += resident.placement.slots if resident else claimants.get(job, 0)
    return slots
