"""Short work ahead of long work, where waiting falls and every promise still holds.

Running a job ahead of its turn is tried on paper first: it is placed now and all the others are
laid out behind it in queue order, anew. It goes ahead only if that lowers the sum of planned
starts (each weighed, see ``_weights``) and keeps every promise. Since the plan behind it is again
one in queue order, what holds on paper now can be kept at every later moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from gpuqueue.plan.timeline import UNKNOWN, Item, Laid, Timeline

if TYPE_CHECKING:
    from gpuqueue.plan.decide import Decision
    from gpuqueue.plan.lanes import Form

__all__ = ["Order", "reordered"]

_TRIES = 64
"""How many jobs are tried ahead of the others, at the most, for each that goes."""
_EFFORT = 600
"""How many jobs may be laid out on trial in one decision, over the first trial."""


class Order:
    """The order that was decided on, and where it puts everybody."""

    __slots__ = ("ahead", "items", "laid")

    def __init__(self, items: Sequence[Item], laid: Laid, ahead: Sequence[Item] = ()) -> None:
        self.items = items
        self.laid = laid
        self.ahead = ahead


def reordered(decision: Decision, laid: Laid) -> Order:
    """The best order found, starting from the queue's own."""
    items = decision.items
    order = Order(items, laid)
    policy = decision.snapshot.policy
    if not policy.reorder_slack or not policy.backfill:
        return order
    lanes, now = decision.lanes, decision.now
    horizon = now + UNKNOWN
    base = decision.base
    ahead: list[Item] = []
    rest = list(items)
    starts = laid.starts
    weights = _weights(items)
    effort = _EFFORT
    room: dict[Form, bool] = {}
    while len(rest) > 1:
        free = base.free[0]
        room.clear()
        candidates = []
        seen: set[tuple[Form, float, int]] = set()
        for place, item in enumerate(rest):
            # a job whose end nobody knows is not short, one whose start nobody knows gains nothing
            if not now < starts[place] < horizon or item.length >= UNKNOWN:
                continue
            form = item.form
            fits = room.get(form)
            if fits is None:
                fits = room[form] = lanes.startable(form, free)
            if not fits:
                continue
            # equal jobs keep their order
            kind = (form, item.length, item.priority)
            if kind in seen:
                continue
            seen.add(kind)
            candidates.append((item.length, place))
        candidates.sort()
        found = None
        for _, place in candidates[:_TRIES]:
            if effort <= 0:
                break
            trial, spent = _try(decision, base, rest, starts, place, weights, horizon)
            effort -= spent
            if trial is not None:
                found = place, trial
                break
        if found is None:
            break
        place, trial = found
        item = rest.pop(place)
        ahead.append(item)
        base = base.copy()
        base.lay([item])
        starts = trial.starts[1:]
        order = Order([*ahead, *rest], _joined(order, ahead, trial), tuple(ahead))
    return order


def _joined(order: Order, ahead: Sequence[Item], trial: Laid) -> Laid:
    """The trial's layout, with those that went ahead before it in front."""
    before = len(ahead) - 1
    old = order.laid
    return Laid(
        trial.timeline, old.starts[:before] + trial.starts, old.marks[:before] + trial.marks
    )


def _weights(items: Sequence[Item]) -> dict[int, float]:
    """What a second of each job's waiting counts: all alike, and a share for the work in it.

    Without the share, many small jobs would break up the machine before the wide ones.
    """
    areas = []
    for item in items:
        need = item.form.need
        compute = need.compute or 1
        area = 0.0 if item.length >= UNKNOWN else item.length * max(1, need.gpus * compute)
        areas.append(area)
    mean = sum(areas) / len(areas) or 1.0
    return {item.job.id: 1.0 + 0.5 * area / mean for item, area in zip(items, areas, strict=True)}


def _try(
    decision: Decision,
    base: Timeline,
    rest: Sequence[Item],
    starts: Sequence[float],
    place: int,
    weights: dict[int, float],
    horizon: float,
) -> tuple[Laid | None, int]:
    """Lay everybody out behind one job; None where a promise breaks or nothing is gained."""
    item = rest[place]
    now = decision.now
    order = [item, *rest[:place], *rest[place + 1 :]]
    old = [starts[place], *starts[:place], *starts[place + 1 :]]
    limits = [now]
    limits += [
        start if other.priority > item.priority or start >= horizon else max(other.latest, start)
        for other, start in zip(order[1:], old[1:], strict=True)
    ]
    trial = base.copy().lay(order, limits)
    spent = len(trial.starts)
    if spent < len(order):
        return None, spent
    change = 0.0
    for other, before, after in zip(order, old, trial.starts, strict=True):
        if before < horizon and after < inf:
            change += (after - before) * weights[other.job.id]
    return (trial if change < 0 else None), spent
