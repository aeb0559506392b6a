"""Where on a timeline a job first finds room for as long as it takes, and there is reserved.

All of these search from ``low`` on, before which it does not start, and tell ``known`` from when on
its form has room at all. They return the start, infinite where there is none, and the GPUs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from gpuqueue.plan.items import Lows
from gpuqueue.plan.lanes import Form, Lanes

if TYPE_CHECKING:
    from gpuqueue.plan.timeline import Timeline

__all__ = ["finders"]

_Find = Callable[["Timeline", Form, float, float, Lows], tuple[float, int]]


def finders(lanes: Lanes) -> tuple[_Find, _Find]:
    """What finds a hole for a job that takes one GPU, and for any other."""
    if lanes.closed or lanes.kinds:
        return _find_slowly, _find_slowly
    return _find_one, _find


def _find_one(
    line: Timeline, form: Form, length: float, low: float, known: Lows
) -> tuple[float, int]:
    """As ``_find``, for one GPU: any mark that is left will do."""
    times, free, lanes = line.times, line.free, line.lanes
    slots, fold = lanes.slot_guard, lanes.folds[0]
    test, able = form.test, form.able
    mask = able | slots
    count = len(times)
    begin = bisect_left(times, low)
    floor = low <= known.since[0]
    while True:
        # most of the steps have no room at all: look for the first that has
        for step, level in enumerate(islice(free, begin, None), begin):
            found = level - test
            if found & able and (common := found & found >> fold & mask) > slots:
                first = at = step
                break
        else:
            return inf, 0
        if floor:
            known.rise(times[at])
            floor = False
        end = times[at] + length
        while True:
            step += 1
            if step == count or times[step] >= end:
                return line.reserve(form, length, at, common ^ slots, step)
            found = free[step] - test
            marks = found & found >> fold
            if (both := marks & common) > slots:
                common = both
                continue
            common = marks & mask
            if common <= slots:
                break
            # the latest steps that still go together with this one
            at = step
            while at > first:
                found = free[at - 1] - test
                if (both := found & found >> fold & common) <= slots:
                    break
                common = both
                at -= 1
            end = times[at] + length
        begin = step + 1


def _find(line: Timeline, form: Form, length: float, low: float, known: Lows) -> tuple[float, int]:
    """Find the earliest hole where any GPUs may be the first for a job, or have any kind."""
    times, free, lanes = line.times, line.free, line.lanes
    slots, fold = lanes.slot_guard, lanes.folds[0]
    test, able, want = form.test, form.able, form.gpus
    mask = able | slots
    count = len(times)
    begin = bisect_left(times, low)
    floor = low <= known.since[0]
    while True:
        for step, level in enumerate(islice(free, begin, None), begin):
            found = level - test
            if want and (found & able).bit_count() < want:
                continue
            common = found & found >> fold & mask
            if common >= slots and common.bit_count() > want:
                first = at = step
                break
        else:
            return inf, 0
        if floor:
            known.rise(times[at])
            floor = False
        end = times[at] + length
        while True:
            step += 1
            if step == count or times[step] >= end:
                return line.reserve(form, length, at, common ^ slots, step)
            found = free[step] - test
            marks = found & found >> fold
            both = marks & common
            if both >= slots and both.bit_count() > want:
                common = both
                continue
            common = marks & mask
            if common < slots or common.bit_count() <= want:
                break
            at = step
            while at > first:
                found = free[at - 1] - test
                both = found & found >> fold & common
                if both < slots or both.bit_count() <= want:
                    break
                common = both
                at -= 1
            end = times[at] + length
        begin = step + 1


def _find_slowly(
    line: Timeline, form: Form, length: float, low: float, _: Lows
) -> tuple[float, int]:
    """As ``_find``, where it matters on which GPUs a job may be the first, or its kind."""
    times, free, lanes = line.times, line.free, line.lanes
    slot_guard, folds = lanes.slot_guard, lanes.folds
    test, able, want = form.test, form.able, form.gpus
    count = len(times)
    fits: dict[int, int] = {}
    for at in range(bisect_left(times, low), count):
        common = able
        if lanes.closed:
            common &= ~(lanes.vacant(free[at]) & lanes.closed)
        for step in range(at, count):
            marks = fits.get(step, -1)
            if marks < 0:
                found = free[step] - test
                marks = found & able
                for fold in folds:
                    marks &= found >> fold
                fits[step] = marks = marks | slot_guard if found & slot_guard else 0
            common &= marks
            if not marks & slot_guard or common.bit_count() < want:
                break
            if step + 1 == count or times[step + 1] - times[at] >= length:
                return line.reserve(form, length, at, common)
    return inf, 0
