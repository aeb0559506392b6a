"""Why each waiting job waits, in one sentence, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from gpuqueue.model import WHOLE, Job, JobState
from gpuqueue.plan.board import NOTHING, Board, Space, end_if_started
from gpuqueue.plan.claim import Claim
from gpuqueue.plan.forecast import forecast
from gpuqueue.plan.hints import Trial, hint_for
from gpuqueue.plan.need import sizes_apart
from gpuqueue.plan.passes import Shapes, in_order, run_pass, sift
from gpuqueue.plan.types import Need, Snapshot, Wait, WaitReason
from gpuqueue.plan.wording import Names, gpu_list, listed, strangers
from gpuqueue.units import format_bytes, format_share

__all__ = ["DEPTH", "HINTED", "explain"]

DEPTH = 200
"""How many jobs from the front of the queue get an expected start and a reason of their own."""

HINTED = 50
"""How many jobs from the front of the queue get a hint: each costs a pass or two."""


class _Why(NamedTuple):
    reason: WaitReason
    sentence: str


class _Scene(NamedTuple):
    """What the sentences are about: the machine as it is once this moment's starts are made."""

    snapshot: Snapshot
    board: Board
    shapes: Shapes
    names: Names
    claims: list[Claim]
    places: dict[int, int]


def explain(snapshot: Snapshot, now: float) -> dict[int, Wait]:
    """A ``Wait`` for every waiting job that is not dropped, by id, in queue order."""
    drops, ready = sift(snapshot)
    dropped = {drop.job for drop in drops}
    queue = [job for job in in_order(snapshot.waiting) if job.id not in dropped]
    ready = in_order(ready)
    board, shapes = Board(snapshot, now), Shapes.of(snapshot)
    outcome = run_pass(board, ready, shapes, partial(end_if_started, snapshot, now))
    started = {job.id: placement for job, placement in outcome.starts}
    expected = forecast(snapshot, now, queue[:DEPTH])
    names = Names({job.id: job for job in (*snapshot.waiting, *snapshot.running)}, now)
    places = {job.id: place for place, job in enumerate(queue)}
    scene = _Scene(snapshot, board, shapes, names, outcome.claims, places)
    waits: dict[int, Wait] = {}
    for position, job in enumerate(queue, 1):
        if job.id in started:
            why = _starting(scene, started[job.id].gpus)
            waits[job.id] = Wait(position, now, *why)
        elif position > DEPTH:
            sentence = f"{position - 1} jobs are ahead of it"
            waits[job.id] = Wait(position, None, WaitReason.RESERVATION, sentence)
        else:
            why = _why(scene, job)
            hint = ""
            if position <= HINTED and why.reason in _HINTED_REASONS:
                ahead = [other for other in ready[:position] if other.order < job.order]
                hint = hint_for(Trial(snapshot, now, shapes, ahead, job), board)
            waits[job.id] = Wait(position, expected.get(job.id), *why, hint)
    return waits


_HINTED_REASONS = {WaitReason.GPU, WaitReason.MEMORY, WaitReason.RESERVATION}


def _starting(scene: _Scene, gpus: Sequence[str]) -> _Why:
    indexes = [space.index for space in scene.board.spaces if space.gpu.uuid in gpus]
    where = f" on {gpu_list(indexes, len(scene.board.spaces))}" if indexes else ""
    return _Why(WaitReason.STARTING, f"starts now{where}")


def _why(scene: _Scene, job: Job) -> _Why:
    parents = scene.snapshot.parents
    unmet = [p for p in job.request.after if parents.get(p) is not JobState.SUCCEEDED]
    shape = scene.shapes[job.request]
    if shape.never is not None:
        return _Why(WaitReason.NEVER, f"can never start here: {shape.never}")
    if unmet:
        texts = listed([f"{parent} ({parents[parent]})" for parent in unmet])
        word = "job" if len(unmet) == 1 else "jobs"
        return _Why(WaitReason.AFTER, f"waits for {word} {texts} to succeed")
    need, board = shape.need, scene.board
    if board.exclusive is not None:
        holder = scene.names.residents(board, [board.exclusive])
        return _Why(WaitReason.EXCLUSIVE, f"waits for {holder}, which runs alone, to end")
    if need.exclusive and board.residents:
        others = scene.names.residents(board, sorted(board.residents))
        return _Why(WaitReason.EXCLUSIVE, f"starts when nothing else runs: waits for {others}")
    fitting = [space for space in board.spaces if space.fits(need, claims=False)]
    if len(fitting) < need.gpus:
        return _lacking_gpus(scene, need, len(fitting))
    free = board.slots - board.used
    if need.slots > free:
        verb = "is" if free == 1 else "are"
        sentence = (
            f"waits for slots: needs {need.slots}, {max(0, free)} of {board.slots} {verb} free"
        )
        return _Why(WaitReason.SLOTS, sentence)
    return _reserved(scene, job, need, fitting)


