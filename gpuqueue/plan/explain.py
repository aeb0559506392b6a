"""Why each waiting job waits, in one sentence, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from gpuqueue.model import WHOLE, Job, JobState, Loan
from gpuqueue.plan.board import Board, Space
from gpuqueue.plan.ends import UNKNOWN, expected_end, length_of
from gpuqueue.plan.hints import FIRST, HINTED, hint_for
from gpuqueue.plan.items import Item
from gpuqueue.plan.lanes import Form
from gpuqueue.plan.need import sizes_apart
from gpuqueue.plan.queue import fairly, in_order
from gpuqueue.plan.timeline import Timeline
from gpuqueue.plan.types import Need, Wait, WaitReason
from gpuqueue.plan.wording import Names, free_words, gpu_list, listed, strangers
from gpuqueue.units import format_bytes, format_share

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Decision

__all__ = ["explain"]


class _Why(NamedTuple):
    reason: WaitReason
    sentence: str


class _Reservation(NamedTuple):
    """What one waiting job holds back: these GPUs and slots, from ``start`` to ``end``."""

    item: Item
    start: float
    end: float
    marks: int


class _Scene(NamedTuple):
    """What the sentences are about: the machine as it is once this moment's starts are made."""

    decision: Decision
    board: Board
    names: Names
    reserved: Sequence[_Reservation]
    ranks: Mapping[int, int]


def explain(decision: Decision) -> dict[int, Wait]:
    """A ``Wait`` for every waiting job that is not dropped, by id, in queue order."""
    snapshot, now = decision.snapshot, decision.now
    dropped = {drop.job for drop in decision.drops}
    queue = [job for job in in_order(snapshot.waiting) if job.id not in dropped]
    if not snapshot.mode.normal:
        sentence = free_words(snapshot.mode)
        reason = WaitReason.FREE
        return {job.id: Wait(n, None, reason, sentence) for n, job in enumerate(queue, 1)}
    if snapshot.policy.fair_share:
        queue = fairly(queue, snapshot, len(decision.items))
    laid = decision.laid
    board = Board(snapshot, now)
    started = {}
    for job, form, marks in decision.starts:
        placement = decision.lanes.placement(form, marks)
        started[job.id] = placement
        board.take(job, placement, now + length_of(snapshot, job))
    for job, form, marks in decision.borrowed:
        placement = decision.lanes.placement(form, marks)
        started[job.id] = placement
        borrower = replace(job, loan=Loan(borrows=True))
        board.take(borrower, placement, now + length_of(snapshot, job))
    for job in decision.settled:
        board.settle(job)
    has = started.keys() | {job.id for job in decision.settled}
    unreserved = decision.unreserved
    reserved = [
        _Reservation(item, start, start + item.length, marks)
        for item, start, marks in zip(decision.order.items, laid.starts, laid.marks, strict=True)
        if start < inf and item.job.id not in has and item.job.id not in unreserved
    ]
    ranks = {item.job.id: rank for rank, item in enumerate(decision.order.items)}
    names = Names({job.id: job for job in (*snapshot.waiting, *snapshot.running)}, now)
    scene = _Scene(decision, board, names, reserved, ranks)
    expected = dict(decision.expected)
    _foresee_children(decision, laid.timeline.copy(), expected)
    later: dict[Form, float] = {}
    latest = _range_ends(decision)
    behind = {job.id for job in decision.behind}
    waits: dict[int, Wait] = {}
    for position, job in enumerate(queue, 1):
        if job.id in started:
            why = _starting(scene, job, started[job.id].gpus)
            waits[job.id] = Wait(position, now, *why)
        elif job.id in behind and not job.request.after:
            sentence = f"{position - 1} jobs are ahead of it"
            at = _not_before(decision, job, later)
            reason = WaitReason.RESERVATION
            waits[job.id] = Wait(position, None, reason, sentence, later_than=at)
        else:
            at = expected.get(job.id)
            by = None if at is None or job.id not in latest else max(at, latest[job.id])
            waits[job.id] = Wait(position, at, *_why(scene, job), by=by)
    _give_hints(scene, waits)
    return waits


