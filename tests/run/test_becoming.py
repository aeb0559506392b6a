"""Objects that become others, and those that can only be replaced."""

from __future__ import annotations

import itertools
from typing import Any

from gpuqueue.run.becoming import become, replace, stays_as_made


class Holder:
    """Holds something."""

    def __init__(self, held: Any) -> None:
        self.held = held


def test_what_cannot_become_another_is_replaced_wherever_it_is_held() -> None:
    old, new = itertools.count(1), itertools.count(5)
    names, items, holder = {"a": old}, [0, old], Holder(old)

    def inner() -> Any:
        return old

    assert not become(old, new)
    replace(old, new)
    assert names["a"] is items[1] is holder.held is inner() is new
    assert items[0] == 0


def test_what_can_take_over_a_state() -> None:
    assert not any(map(stays_as_made, ([], {}, {1}, Holder(1), iter([1]), bytearray(b"a"))))
    assert all(map(stays_as_made, (enumerate([]), itertools.repeat(1), (1, 2), 1.5)))


def test_iterators_that_share_what_they_have_read() -> None:
    one, two = itertools.tee([1, 2, 3])
    next(one)
    data = one.__reduce__()[2][0]  # type: ignore[index]
    other, _ = itertools.tee([7, 8, 9])
    replace(data, other.__reduce__()[2][0])  # type: ignore[index]
    assert list(two) == [7, 8, 9]
    assert list(one) == [8, 9]