def _reserved(scene: _Scene, job: Job, need: Need, fitting: Sequence[Space]) -> _Why:
    """It would fit, were it not for the claims of jobs ahead: name the first that matters."""
    ahead = [c for c in scene.claims if scene.places[c.job] < scene.places[job.id]]
    taken = {space.index for space in fitting if not space.fits(need)}
    if len(fitting) - len(taken) >= need.gpus:
        taken = set()
    for claim in ahead:
        if claim.alone or taken.intersection(claim.gpus):
            sentence = scene.names.claim(claim, len(scene.board.spaces))
            return _Why(WaitReason.RESERVATION, sentence)
    for claim in ahead:
        if claim.slots:
            sentence = scene.names.claim(claim._replace(gpus=()), len(scene.board.spaces))
            return _Why(WaitReason.RESERVATION, sentence)
    return _Why(WaitReason.RESERVATION, "waits for the jobs ahead of it")


def _lacking_gpus(scene: _Scene, need: Need, fitting: int) -> _Why:
    """Why there are too few GPUs on which it fits, claims overlooked."""
    spaces = [s for s in scene.board.spaces if s.shared or not need.light]
    if need.whole:
        return _lacking_whole(scene, need, spaces, fitting)
    able = [s for s in spaces if s.part(need) is not None]
    open_ = [s for s in able if s.mixes(need, s.held, NOTHING)]
    if len(open_) < need.gpus:
        blocked = [s for s in able if s not in open_]
        reason = _blocked_reason(blocked)
        what = "the GPU for light jobs" if need.light else _gpus_text(need, "that it may share")
        return _Why(reason, f"waits for {what}: {scene.names.holding(scene.board, blocked)}")
    roomy = [s for s in open_ if _memory_fits(s, need)]
    if len(roomy) < need.gpus:
        return _lacking_memory(need, open_, len(roomy))
    return _lacking_compute(need, roomy)


def _lacking_whole(scene: _Scene, need: Need, spaces: Sequence[Space], fitting: int) -> _Why:
    blocked = [s for s in spaces if s.part(need) is not None and not s.fits(need, claims=False)]
    tight = [s for s in blocked if s.mixes(need, s.held, NOTHING)]
    if len(tight) == len(blocked):
        return _lacking_memory(need, tight, 0)
    holding = scene.names.holding(scene.board, blocked)
    got = ""
    if need.gpus > 1:
        got = f", {fitting or 'none'} {'are' if fitting > 1 else 'is'} free"
    return _Why(_blocked_reason(blocked), f"waits for {_gpus_text(need)}{got}: {holding}")


def _blocked_reason(blocked: Sequence[Space]) -> WaitReason:
    outside = blocked and all(space.held.empty for space in blocked)
    return WaitReason.OUTSIDE if outside else WaitReason.GPU


def _gpus_text(need: Need, which: str = "") -> str:
    tail = f" {which}" if which else ""
    if need.gpus > 1:
        return f"{need.gpus} {'' if which else 'free '}GPUs{tail}"
    return f"a {'' if which else 'free '}GPU{tail}"


def _memory_fits(space: Space, need: Need) -> bool:
    part, left = space.part(need), space.memory_left
    return part is not None and (left is None or part.memory <= left)


def _lacking_memory(need: Need, spaces: Sequence[Space], roomy: int) -> _Why:
    best = max(spaces, key=lambda space: (space.memory_left or 0, -space.index))
    part, left = best.part(need), best.memory_left or 0
    asked = need.memory if need.memory is not None else (part.memory if part else 0)
    wanted, most = sizes_apart(asked, left)
    place = "on one GPU" if need.gpus == 1 else f"on each of {need.gpus} GPUs"
    if roomy:
        found = f"only {roomy} of them {'has' if roomy == 1 else 'have'} that much free"
    else:
        found = f"the most that is free is {most} on GPU {best.index}"
    outside = ""
    if best.outside and not roomy:
        verb = "use" if len(best.card.holders) > 1 else "uses"
        outside = f" ({strangers(best)} {verb} it outside the queue)"
        if not best.card.holders:
            outside = f" ({format_bytes(best.outside)} are used outside the queue)"
    alone = all(space.held.empty for space in spaces)
    reason = WaitReason.OUTSIDE if alone else WaitReason.MEMORY
    return _Why(reason, f"waits for {wanted} {place}: {found}{outside}")


def _lacking_compute(need: Need, spaces: Sequence[Space]) -> _Why:
    best = max(spaces, key=lambda space: (WHOLE - space.held.compute, -space.index))
    place = "of one GPU" if need.gpus == 1 else f"of each of {need.gpus} GPUs"
    most = f"{format_share(WHOLE - best.held.compute)} of GPU {best.index}"
    if WHOLE - best.held.compute >= need.compute:
        found = "no other GPU has as much compute and memory free"
    else:
        found = f"the most that is free beside enough memory is {most}"
    return _Why(
        WaitReason.GPU, f"waits for a share of {format_share(need.compute)} {place}: {found}"
    )
