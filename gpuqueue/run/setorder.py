"""In which order a set is gone through, kept on its way between processes.

That is the order of its table, and where two elements want the same place it depends on which came
first. A pickle adds them in the order of the table, so ``{7, 15}``, which is gone through as
15, 7, would come as 7, 15. Found here is an order of adding that gives the same table: from the
places that CPython's probing allows (``Objects/setobject.c``: nine neighbours, then jumps by the
rest of the hash), checked by doing it. Where none is found, such as for a set that has shrunk or
was joined with another, it comes as pickle has it; and strings have other hashes in each process
unless ``PYTHONHASHSEED`` is set.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["adding_order", "orders_of", "put_orders"]

_MOST = 500
"""Elements of a set beyond which nothing is done: it would take longer than the pickle."""
_FEW = 5
_STEPS = 20_000
_NEIGHBOURS, _SHIFT = 9, 5


def adding_order(value: set[Any]) -> list[Any] | None:
    """Its elements so that adding them makes a set in its order; None if none is known."""
    wanted = list(value)
    if len(wanted) > _MOST:
        return None
    if _gives(wanted, wanted):
        return wanted
    if len(wanted) <= _FEW:
        ways: Iterator[Any] = itertools.permutations(wanted)
        return next((list(way) for way in ways if _gives(way, wanted)), None)
    for size in (32 << n for n in range(0, 10, 2)):
        if len(wanted) * 5 >= size * 3 + 5:
            continue
        way = _way(wanted, size - 1)
        if way is not None and _gives(way, wanted):
            return way
        break
    return None


def orders_of(memo: Mapping[int, tuple[int, Any]]) -> dict[int, list[int]]:
    """For what a pickler has sent: by number, in which order to add again what was loaded."""
    found = {}
    seeded = os.environ.get("PYTHONHASHSEED", "random") != "random"
    for number, value in memo.values():
        if type(value) is set and 1 < len(value) <= _MOST:
            if not seeded and isinstance(next(iter(value)), str | bytes):
                continue  # they have other hashes there
            came = list(set(list(value)))  # as the pickle has them  # noqa: C414
            if not all(map(operator.is_, came, value)) and (order := adding_order(value)):
                places = {id(one): place for place, one in enumerate(came)}
                found[number] = [places[id(one)] for one in order]
    return found


def put_orders(objects: Mapping[int, Any], orders: Mapping[int, list[int]]) -> None:
    """Add again what has been loaded, in the order that its sender has found."""
    for number, order in orders.items():
        value = objects.get(number)
        if type(value) is set and len(value) == len(order):
            came = list(value)
            value.clear()
            value.update([came[place] for place in order])


def _gives(way: Any, wanted: list[Any]) -> bool:
    return all(map(operator.is_, set(way), wanted))


def _places(value: Any, mask: int) -> Iterator[int]:
    """The places of a table that an element looks at, in turn."""
    rest = hash(value) & ((1 << 64) - 1)
    place = rest & mask
    while True:
        yield place
        if place + _NEIGHBOURS <= mask:
            yield from range(place + 1, place + _NEIGHBOURS + 1)
        rest >>= _SHIFT
        place = (place * 5 + 1 + rest) & mask


def _way(wanted: list[Any], mask: int) -> list[Any] | None:
    """An order of adding by which these may have come to be in this order in such a table."""
    looked = [list(itertools.islice(_places(one, mask), 32)) for one in wanted]
    at = _placed(looked, mask)
    if at is None:
        return None
    at_home = [n for n, places in enumerate(looked) if at[n] == places[0]]
    owner = {place: n for n, place in enumerate(at)}
    order, done = list(at_home), set(at_home)
    waiting = [n for n in range(len(wanted)) if n not in done]
    while waiting:
        ready = [
            n
            for n in waiting
            if all(owner.get(p) in done for p in looked[n][: looked[n].index(at[n])])
        ]
        if not ready:
            return None
        order += ready
        done.update(ready)
        waiting = [n for n in waiting if n not in done]
    return [wanted[n] for n in order]


def _placed(looked: list[list[int]], mask: int) -> list[int] | None:
    """A place for each, in ascending order, the earliest that it looks at where that can be."""
    at: list[int] = []
    tried = [0]
    for _ in range(_STEPS):
        n = len(at)
        if n == len(looked):
            return at
        last = at[-1] if at else -1
        room = mask - (len(looked) - n - 1)
        choice = next(
            (k for k in range(tried[n], len(looked[n])) if last < looked[n][k] <= room), None
        )
        if choice is None:
            if not at:
                return None
            tried.pop()
            at.pop()
            continue
        tried[n] = choice + 1
        at.append(looked[n][choice])
        tried.append(0)
    return None
