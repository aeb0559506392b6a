"""One pass over the queue: who starts now, where, and what the others hold back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from gpuqueue.model import TERMINAL, Gpu, Job, JobState, Placement, Preset, Request
from gpuqueue.plan.board import Board, Space
from gpuqueue.plan.claim import Claim, claim
from gpuqueue.plan.need import need_of, never_fits
from gpuqueue.plan.types import Drop, Need, Policy, Snapshot

__all__ = ["Outcome", "Shapes", "in_order", "place", "run_pass", "sift"]

_BY_ARRIVAL = attrgetter("position", "id")
_BY_PRIORITY = attrgetter("request.priority")


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Sort jobs by ``Job.order``."""
    # two stable sorts on C-level keys take half the time of one on the property
    queue = sorted(jobs, key=_BY_ARRIVAL)
    queue.sort(key=_BY_PRIORITY, reverse=True)
    return queue


def sift(snapshot: Snapshot) -> tuple[list[Drop], list[Job]]:
    """Part the waiting jobs into those whose parents rule them out and those free to start.

    Jobs that still wait for a parent are in neither list.
    """
    bound: list[Job] = []
    ready: list[Job] = []
    for job in snapshot.waiting:
        (bound if job.request.after else ready).append(job)
    drops = []
    for job in in_order(bound):
        states = {parent: snapshot.parents.get(parent) for parent in job.request.after}
        if all(state is JobState.SUCCEEDED for state in states.values()):
            ready.append(job)
            continue
        bad = [
            f"job {parent}, which {_FATE[state]}"
            for parent, state in states.items()
            if state in _FATE
        ]
        if bad:
            drops.append(Drop(job.id, f"comes after {' and '.join(bad)}"))
    return drops, ready


_FATE: dict[JobState | None, str] = {
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    None: "is gone",
}
assert set(_FATE) >= TERMINAL - {JobState.SUCCEEDED}


class Shape:
    """What all requests of one form have in common. Compared by identity."""

    __slots__ = ("need", "never")

    def __init__(self, need: Need, never: str | None) -> None:
        self.need = need
        self.never = never


class Shapes:
    """Needs by the fields of the request that decide them, each worked out once."""

    def __init__(self, gpus: Sequence[Gpu], policy: Policy) -> None:
        self._gpus = gpus
        self._policy = policy
        self._known: dict[tuple[object, ...], Shape] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> Shapes:
        """Shapes for a snapshot's machine."""
        return cls([card.gpu for card in snapshot.cards], snapshot.policy)

    def __getitem__(self, request: Request) -> Shape:
        key = (request.gpus, request.share, request.memory, request.slots, request.preset)
        shape = self._known.get(key)
        if shape is None:
            shape = Shape(
                need_of(request, self._gpus, self._policy),
                never_fits(request, self._gpus, self._policy),
            )
            self._known[key] = shape
        return shape


class Outcome(NamedTuple):
    """What one pass found."""

    starts: list[tuple[Job, Placement]]
    claims: list[Claim]


def run_pass(
    board: Board, queue: Iterable[Job], shapes: Shapes, end: Callable[[Job], float]
) -> Outcome:
    """Start what fits, in order; what does not fit claims what it waits for.

    The board comes out with the starts and the claims counted in. The pass ends early when no
    slot is left to give: the claims of the jobs after that are not worked out.

    Parameters
    ----------
    queue
        Jobs whose parents have succeeded, in queue order.
    end
        Expected end of a job that starts now, in seconds since the epoch; infinite if unknown.
    """
    starts: list[tuple[Job, Placement]] = []
    claims: list[Claim] = []
    board.clear_claims()
    stuck: set[Shape] = set()
    settled: set[Shape] = set()
    if board.exclusive is not None or board.open_slots <= 0:
        return Outcome(starts, claims)
    closed = False
    for job in queue:
        if closed and _only_on_gpus(job.request):
            continue
        shape = shapes[job.request]
        if shape in settled:
            continue
        if shape.never is not None:
            settled.add(shape)
            continue
        placement = None if shape in stuck else place(board, shape.need)
        if placement is not None:
            board.take(job, placement, end(job))
            starts.append((job, placement))
        elif shape.need.exclusive:
            every = tuple(space.index for space in board.spaces)
            claims.append(Claim(job.id, every, board.slots, alone=True))
            break
        else:
            # nothing is given back during a pass: what failed once fails again
            stuck.add(shape)
            claims.append(claim(board, job, shape.need))
            if claims[-1].contested:
                settled.add(shape)
            closed = closed or all(space.claimed.whole for space in board.spaces)
        if board.open_slots <= 0 or board.exclusive is not None:
            break
    return Outcome(starts, claims)


def _only_on_gpus(request: Request) -> bool:
    """Whether it can neither start nor add a claim once every GPU is claimed whole."""
    preset = request.preset
    return request.gpus != 0 and preset is not Preset.CPU and preset is not Preset.EXCLUSIVE


def place(board: Board, need: Need) -> Placement | None:
    """Where a job of this need starts now, by best fit; None if it has to wait.

    Its GPUs come in index order.
    """
    if need.slots > board.open_slots or (need.exclusive and board.residents):
        return None
    if not need.gpus:
        return Placement((), need.slots)
    fitting = [space for space in board.spaces if space.fits(need)]
    if len(fitting) < need.gpus:
        return None
    if len(fitting) > need.gpus:
        fitting.sort(key=lambda space: _preference(space, need))
        del fitting[need.gpus :]
        fitting.sort(key=lambda space: space.index)
    return Placement(tuple(space.grant(need) for space in fitting), need.slots)


def _preference(space: Space, need: Need) -> tuple[bool, int, bool, int]:
    """Best first: a GPU already shared, the least left over, not the one meant for light jobs."""
    if need.whole:
        return (False, 0, space.shared, space.index)
    return (space.held.empty, space.left_over(need), space.shared, space.index)