def _give_hints(scene: _Scene, waits: dict[int, Wait]) -> None:
    decision = scene.decision
    told = 0
    for band in decision.bands:
        laid, timeline = band.order.laid, band.base.copy()
        for item, start, marks in zip(band.order.items, laid.starts, laid.marks, strict=True):
            wait = waits.get(item.job.id)  # one that borrows is in line, and does not wait
            if wait is not None and wait.reason in _HINTED_REASONS:
                told += 1
                if told > HINTED:
                    return
                hint = hint_for(decision, timeline, item, scene.board, others=told <= FIRST)
                if hint:
                    waits[item.job.id] = replace(wait, hint=hint)
            if start < inf:
                timeline.book(item, start, marks)


_HINTED_REASONS = {WaitReason.GPU, WaitReason.MEMORY, WaitReason.RESERVATION}
_CHILDREN = 500


def _foresee_children(decision: Decision, timeline: Timeline, expected: dict[int, float]) -> None:
    """Expected starts of jobs that wait for others, behind all that is reserved."""
    snapshot, now = decision.snapshot, decision.now
    ends: dict[int, float] = {
        job.id: expected_end(snapshot, job, now)[0] for job in snapshot.running
    }
    waiting = {job.id: job for job in snapshot.waiting}

    def end(parent: int) -> float:
        if snapshot.parents.get(parent) is JobState.SUCCEEDED:
            return now
        if parent in expected and parent in waiting:
            return expected[parent] + length_of(snapshot, waiting[parent])
        return ends.get(parent, inf)

    left = decision.bound[:_CHILDREN]
    # a parent may stand behind its child in the queue
    for _ in range(len(left)):
        later = []
        for job in left:
            ready = max(end(parent) for parent in job.request.after)
            if ready >= now + UNKNOWN:
                later.append(job)
                continue
            form = decision.forms.of(job)
            if form.never is not None:
                continue
            decision.lanes.compile(form)
            at = timeline.place(Item(job, form, length_of(snapshot, job), 0), ready)
            if at < now + UNKNOWN:
                expected[job.id] = at
        if len(later) == len(left):
            break
        left = later


def _range_ends(decision: Decision) -> Mapping[int, float]:
    """The latest starts that are promised, where expected ones rest on learned run times."""
    snapshot = decision.snapshot
    if not any(guess.learned for guess in snapshot.estimates.values()):
        return {}
    return {promise.job: promise.latest for promise in decision.promises} | dict(snapshot.latest)


def _not_before(decision: Decision, job: Job, later: dict[Form, float]) -> float | None:
    """The earliest moment at which a job's GPUs are free behind all that is reserved."""
    form = decision.forms.of(job)
    if form.never is not None:
        return None
    if form not in later:
        decision.lanes.compile(form)
        item = Item(job, form, 0.0, 0)
        later[form] = decision.laid.timeline.copy().place(item, decision.now)
    return later[form] if later[form] < decision.now + UNKNOWN else None


def _starting(scene: _Scene, job: Job, gpus: Sequence[str]) -> _Why:
    indexes = [space.index for space in scene.board.spaces if space.gpu.uuid in gpus]
    where = f" on {gpu_list(indexes, len(scene.board.spaces))}" if indexes else ""
    lent = any(other.id == job.id for other, _, _ in scene.decision.borrowed)
    how = ", on compute that notebooks lend while they idle" if lent else ""
    return _Why(WaitReason.STARTING, f"starts now{where}{how}")


