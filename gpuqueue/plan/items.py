"""What is laid out on a timeline, and what a layout on trial must keep."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from gpuqueue.model import Job
from gpuqueue.plan.ends import UNKNOWN
from gpuqueue.plan.lanes import Form

__all__ = ["Item", "Lows", "Stake"]


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


class Lows:
    """Before when no job of one form and at least some length starts, as jobs only take room.

    ``since`` goes with ``lengths``, both ascending; the first of it holds for any length.
    """

    __slots__ = ("lengths", "since")

    def __init__(self, now: float) -> None:
        self.lengths = [-inf]
        self.since = [now]

    def note(self, length: float, at: float) -> None:
        """Take in where a job of this length was placed."""
        since, lengths = self.since, self.lengths
        place = upto = bisect_right(lengths, length)
        if place == len(since):
            lengths.append(length)
            since.append(at)
            return
        while upto < len(since) and since[upto] <= at:
            upto += 1
        lengths[place:upto] = [length]
        since[place:upto] = [at]

    def rise(self, at: float) -> None:
        """Take in that no job of any length starts before that."""
        since = self.since
        since[0] = at
        upto = bisect_right(since, at, 1)
        del since[1:upto], self.lengths[1:upto]
