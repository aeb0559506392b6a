"""The timeline that everything else is laid out in: the machine with what runs now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from math import inf

from gpuqueue.model import Job, Placement
from gpuqueue.plan.ends import expected_end
from gpuqueue.plan.lanes import Lanes
from gpuqueue.plan.timeline import Shaky, Timeline
from gpuqueue.plan.types import Snapshot

__all__ = ["begun", "join"]


def begun(snapshot: Snapshot, lanes: Lanes, now: float, absent: Collection[int] = ()) -> Timeline:
    """The machine with what runs now, each job until its expected end.

    A job past its estimate is taken to need a quarter of what it has run once more, a minute
    at least; one of unknown run time stays out of sight. Both are *shaky* ends. ``absent`` are
    ids of jobs that are left out.
    """
    held = []
    shaky: list[Shaky] = []
    totals: dict[int, int] = {}
    for job in snapshot.running:
        if job.id in absent:
            continue
        end, sure = expected_end(snapshot, job, now)
        parts = lanes.held(job)
        take = 0
        for shift, _, amount in parts:
            take += amount << shift
            totals[shift] = totals.get(shift, 0) + amount
        held.append((end, take, parts))
        if not sure:
            shaky.append(_shaky(lanes, job, end))
    held.sort(key=lambda each: each[0])
    full = lanes.full
    over = any(
        amount > full >> shift & ((1 << lanes.bits_at(shift)) - 1)
        for shift, amount in totals.items()
    )
    times, free = [now], [0]
    if over:
        _fill_clamped(lanes, held, times, free)
    else:
        level = (full | lanes.guards) - sum(take for _, take, _ in held)
        free[0] = level
        for end, take, _ in held:
            if end == inf:
                break
            level += take
            if end == times[-1]:
                free[-1] = level
            else:
                times.append(end)
                free.append(level)
    timeline = Timeline(lanes, times, free)
    timeline.shaky = shaky
    return timeline


def join(timeline: Timeline, snapshot: Snapshot, jobs: Iterable[Job], now: float) -> None:
    """Add running jobs that yield to what is reserved: each until its end, or until it must go.

    Whoever comes first is kept where two of them are in each other's way.
    """
    lanes, times, free = timeline.lanes, timeline.times, timeline.free
    guards = lanes.guards
    for job in jobs:
        end, sure = expected_end(snapshot, job, now)
        parts = lanes.held(job)
        take = sum(amount << shift for shift, _, amount in parts)
        upto = bisect_left(times, end)
        if upto == len(times) or times[upto] != end:
            times.insert(upto, end)
            free.insert(upto, free[upto - 1])
        for step in range(upto):
            left = free[step] - take
            if left & guards != guards:
                if not step:
                    free[0] = lanes.clamped(free[0], parts)
                break
            free[step] = left
        else:
            if not sure:
                timeline.shaky.append(_shaky(lanes, job, end))


def _shaky(lanes: Lanes, job: Job, end: float) -> Shaky:
    placement = job.placement or Placement()
    guards = 0
    for grant in placement.grants:
        lane = lanes.by_uuid.get(grant.gpu)
        guards |= lane.guard if lane else 0
    return Shaky(end, guards, placement.slots)


def _fill_clamped(
    lanes: Lanes,
    held: Sequence[tuple[float, int, list[tuple[int, int, int]]]],
    times: list[float],
    free: list[int],
) -> None:
    """Fill the steps where more is held than there is: nothing is free, rather than less."""
    ends = sorted({end for end, _, _ in held if end < inf})
    times += ends
    free.clear()
    for after in times:
        sums: dict[tuple[int, int], int] = {}
        for end, _, parts in held:
            if end > after:
                for shift, bits, amount in parts:
                    sums[shift, bits] = sums.get((shift, bits), 0) + amount
        taken = [(shift, bits, amount) for (shift, bits), amount in sums.items()]
        free.append(lanes.clamped(lanes.full | lanes.guards, taken))
