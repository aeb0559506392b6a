"""What is free of the machine from now on, and where a queue of jobs falls in it.

A timeline is a step function: from each moment to the next, one integer of ``gpuqueue.plan.lanes``
says what is free on every GPU. ``lay`` places jobs in it one by one, each at its earliest hole,
which is conservative backfill (Mu'alem and Feitelson 2001) with a vector of GPUs instead of a
count of nodes: no job touches what one placed before it has reserved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from gpuqueue.plan import holes
from gpuqueue.plan.ends import UNKNOWN
from gpuqueue.plan.items import Item, Lows, Stake
from gpuqueue.plan.lanes import COMPANY, FULL, Form, Lanes

__all__ = ["Laid", "Shaky", "Timeline"]

_ROOM = (1 << 22) - 1
assert FULL <= _ROOM


class Shaky(NamedTuple):
    """An end that is only a guess, and what comes back with it."""

    end: float
    guards: int
    slots: int


class Laid:
    """Where jobs fall: for each, its start and the marks of its GPUs.

    A start is infinite where nothing that is foreseen lets the job start. ``holds`` has the order
    and the GPUs of the jobs that keep newcomers off what may come free at any moment.
    """

    __slots__ = ("holds", "marks", "starts", "timeline")

    def __init__(self, timeline: Timeline, starts: list[float], marks: list[int]) -> None:
        self.timeline = timeline
        self.starts = starts
        self.marks = marks
        self.holds: list[tuple[int, int]] = []


class Timeline:
    """The steps: moments, and what is free from each to the next, with all guard bits set."""

    __slots__ = ("free", "lanes", "shaky", "times")

    def __init__(self, lanes: Lanes, times: list[float], free: list[int]) -> None:
        self.lanes = lanes
        self.times = times
        self.free = free
        self.shaky: list[Shaky] = []

    def copy(self) -> Timeline:
        """An independent copy."""
        twin = Timeline(self.lanes, self.times[:], self.free[:])
        twin.shaky = self.shaky[:]
        return twin

    # -- laying out --------------------------------------------------------------------------

    def lay(
        self,
        items: Sequence[Item],
        stake: Stake | None = None,
        *,
        strict: bool = False,
        eased: bool = False,
        after: float = 0.0,
    ) -> Laid:
        """Place each item in turn at its earliest hole, and reserve it.

        With a ``stake`` it ends short, the timeline spoilt, as soon as that is lost. ``strict``
        lets none start before one ahead of it, nor before ``after``. ``eased``: once one
        has to wait, or with an ``after``, loose items start now or are left out, with an infinite
        start.
        """
        shaky = self.shaky
        find_one, find = holes.finders(self.lanes)
        now = self.times[0]
        last = max(now, after) if strict or eased else now
        starts: list[float] = []
        marks: list[int] = []
        lows: dict[Form, Lows] = {}
        credited: set[int] = set()
        holds: list[tuple[int, int]] = []
        horizon = now + UNKNOWN
        stuck: dict[Form, float] = {}
        for number, item in enumerate(items):
            form, length = item.form, item.length
            if eased and item.loose and last > now:
                taken = self._squeeze(item, stuck)
                starts.append(inf if taken is None else now)
                marks.append(taken or 0)
                continue
            known = lows.get(form)
            if known is None:
                known = lows[form] = Lows(now)
            place = bisect_right(known.lengths, length)
            low = known.since[place - 1]
            if strict and last > low:
                low = last
            if low == inf:
                at, chosen = inf, 0
            else:
                at, chosen = (find_one if form.gpus == 1 else find)(self, form, length, low, known)
            if stake is not None and stake.lost(number, at):
                break
            starts.append(at)
            marks.append(chosen)
            if last < at < inf:
                last = at
            if at > low:
                known.note(length, at)
            if (shaky or at >= horizon) and now < at < inf:
                holds += self._hold(item, at, chosen, credited)
            if length >= UNKNOWN and at < inf:
                shaky.append(Shaky(at + length, chosen, form.count))
        laid = Laid(self, starts, marks)
        laid.holds = holds
        return laid

    def _squeeze(self, item: Item, stuck: dict[Form, float]) -> int | None:
        """As ``take_now``; ``stuck`` has the shortest of each form for which there was no room."""
        form = item.form
        if item.length >= stuck.get(form, inf) or not self.lanes.startable(form, self.free[0]):
            return None
        taken = self.take_now(item)
        if taken is None:
            stuck[form] = item.length
        return taken

    def place(self, item: Item, low: float) -> float:
        """Place one more job at its earliest hole from ``low`` on; its start."""
        times, free = self.times, self.free
        if low > times[0]:
            step = bisect_left(times, low)
            if step == len(times) or times[step] != low:
                times.insert(step, low)
                free.insert(step, free[step - 1])
        find = holes.finders(self.lanes)[1]
        return find(self, item.form, item.length, low, Lows(times[0]))[0]

    def book(self, item: Item, start: float, marks: int) -> None:
        """Reserve what a job was given in another layout of the same order."""
        times, free = self.times, self.free
        for moment in (start, start + item.length):
            step = bisect_left(times, moment)
            if step == len(times) or times[step] != moment:
                times.insert(step, moment)
                free.insert(step, free[step - 1])
        self.reserve(item.form, item.length, bisect_left(times, start), marks)
        if times[0] < start and (self.shaky or start >= times[0] + UNKNOWN):
            self._hold(item, start, marks, set())
        if item.length >= UNKNOWN:
            self.shaky.append(Shaky(start + item.length, marks, item.form.count))

    def take_now(self, item: Item) -> int | None:
        """Start one more job now, beside all that is reserved; its GPUs, or None."""
        common = self.open_now(item)
        return None if common is None else self.reserve(item.form, item.length, 0, common)[1]

    def open_now(self, item: Item) -> int | None:
        """Marks of the GPUs on which one more job may start now, beside all that is reserved.

        None where they are too few for it, or slots are.
        """
        times, free, lanes, form = self.times, self.free, self.lanes, item.form
        end = times[0] + item.length
        common = form.able
        for step, moment in enumerate(times):
            if moment >= end:
                break
            if not (free[step] - form.test) & lanes.slot_guard:
                return None
            if form.gpus:
                common &= lanes.fits(form, free[step], first=not step)
                if common.bit_count() < form.gpus:
                    return None
        return common

    def reserve(
        self, form: Form, length: float, at: int, marks: int, upto: int | None = None
    ) -> tuple[float, int]:
        """Take a hole that begins with step ``at``, on the best of these GPUs; start and GPUs.

        ``upto`` is the first step that is not before its end, where that is known.
        """
        times, free = self.times, self.free
        start = times[at]
        end = start + length
        if upto is None:
            upto = bisect_left(times, end, at)
        if upto == len(times) or times[upto] != end:
            times.insert(upto, end)
            free.insert(upto, free[upto - 1])
        if marks.bit_count() > form.gpus:
            marks = self._best(form, at, upto, marks)
        take = form.taking.get(marks)
        if take is None:
            take = form.taking[marks] = self.lanes.taking(form, marks)
        if upto - at < 4:
            for step in range(at, upto):
                free[step] -= take
        else:
            free[at:upto] = [level - take for level in free[at:upto]]
        return start, marks

    def _best(self, form: Form, at: int, upto: int, marks: int) -> int:
        """Best fit: the GPUs that are fullest throughout, the shared one last, then by index."""
        lanes, free = self.lanes, self.free
        if form.whole:
            lane_order = lanes.wholes
            chosen = 0
            left = form.gpus
            for lane in lane_order:
                if marks & lane.guard:
                    chosen |= lane.guard
                    left -= 1
                    if not left:
                        break
            return chosen
        rooms, guards = lanes.rooms, lanes.marks
        least = free[at] & rooms
        for step in range(at + 1, upto):
            other = free[step] & rooms
            more = ((least | guards) - other) & guards
            # where this step has less room, take its value
            mask = more - (more >> 22)
            least ^= (least ^ other) & mask
        by_company = not form.need.compute
        dear = lanes.dear
        ranked = []
        for number, lane in enumerate(lanes.lanes):
            if marks & lane.guard:
                room = least >> lane.room & _ROOM
                memory = 0
                if by_company:
                    memory = free[at] >> lane.memory & lanes.memory_mask
                else:
                    room //= COMPANY
                rank = dear.get(number, 0)
                barred = rank >= lanes.barred
                ranked.append((barred, room, memory, rank, lane.shared, number, lane.guard))
        ranked.sort()
        chosen = 0
        for each in ranked[: form.gpus]:
            chosen |= each[-1]
        return chosen

    def _hold(self, item: Item, at: float, marks: int, credited: set[int]) -> list[tuple[int, int]]:
        """Keep newcomers off what a job waits for where that may come free at any moment.

        Its start rests on the guess when a job will end that has outrun its estimate, or has
        none: nothing may go ahead on account of that guess. Slots are held but for those that
        come back with the GPUs, each counted for one job only.
        """
        lanes, form, free = self.lanes, item.form, self.free
        guesses = [(number, shaky) for number, shaky in enumerate(self.shaky) if shaky.end <= at]
        on = [(number, shaky) for number, shaky in guesses if shaky.guards & marks]
        short = not (free[0] - form.test) & lanes.slot_guard
        if not on and not (short and guesses):
            return []
        slots = form.count if not form.need.exclusive else lanes.policy.slots
        for number, shaky in on:
            if number not in credited:
                credited.add(number)
                slots -= shaky.slots
        held = [lane for lane in lanes.lanes if marks & lane.guard] if on else []
        for step in range(bisect_left(self.times, at)):
            free[step] = lanes.held_back(free[step], form, held, max(0, slots))
        return [(item.order, marks if on else 0)]
