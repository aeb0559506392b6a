"""What is free of the machine from now on, and where a queue of jobs falls in it.

A timeline is a step function: from each moment to the next, one integer of ``gpuqueue.plan.lanes``
says what is free on every GPU. ``lay`` places jobs in it one by one, each at its earliest hole,
which is conservative backfill (Mu'alem and Feitelson 2001) with a vector of GPUs instead of a
count of nodes: no job touches what one placed before it has reserved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import NamedTuple

from gpuqueue.model import Job, JobState, Placement
from gpuqueue.plan.lanes import COMPANY, FULL, Form, Lanes
from gpuqueue.plan.types import Snapshot

__all__ = ["UNKNOWN", "Item", "Laid", "Timeline", "end_of", "run_time"]

UNKNOWN = 1e10
"""Seconds that a job of unknown run time is laid out for: longer than anybody waits."""
_MOMENT = 1.0
_SHORTEST = 0.001
_ROOM = (1 << 22) - 1
assert FULL <= _ROOM


class Item:
    """A waiting job as it is laid out.

    ``length`` is in seconds; ``movable`` says that it may be moved ahead as short work, ``loose``
    that its length is learned, too doubtful to keep others waiting for it.
    """

    __slots__ = ("form", "job", "latest", "length", "loose", "movable", "order", "priority")

    def __init__(self, job: Job, form: Form, length: float, order: int) -> None:
        self.job = job
        self.form = form
        self.length = length
        self.order = order
        self.priority = job.request.priority
        self.latest = inf
        self.movable = length < UNKNOWN
        self.loose = False


class Shaky(NamedTuple):
    """An end that is only a guess, and what comes back with it."""

    end: float
    guards: int
    slots: int


class Stake:
    """What a layout must keep to be worth it: every limit, and in the end a balance above zero.

    Each second that a job starts earlier than in ``olds`` adds its weight to the balance, each
    second later takes ``price`` times that. A start beyond ``horizon`` counts for nothing. What
    the first job gains, so many times over as ``patience`` says, may be owed in between.
    """

    __slots__ = ("balance", "credit", "horizon", "limits", "olds", "patience", "price", "weights")

    def __init__(
        self,
        *,
        limits: Sequence[float],
        olds: Sequence[float],
        weights: Sequence[float],
        price: float,
        patience: float,
        horizon: float,
    ) -> None:
        self.limits = limits
        self.olds = olds
        self.weights = weights
        self.price = price
        self.patience = patience
        self.credit = 0.0
        self.horizon = horizon
        self.balance = 0.0

    def lost(self, number: int, at: float) -> bool:
        """Take in a job's start; whether the layout is not worth going on with."""
        if at > self.limits[number]:
            return True
        later = at - self.olds[number]
        if later and self.olds[number] < self.horizon:
            if later > 0:
                later *= self.price
            self.balance -= later * self.weights[number]
            if not number:
                self.credit = self.patience * self.balance
        return self.balance < -self.credit


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


class _Lows:
    """Before when no job of one form and at least some length starts, as jobs only take room."""

    __slots__ = ("lengths", "since")

    def __init__(self) -> None:
        self.lengths: list[float] = []
        self.since: list[float] = []

    def at(self, length: float, now: float) -> float:
        """The bound for a job of this length."""
        place = bisect_right(self.lengths, length)
        return self.since[place - 1] if place else now

    def note(self, length: float, at: float) -> None:
        """Take in where a job of this length was placed."""
        since = self.since
        place = upto = bisect_right(self.lengths, length)
        while upto < len(since) and since[upto] <= at:
            upto += 1
        self.lengths[place:upto] = [length]
        since[place:upto] = [at]


