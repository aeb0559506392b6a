"""Named values there and back."""

from __future__ import annotations

import functools
import io
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.run.becoming import become
from gpuqueue.run.values import (
    dump_values,
    load_file,
    load_values,
    parse_values,
    save_values,
)


def there_and_back(values: dict[str, Any], **words: Any) -> tuple[dict[str, Any], dict[str, str]]:
    loaded = parse_values(io.BytesIO(b"".join(dump_values(values).pieces)), **words)
    return loaded.values, loaded.problems


PLAIN = st.recursive(
    st.none()
    | st.integers()
    | st.text()
    | st.binary()
    | st.booleans()
    | st.floats(allow_nan=False),
    lambda part: st.lists(part) | st.dictionaries(st.text(), part) | st.tuples(part, part),
    max_leaves=20,
)


@given(st.dictionaries(st.text(min_size=1), PLAIN))
def test_plain_values(values: dict[str, Any]) -> None:
    assert there_and_back(values) == (values, {})


def test_sharing_between_names_is_kept(tmp_path: Path) -> None:
    inner = [1]
    assert save_values(tmp_path / "v", {"a": inner, "b": {"k": inner}}) == {}
    values, problems = load_values(tmp_path / "v")
    assert not problems
    assert values["b"]["k"] is values["a"]


def test_arrays_travel_beside_the_pickle_and_stay_as_writable_as_they_were() -> None:
    np = pytest.importorskip("numpy")
    big, fixed = np.arange(100_000.0), np.arange(3)
    fixed.flags.writeable = False
    dumped = dump_values({"big": big, "view": big[:5], "fixed": fixed})
    # not copied into the stream
    assert any(
        isinstance(piece, memoryview) and piece.nbytes == big.nbytes for piece in dumped.pieces
    )
    loaded = parse_values(io.BytesIO(b"".join(dumped.pieces)))
    values = loaded.values
    assert not loaded.problems
    values["big"][0] = 7
    assert values["view"][0] == 7
    assert (values["big"][1:] == big[1:]).all()
    assert values["view"].flags.writeable
    assert not values["fixed"].flags.writeable


class Guarded:
    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.deep = {"k": [0, threading.Lock()]}


def test_one_that_cannot_be_sent_is_named_with_the_way_to_the_culprit() -> None:
    slotted = Guarded()
    slotted.deep = {}
    slotted.slot = threading.RLock()

    def uses() -> Any:
        return inner

    inner = threading.Lock()
    values = {
        "fine": [1],
        "g": Guarded(),
        "s": slotted,
        "f": uses,
        "p": functools.partial(print, threading.Lock()),
    }
    dumped = dump_values(values)
    problems = dumped.problems
    assert {name: problem.path for name, problem in problems.items()} == {
        "g": "g.deep['k'][1]",
        "s": "s.slot",
        "f": "f (uses inner)",
        "p": "p.args[0]",
    }
    assert problems["s"].kind == "RLock"
    loaded = parse_values(io.BytesIO(b"".join(dumped.pieces)))
    assert loaded.values == {"fine": [1]}
    assert loaded.problems.keys() == problems.keys()


def _refuse() -> Any:
    raise RuntimeError("no such device")


class Refuses:
    def __reduce__(self) -> Any:
        return _refuse, ()


def test_one_that_cannot_be_loaded_costs_itself_and_what_shares_with_it() -> None:
    bad, shared = Refuses(), [1, 2]
    values, problems = there_and_back(
        {"a": shared, "bad": [shared, bad], "also": [bad], "z": {"k": shared}, "f": len, "n": 3}
    )
    assert values == {"a": [1, 2], "z": {"k": [1, 2]}, "f": len, "n": 3}
    assert values["z"]["k"] is values["a"]
    assert "no such device" in problems["bad"]
    assert problems.keys() == {"bad", "also"}


def test_half_made_objects_are_not_shared() -> None:
    half: list[Any] = [1]
    half.append(Refuses())
    values, problems = there_and_back({"one": half, "two": {"k": half}, "three": 3})
    assert values == {"three": 3}
    assert "shares" in problems["two"]


def test_large_values_can_stay() -> None:
    large = bytearray(20 << 20)
    values = {"large": large, "same": [large], "small": 1}
    back, problems = there_and_back(values, most=1 << 20)
    assert back == {"small": 1}
    assert "large (20M)" in problems["large"]
    assert problems.keys() == {"large", "same"}
    assert there_and_back(values)[0] == values