def _why(scene: _Scene, job: Job) -> _Why:
    scene = scene._replace(names=scene.names.to(job))
    parents = scene.decision.snapshot.parents
    unmet = [p for p in job.request.after if parents.get(p) is not JobState.SUCCEEDED]
    form = scene.decision.forms.of(job)
    if form.never is not None:
        return _Why(WaitReason.NEVER, f"can never start here: {form.never}")
    if unmet:
        texts = listed([f"{parent} ({parents[parent]})" for parent in unmet])
        word = "job" if len(unmet) == 1 else "jobs"
        return _Why(WaitReason.AFTER, f"waits for {word} {texts} to succeed")
    need, board = form.need, scene.board
    if board.exclusive is not None:
        holder = scene.names.residents(board, [board.exclusive])
        return _Why(WaitReason.EXCLUSIVE, f"waits for {holder}, which runs alone, to end")
    if need.exclusive and board.residents:
        others = scene.names.residents(board, sorted(board.residents))
        return _Why(WaitReason.EXCLUSIVE, f"starts when nothing else runs: waits for {others}")
    fitting = [space for space in board.spaces if space.fits(need)]
    if len(fitting) < need.gpus:
        return _lacking_gpus(scene, need, len(fitting))
    free = board.slots - board.used
    if need.slots > free:
        verb = "is" if free == 1 else "are"
        sentence = (
            f"waits for slots: needs {need.slots}, {max(0, free)} of {board.slots} {verb} free"
        )
        return _Why(WaitReason.SLOTS, sentence)
    return _reserved(scene, job, fitting)


def _reserved(scene: _Scene, job: Job, fitting: Sequence[Space]) -> _Why:
    """It would fit, were it not for reservations ahead: name the first that is in its way."""
    decision = scene.decision
    lanes, now = decision.lanes, decision.now
    rank = scene.ranks.get(job.id, len(scene.ranks))
    end = now + length_of(decision.snapshot, job)
    where = 0
    for space in fitting:
        where |= lanes.by_uuid[space.gpu.uuid].guard
    total = len(scene.board.spaces)
    ahead = [r for r in scene.reserved if scene.ranks[r.item.job.id] < rank]
    shaky = decision.base.shaky
    for each in ahead:
        soon = each.start < end or any(
            each.marks & guess.guards and guess.end <= each.start for guess in shaky
        )
        if soon and (each.marks & where or each.item.form.need.exclusive):
            indexes = [lane.card.gpu.index for lane in lanes.chosen(each.marks)]
            what = _awaited(each.item.form.need, indexes, total)
            return _Why(WaitReason.RESERVATION, scene.names.ahead(each.item.job.id, what))
    for each in ahead:
        if each.start < end or shaky:
            what = _awaited(each.item.form.need, [], total)
            return _Why(WaitReason.RESERVATION, scene.names.ahead(each.item.job.id, what))
    return _Why(WaitReason.RESERVATION, "waits for the jobs ahead of it")


def _awaited(need: Need, indexes: Sequence[int], total: int) -> str:
    if need.exclusive:
        return "to run alone"
    if indexes:
        return f"for {gpu_list(indexes, total)}"
    return f"for {need.slots} slot{'' if need.slots == 1 else 's'}"


def _lacking_gpus(scene: _Scene, need: Need, fitting: int) -> _Why:
    """Why there are too few GPUs on which it fits, claims overlooked."""
    spaces = [s for s in scene.board.spaces if s.shared or not need.light]
    if need.whole:
        return _lacking_whole(scene, need, spaces, fitting)
    able = [s for s in spaces if s.part(need) is not None]
    open_ = [s for s in able if s.mixes(need)]
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
    blocked = [s for s in spaces if s.part(need) is not None and not s.fits(need)]
    tight = [s for s in blocked if s.mixes(need)]
    if len(tight) == len(blocked):
        return _lacking_memory(need, tight, 0)
    holding = scene.names.holding(scene.board, blocked)
    got = ""
    if need.gpus > 1:
        got = f", {fitting or 'none'} {'are' if fitting > 1 else 'is'} free"
    return _Why(_blocked_reason(blocked), f"waits for {_gpus_text(need)}{got}: {holding}")


def _blocked_reason(blocked: Sequence[Space]) -> WaitReason:
    if any(space.drained for space in blocked):
        return WaitReason.DRAINED
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
