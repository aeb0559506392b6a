"""A set is gone through in the other process as it was in this one."""

from __future__ import annotations

import operator
import random
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.run.becoming import become
from gpuqueue.run.setorder import adding_order
from gpuqueue.run.values import load_file, save_values


def _same(one: Any, other: Any) -> bool:
    return list(one) == list(other)


def test_adding_in_the_order_found_gives_the_order_wanted() -> None:
    draw = random.Random(5)
    found = 0
    for _ in range(200):
        made = set(draw.sample(range(1000), draw.randrange(2, 40)))
        order = adding_order(made)
        if order is not None:
            found += 1
            assert all(map(operator.is_, set(order), made))
    assert found > 150


def test_none_is_looked_for_in_a_large_set() -> None:
    assert adding_order(set(range(0, 5_000_000, 997))) is None


@pytest.mark.parametrize(
    "made", [{7, 15}, {91, 3, 50, 58, 66}, {i**3 for i in range(60)}, {1.5, 9}]
)
def test_a_set_that_is_sent_keeps_its_order(tmp_path: Path, made: set[Any]) -> None:
    assert save_values(tmp_path / "v", {"s": made, "in": [{"k": made}], "a": (made, 1)}) == {}
    values = load_file(tmp_path / "v").values
    assert _same(values["s"], made)
    assert values["in"][0]["k"] is values["s"] is values["a"][0]
    assert not any(name.startswith("<") for name in values)


def test_a_changed_set_has_the_order_of_its_copy() -> None:
    old, new = {1, 2}, {7, 15}
    assert become(old, new)
    assert _same(old, {7, 15})