def test_what_is_no_variable_is_kept_apart(tmp_path: Path) -> None:
    save_values(tmp_path / "v", {"x": 1, "<error>": ValueError("boo")})
    assert load_values(tmp_path / "v") == ({"x": 1}, {})
    assert load_file(tmp_path / "v").values.keys() == {"x", "<error>"}
    assert load_values(tmp_path / "none") == ({}, {})
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a file of gpuqueue values"):
        load_values(tmp_path / "other")


def test_a_cut_file_costs_what_is_cut(tmp_path: Path) -> None:
    save_values(tmp_path / "v", {"x": 1, "y": b"y" * 1000})
    data = (tmp_path / "v").read_bytes()
    (tmp_path / "v").write_bytes(data[:-900])
    values, problems = load_values(tmp_path / "v")
    assert values == {"x": 1}
    assert "cut short" in problems["y"]


class Thing:
    def __init__(self, k: Any) -> None:
        self.k = k


@pytest.mark.parametrize(
    ("old", "new"),
    [([1], [1, 2]), ({"a": 1}, {"b": 2}), ({1}, {2}), (bytearray(b"x"), bytearray(b"yz"))],
)
def test_become(old: Any, new: Any) -> None:
    assert become(old, new)
    assert old == new


def test_objects_and_arrays_become() -> None:
    np = pytest.importorskip("numpy")
    thing = Thing(1)
    assert become(thing, Thing(2))
    assert thing.k == 2
    array = np.zeros(2)
    assert become(array, np.ones(2))
    assert array.tolist() == [1, 1]
    longer = np.ones(3)
    assert become(array, longer)
    assert array.shape == (3,)
    assert not become([1], (1,))
    array.flags.writeable = False
    assert become(array, np.zeros(3))
    assert array.tolist() == [0, 0, 0]
    assert array.flags.writeable
    assert not become(np.frombuffer(b"12", "u1"), np.zeros(2, "u1"))


def round_trip(values: dict[str, Any]) -> dict[str, Any]:
    loaded = parse_values(io.BytesIO(b"".join(dump_values(values).pieces)))
    assert not loaded.problems
    return loaded.values


def test_objects_that_the_receiver_has_are_found_again(tmp_path: Path) -> None:
    class Both:
        """The receiver has ``inner`` under the number 3."""

        def __init__(self, value: Any) -> None:
            self.numbers = {id(value): 3}

        def number_of(self, value: Any) -> int | None:
            return self.numbers.get(id(value))

        def arrays(self) -> tuple[Any, ...]:
            return ()

    inner = [1]
    path = tmp_path / "v"
    values = {"new": {"k": inner}, "<change 3>": inner}
    assert save_values(path, values, known=Both(inner)) == {}
    mine = [0]
    loaded = load_file(path, origins={3: mine})
    assert loaded.values["new"]["k"] is mine
    assert loaded.values["<change 3>"] == [1]
    assert become(mine, loaded.values["<change 3>"])
    assert loaded.values["new"] == {"k": [1]}


def test_large_buffers_are_mapped_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    save_values(tmp_path / "v", {"big": np.zeros(1 << 20)})
    before = (tmp_path / "v").read_bytes()
    big = load_file(tmp_path / "v").values["big"]
    big += 1
    assert big.sum() == 1 << 20
    assert (tmp_path / "v").read_bytes() == before


def test_functions_that_share_a_variable_still_do() -> None:
    def pair() -> Any:
        count = 0

        def add() -> int:
            nonlocal count
            count += 1
            return count

        return add, lambda: count

    add, get = round_trip({"pair": pair()})["pair"]
    add()
    assert get() == 1


def test_exceptions_with_arguments_of_their_own() -> None:
    class Quota(Exception):
        def __init__(self, who: str, much: int) -> None:
            super().__init__(f"{who}: {much}")
            self.who = who

    made = round_trip({"e": Quota("sam", 3)})["e"]
    assert (str(made), made.who) == ("sam: 3", "sam")


def test_tensors_share_memory_and_keep_gradients_and_their_device() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(3))
    (weight * 2).sum().backward()
    base = torch.arange(6.0)
    lost = (weight * 2).sum()
    there = torch.zeros(2)
    there._gpuqueue_device = "cuda:0"
    back = round_trip({"w": weight, "base": base, "view": base[2:4], "lost": lost, "there": there})
    assert type(back["w"]) is torch.nn.Parameter
    assert back["w"].grad.tolist() == [2, 2, 2]
    back["view"].zero_()
    assert back["base"][2:4].tolist() == [0, 0]
    # here there is no GPU to put it on; the next job that has one does
    assert back["there"].device.type == "cpu"
    assert back["there"]._gpuqueue_device == "cuda:0"
    assert back["lost"].requires_grad
    assert back["lost"].item() == 6
    with pytest.raises(RuntimeError, match="stayed in the job"):
        back["lost"].backward()