class Timeline:
    """The steps: moments, and what is free from each to the next, with all guard bits set."""

    __slots__ = ("floors", "free", "lanes", "shaky", "times")

    def __init__(self, lanes: Lanes, times: list[float], free: list[int]) -> None:
        self.lanes = lanes
        self.times = times
        self.free = free
        self.shaky: list[Shaky] = []
        self.floors: dict[Form, float] = {}

    def copy(self) -> Timeline:
        """An independent copy."""
        twin = Timeline(self.lanes, self.times[:], self.free[:])
        twin.shaky = self.shaky[:]
        return twin

    @classmethod
    def of(cls, snapshot: Snapshot, lanes: Lanes, now: float) -> Timeline:
        """The machine with what runs now, each job until its expected end.

        A job past its estimate is taken to need a quarter of what it has run once more, a minute
        at least; one of unknown run time stays out of sight. Both are *shaky* ends.
        """
        held = []
        shaky: list[Shaky] = []
        totals: dict[int, int] = {}
        for job in snapshot.running:
            end, sure = expected_end(snapshot, job, now)
            parts = lanes.held(job)
            take = 0
            for shift, _, amount in parts:
                take += amount << shift
                totals[shift] = totals.get(shift, 0) + amount
            held.append((end, take, parts))
            if not sure:
                placement = job.placement or Placement()
                guards = 0
                for grant in placement.grants:
                    lane = lanes.by_uuid.get(grant.gpu)
                    guards |= lane.guard if lane else 0
                shaky.append(Shaky(end, guards, placement.slots))
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
                level += take
                if end == times[-1]:
                    free[-1] = level
                else:
                    times.append(end)
                    free.append(level)
        timeline = cls(lanes, times, free)
        timeline.shaky = shaky
        return timeline

    # -- laying out --------------------------------------------------------------------------

    def lay(
        self,
        items: Sequence[Item],
        stake: Stake | None = None,
        *,
        strict: bool = False,
        eased: bool = False,
    ) -> Laid:
        """Place each item in turn at its earliest hole, and reserve it.

        With a ``stake`` it ends short, the timeline spoilt, as soon as that is lost. ``strict``
        lets none start before one ahead of it. ``eased``: once one has to wait, loose items
        behind it start now or are left out, with an infinite start.
        """
        lanes = self.lanes
        slowly = lanes.closed or lanes.kinds
        find = self._find_slowly if slowly else self._find
        find_one = self._find_slowly if slowly else self._find_one
        times = self.times
        now = times[0]
        last = now
        floors = self.floors
        floors.clear()
        starts: list[float] = []
        marks: list[int] = []
        lows: dict[Form, _Lows] = {}
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
                known = lows[form] = _Lows()
            low = max(known.at(length, now), floors.get(form, now))
            if strict and last > low:
                low = last
            if low == inf:
                at, chosen = inf, 0
            else:
                at, chosen = (find_one if form.gpus == 1 else find)(form, length, low)
            if stake is not None and stake.lost(number, at):
                break
            starts.append(at)
            marks.append(chosen)
            if last < at < inf:
                last = at
            known.note(length, at)
            if now < at < inf and (self.shaky or at >= horizon):
                holds += self._hold(item, at, chosen, credited)
            if length >= UNKNOWN and at < inf:
                self.shaky.append(Shaky(at + length, chosen, form.count))
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
        find = self._find_slowly if self.lanes.closed or self.lanes.kinds else self._find
        return find(item.form, item.length, low)[0]

    def book(self, item: Item, start: float, marks: int) -> None:
        """Reserve what a job was given in another layout of the same order."""
        times, free = self.times, self.free
        for moment in (start, start + item.length):
            step = bisect_left(times, moment)
            if step == len(times) or times[step] != moment:
                times.insert(step, moment)
                free.insert(step, free[step - 1])
        self._reserve(item.form, item.length, bisect_left(times, start), marks)
        if times[0] < start and (self.shaky or start >= times[0] + UNKNOWN):
            self._hold(item, start, marks, set())
        if item.length >= UNKNOWN:
            self.shaky.append(Shaky(start + item.length, marks, item.form.count))

    def take_now(self, item: Item) -> int | None:
        """Start one more job now, beside all that is reserved; its GPUs, or None."""
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
        return self._reserve(form, item.length, 0, common)[1]

    def _find_one(self, form: Form, length: float, low: float) -> tuple[float, int]:
        """As ``_find``, for one GPU: any mark that is left will do."""
        times, free, lanes = self.times, self.free, self.lanes
        slot_guard, fold = lanes.slot_guard, lanes.folds[0]
        test, able = form.test, form.able
        count = len(times)
        step = bisect_left(times, low)
        for now_free in islice(free, step, None):
            found = now_free - test
            if found & found >> fold & able and found & slot_guard:
                break
            step += 1
        if step == count:
            return inf, 0
        first = at = step
        if low <= self.floors.get(form, times[0]):
            self.floors[form] = times[at]
        fits: list[int] = []
        common = able
        begun = times[at]
        while True:
            found = free[step] - test
            marks = found & found >> fold & able if found & slot_guard else 0
            both = common & marks
            if both:
                common = both
            elif not marks:
                common = able
                at = step + 1
                begun = times[at] if at < count else inf
            else:
                common = marks
                back = step
                while back > at:
                    both = common & fits[back - 1 - first]
                    if not both:
                        break
                    common = both
                    back -= 1
                at = back
                begun = times[at]
            fits.append(marks)
            step += 1
            if step == count:
                if at == step:
                    return inf, 0
                break
            if times[step] - begun >= length:
                break
        return self._reserve(form, length, at, common)

    def _find(self, form: Form, length: float, low: float) -> tuple[float, int]:
        """Find the earliest hole from ``low`` on, reserve it, return its start and GPUs."""
        times, free, lanes = self.times, self.free, self.lanes
        slot_guard, fold = lanes.slot_guard, lanes.folds[0]
        test, able, want = form.test, form.able, form.gpus
        count = len(times)
        step = bisect_left(times, low)
        # most of the steps have no room at all: look for the first that has
        if want:
            for now_free in islice(free, step, None):
                found = now_free - test
                marks = found & found >> fold & able
                if marks and found & slot_guard and marks.bit_count() >= want:
                    break
                step += 1
        if step == count:
            return inf, 0
        first = at = step
        if low <= self.floors.get(form, times[0]):
            self.floors[form] = times[at]
        fits: list[int] = []
        common = able
        while True:
            found = free[step] - test
            marks = found & found >> fold & able if found & slot_guard else -1
            both = common & marks
            if marks >= 0 and both.bit_count() >= want:
                common = both
            elif marks < 0 or marks.bit_count() < want:
                common = able
                at = step + 1
            else:
                # the latest steps that still go together with this one
                common = marks
                back = step
                while back > at:
                    both = common & fits[back - 1 - first]
                    if both.bit_count() < want:
                        break
                    common = both
                    back -= 1
                at = back
            fits.append(marks)
            step += 1
            if step == count:
                if at == step:
                    return inf, 0
                break
            if at < step and times[step] - times[at] >= length:
                break
        return self._reserve(form, length, at, common)

    def _find_slowly(self, form: Form, length: float, low: float) -> tuple[float, int]:
        """As ``_find``, where it matters on which GPUs a job may be the first, or its kind."""
        times, free, lanes = self.times, self.free, self.lanes
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
                    return self._reserve(form, length, at, common)
        return inf, 0

    def _reserve(self, form: Form, length: float, at: int, marks: int) -> tuple[float, int]:
        times, free = self.times, self.free
        start = times[at]
        end = start + length
        upto = bisect_left(times, end, at)
        if upto == len(times) or times[upto] != end:
            times.insert(upto, end)
            free.insert(upto, free[upto - 1])
        if marks.bit_count() > form.gpus:
            marks = self._best(form, at, upto, marks)
        take = form.takes[-1]
        for lane, part in zip(self.lanes.lanes, form.takes, strict=False):
            if marks & lane.guard:
                take += part
        for step in range(at, upto):
            free[step] -= take
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
        ranked = []
        for number, lane in enumerate(lanes.lanes):
            if marks & lane.guard:
                room = least >> lane.room & _ROOM
                if by_company:
                    memory = free[at] >> lane.memory & lanes.memory_mask
                    ranked.append((room, memory, lane.shared, number, lane.guard))
                else:
                    ranked.append((room // COMPANY, 0, lane.shared, number, lane.guard))
        ranked.sort()
        chosen = 0
        for each in ranked[: form.gpus]:
            chosen |= each[4]
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


def _fill_clamped(
    lanes: Lanes,
    held: Sequence[tuple[float, int, list[tuple[int, int, int]]]],
    times: list[float],
    free: list[int],
) -> None:
    """Fill the steps where more is held than there is: nothing is free, rather than less."""
    ends = sorted({end for end, _, _ in held})
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


def run_time(snapshot: Snapshot, job: Job) -> float | None:
    """Expected run time in seconds: the estimate, else what the request says; None if unknown."""
    estimate = snapshot.estimates.get(job.id)
    if estimate is not None and estimate.run_time is not None:
        return estimate.run_time
    return job.request.eta


def length_of(snapshot: Snapshot, job: Job) -> float:
    """Seconds to lay a job out for."""
    seconds = run_time(snapshot, job)
    return UNKNOWN if seconds is None else max(_SHORTEST, seconds)


def end_of(snapshot: Snapshot, job: Job, now: float) -> float:
    """When a running job was expected to end, in seconds since the epoch, by its estimate.

    In the past where it has outrun it; infinite where unknown, as for a frozen job; minus
    infinite for a job that is being evicted, which ends at any moment.
    """
    if job.state is JobState.EVICTING:
        return -inf
    if job.state is JobState.FROZEN:
        return inf
    seconds = run_time(snapshot, job)
    if seconds is None:
        return inf
    return (now if job.started is None else job.started) + seconds


def expected_end(snapshot: Snapshot, job: Job, now: float) -> tuple[float, bool]:
    """When a running job is expected to end, after ``now``, and whether others may rely on it."""
    end = end_of(snapshot, job, now)
    if now < end < inf:
        return end, True
    if end == inf:
        return now + UNKNOWN, False
    if end == -inf:
        return now + _MOMENT, False
    ran = now - (now if job.started is None else job.started)
    # one that was only learned from other runs was a guess from the first: it is made anew
    estimate = snapshot.estimates.get(job.id)
    learned = estimate is not None and estimate.learned
    return now + max(60.0, ran // 4), learned
