"""Short work ahead of long work, where waiting falls and every promise still holds.

Running a job ahead of its turn is tried on paper first: it is placed now and all the others are
laid out behind it in queue order, anew. It goes ahead only if that keeps every promise and saves
more waiting than it causes, at a price that grows with the backlog. Since the plan behind it is
again one in queue order, what holds on paper now can be kept at every later moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gpuqueue.model import WHOLE
from gpuqueue.plan.ends import UNKNOWN
from gpuqueue.plan.items import Item, Stake
from gpuqueue.plan.timeline import Laid

if TYPE_CHECKING:
    from gpuqueue.plan.band import Band
    from gpuqueue.plan.lanes import Form

__all__ = ["Order", "reordered"]

_TRIES = 64
"""How many jobs are tried ahead of the others, at the most, for each that goes."""
_EFFORT = 5000
_CROWDED = 450_000
"""How many jobs may be laid out on trial in one decision: ``_EFFORT``, but fewer where many wait,
since each then takes longer: ``_CROWDED`` over their number."""
_DEEP = 500
"""With more than so many jobs laid out a few whole trials are made all the same."""
_PATIENCE = 8.0
"""A trial is given up when it owes so many times what the job that went ahead gains."""
_PRICE = 4.0
"""Waiting that must be saved for each second that others are put off, where much work waits.

The saving counts only those that wait now. Those yet to come pay for the slack that is used up and
the gaps that are torn, until the backlog is worked off: at 1, a machine with a long backlog of jobs
that pack badly is worn down by many small gains. With none at all nobody pays, and 1 is enough.
"""
_BACKLOG = 86_400.0
"""Seconds of waiting work for every GPU from which on the whole price is asked."""
_WORK = 0.5
"""What the work in a job adds, where much work waits, to the weight of its waiting, which is 1 for
the job itself.

Without it many small jobs would break up the machine before the wide ones.
"""


class Order:
    """The order that was decided on, and where it puts everybody.

    ``laid`` may be given as a function, called on first use.
    """

    def __init__(self, items: Sequence[Item], laid: Laid | Callable[[], Laid]) -> None:
        self.items = items
        self._laid = laid

    @cached_property
    def laid(self) -> Laid:
        """Starts and GPUs of the items."""
        return self._laid() if callable(self._laid) else self._laid


def reordered(band: Band, laid: Laid) -> Order:
    """The best order found, starting from the queue's own, whose layout is ``laid``."""
    policy = band.snapshot.policy
    if not (policy.reorder_slack and policy.backfill and policy.starvation_guard):
        return Order(band.items, laid)
    return _Search(band, laid).run()


class _Search:
    def __init__(self, band: Band, laid: Laid) -> None:
        self.lanes = band.lanes
        self.now = band.now
        self.horizon = band.now + UNKNOWN
        self.base = band.base
        self.ahead: list[Item] = []
        self.rest = list(band.items)
        self.laid = laid
        self.starts = laid.starts
        areas = [_area(item) for item in band.items]
        pressure = _pressure(band, sum(areas))
        self.price = 1.0 + (_PRICE - 1.0) * pressure
        self.weights = _weights(areas, _WORK * pressure)
        waiting = len(self.rest)
        self.effort = min(_EFFORT, _CROWDED // max(1, waiting))
        if waiting > _DEEP:
            self.effort = 4 * waiting

    def run(self) -> Order:
        while len(self.rest) > 1 and self._advance():
            pass
        return Order([*self.ahead, *self.rest], self.laid)

    def _advance(self) -> bool:
        """Move one job ahead; False where none is worth it."""
        for place in self._candidates():
            if self.effort <= 0:
                return False
            trial = self._try(place)
            if trial is None:
                continue
            before = len(self.ahead)
            old = self.laid
            self.laid = Laid(
                trial.timeline, old.starts[:before] + trial.starts, old.marks[:before] + trial.marks
            )
            item = self.rest.pop(place)
            del self.weights[place]
            self.ahead.append(item)
            self.base = self.base.copy()
            self.base.lay([item])
            self.starts = trial.starts[1:]
            return True
        return False

    def _candidates(self) -> list[int]:
        """Places of the jobs that could start now, the shortest first."""
        free, now = self.base.free[0], self.now
        forms = {item.form for item in self.rest}
        room = {form for form in forms if self.lanes.startable(form, free)}
        if not room:
            return []
        found = []
        seen: set[tuple[Form, float, int]] = set()
        for place, item in enumerate(self.rest):
            if item.form not in room:
                continue
            # equal jobs keep their order
            kind = (item.form, item.length, item.priority)
            start = self.starts[place]
            if start <= now:
                seen.add(kind)
            # a job whose end nobody knows is not short, one whose start nobody knows gains nothing
            elif start < self.horizon and item.movable and kind not in seen:
                seen.add(kind)
                found.append((item.length, place))
        found.sort()
        return [place for _, place in found[:_TRIES]]

    def _try(self, place: int) -> Laid | None:
        """Lay everybody out behind one job; None where a promise breaks or too little is gained."""
        rest, starts, weights = self.rest, self.starts, self.weights
        item, horizon = rest[place], self.horizon
        order = [item, *rest[:place], *rest[place + 1 :]]
        olds = [starts[place], *starts[:place], *starts[place + 1 :]]
        # never past a job that was moved up, and no promise that is broken gets worse
        limits = [
            start
            if start >= other.latest or start >= horizon or other.priority > item.priority
            else other.latest
            for other, start in zip(order, olds, strict=True)
        ]
        limits[0] = self.now
        stake = Stake(
            limits=limits,
            olds=olds,
            weights=[weights[place], *weights[:place], *weights[place + 1 :]],
            price=self.price,
            patience=_PATIENCE,
            horizon=horizon,
        )
        trial = self.base.copy().lay(order, stake)
        self.effort -= len(trial.starts) + 1
        if len(trial.starts) < len(order) or stake.balance <= 0:
            return None
        # nor on the guess when another job will end
        mine = trial.marks[0]
        for order_of, marks in trial.holds:
            if order_of < item.order and (marks & mine or not marks):
                return None
        return trial


def _pressure(band: Band, work: float) -> float:
    """How much a backlog calls for care, from 0 for none to 1: the square of how long it lasts.

    So hours of it count for little, and a day for all. Where run times are only learned it is 1:
    what is saved is a guess. ``work`` is the area of all that wait.
    """
    if band.doubtful or not band.lanes.lanes:
        return 1.0
    lasts = work / (WHOLE * len(band.lanes.lanes))
    return min(1.0, lasts / _BACKLOG) ** 2


def _area(item: Item) -> float:
    """GPU seconds of a job, in thousandths; its length where it takes no compute."""
    need = item.form.need
    length = 0.0 if item.length >= UNKNOWN else item.length
    return length * max(1, need.gpus * (need.compute or 1))


def _weights(areas: Sequence[float], of_work: float) -> list[float]:
    """What a second of each job's waiting counts."""
    mean = sum(areas) / len(areas) or 1.0
    return [1.0 + of_work * area / mean for area in areas]
