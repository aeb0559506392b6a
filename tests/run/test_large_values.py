"""Large buffers: files of their own, what is written again and what is not, and what comes back."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuqueue.client import LocalClient, options_from
from gpuqueue.client.cell import cell_payload
from gpuqueue.errors import NoSpace
from gpuqueue.run import container, large, making, pickling
from gpuqueue.run.becoming import become
from gpuqueue.run.changes import Inputs
from gpuqueue.run.large import LARGE, Large, Linked, flush_gently
from gpuqueue.run.pages import Maps, changed_ranges
from gpuqueue.run.patch import Patch, patched
from gpuqueue.run.pickling import Sender
from gpuqueue.run.values import CHANGE, dump_values, load_file, load_values, save_values

np = pytest.importorskip("numpy")
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells about pages")
MANY = LARGE // 8 + 1000


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    large._known.clear()


class Cell:
    """The way of values into a job and back, in one process."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        self.mine, self.payload, self.result = values, folder / "payload", folder / "result"
        dumped = dump_values(values, beside="payload")
        assert not dumped.problems
        for name, one in dumped.large.items():
            one.store(str(folder / name), flush=False)
            one.note(str(folder / name))
        self.payload.write_bytes(b"".join(dumped.pieces))
        self.sent = dumped.objects
        loaded = load_file(self.payload)
        self.space = dict(loaded.values)
        self.inputs = Inputs(str(self.payload), loaded.values, loaded.objects, self.space, set())
        self.before = dict(self.space)

    def finish(self) -> dict[str, Any]:
        """As ``cellwork.finish`` and ``bring_back``; returns what was sent of changed objects."""
        changed, _ = self.inputs.changes()
        new = {n: v for n, v in self.space.items() if self.before.get(n) is not v}
        extras = {f"{CHANGE}{number}>": self.inputs.sent[number] for number in changed}
        assert not save_values(self.result, {**new, **extras}, known=self.inputs, let_go=True)
        values = load_file(self.result, origins=self.sent).values
        for name, value in values.items():
            if not name.startswith(CHANGE):
                self.mine[name] = value
                continue
            number = int(name.removeprefix(CHANGE).rstrip(">"))
            old = self.sent[number]
            if isinstance(value, Patch):
                assert patched(value, old, number, {}, in_place=True) is old
            else:
                assert become(old, value)
        return {name: value for name, value in values.items() if name.startswith(CHANGE)}


def links(path: Path) -> int:
    return os.stat(path).st_nlink


def test_a_large_buffer_has_a_file_of_its_own_that_only_its_owner_can_read(tmp_path: Path) -> None:
    values = {"big": np.arange(float(MANY)), "small": np.arange(10.0)}
    assert save_values(tmp_path / "v", values) == {}
    assert (tmp_path / "v").stat().st_size < 1 << 16
    assert (tmp_path / "v.0").stat().st_mode & 0o777 == 0o600
    back, problems = load_values(tmp_path / "v")
    assert not problems
    assert (back["big"] == values["big"]).all()
    before = (tmp_path / "v.0").read_bytes()
    back["big"][:] = 0
    assert (tmp_path / "v.0").read_bytes() == before


@pytest.mark.parametrize("make", [np.asfortranarray, np.transpose, lambda a: a])
@pytest.mark.parametrize("fixed", [True, False])
def test_order_and_writability_stay(tmp_path: Path, make: Any, fixed: bool) -> None:
    array = make(np.arange(float(MANY)).reshape(-1, 8)[:, :])
    array.flags.writeable = not fixed
    assert save_values(tmp_path / "v", {"a": array}) == {}
    back = load_file(tmp_path / "v").values["a"]
    assert (back == array).all()
    assert back.flags.writeable == (not fixed)
    assert (back.flags.c_contiguous, back.strides) == (array.flags.c_contiguous, array.strides)


def test_an_array_that_was_sent_before_is_linked_unless_it_has_changed(tmp_path: Path) -> None:
    array = np.arange(float(MANY))
    first, again = Cell(tmp_path / "1", {"a": array}), Cell(tmp_path / "2", {"a": array})
    assert links(tmp_path / "2" / "payload.0") == 2
    array[-1] = -1  # the very end of it
    changed = Cell(tmp_path / "3", {"a": array})
    assert links(tmp_path / "3" / "payload.0") == 1
    assert [cell.space["a"][-1] for cell in (first, again, changed)] == [MANY - 1, MANY - 1, -1]


@linux
def test_a_result_goes_into_the_next_cell_without_being_written(tmp_path: Path) -> None:
    one = Cell(tmp_path / "1", {})
    one.space["made"] = np.arange(float(MANY))
    one.finish()
    two = Cell(tmp_path / "2", one.mine)
    assert links(tmp_path / "2" / "payload.0") == 2
    assert two.space["made"][5] == 5
    one.mine["made"][7] = -1
    three = Cell(tmp_path / "3", one.mine)
    assert links(tmp_path / "3" / "payload.0") == 1
    assert three.space["made"][7] == -1


@linux
def test_of_a_large_array_only_what_has_changed_comes_back(tmp_path: Path) -> None:
    array = np.zeros(MANY)
    cell = Cell(tmp_path / "1", {"a": array, "part": array[10:20]})
    cell.space["a"][[0, MANY // 2, -1]] = 1, 2, 3
    cell.space["part"] += 5
    sent = cell.finish()
    assert all(isinstance(value, Patch) for value in sent.values())
    written = sum(file.stat().st_size for file in tmp_path.glob("1/result*"))
    assert written < 1 << 20
    expected = np.zeros(MANY)
    expected[[0, MANY // 2, -1]] = 1, 2, 3
    expected[10:20] += 5
    assert (array == expected).all()
    assert cell.mine["a"] is array
    assert cell.mine["part"].base is array


def test_all_of_it_comes_back_when_all_has_changed(tmp_path: Path) -> None:
    array = np.zeros(MANY)
    cell = Cell(tmp_path / "1", {"a": array})
    cell.space["a"] += 1
    sent = cell.finish()
    assert not any(isinstance(value, Patch) for value in sent.values())
    assert (array == 1).all()
    assert cell.mine["a"] is array


def test_a_write_that_changes_nothing_is_no_change(tmp_path: Path) -> None:
    cell = Cell(tmp_path / "1", {"a": np.ones(MANY)})
    cell.space["a"][:] = 1
    assert cell.finish() == {}


def test_tensors_that_share_a_large_storage(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    base = torch.zeros(MANY, dtype=torch.float64)
    view = base[100:200]
    cell = Cell(tmp_path / "1", {"base": base, "view": view})
    cell.space["view"][3] = 7
    cell.finish()
    assert base[103] == 7
    assert view[3] == 7
    assert base.sum() == 7
    assert view.data_ptr() == base.data_ptr() + 800


def test_a_patch_goes_onto_a_copy_where_the_object_is_no_longer_what_was_sent(
    tmp_path: Path,
) -> None:
    array = np.zeros(MANY)
    cell = Cell(tmp_path / "1", {"a": array})
    cell.space["a"][3] = 3
    changed, _ = cell.inputs.changes()
    [(number, _)] = changed.items()
    patch = cell.inputs.sent[number]
    array[7] = 7
    copies = load_file(cell.payload).objects
    whole = patched(patch, array, number, copies, in_place=False)
    assert (whole[3], whole[7], array[3]) == (3, 0, 0)
    array.flags.writeable = False
    assert patched(patch, array, number, copies, in_place=True) is whole


ARRAYS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which base
        st.integers(0, 40_000),
        st.integers(1, 140_000),
        st.sampled_from([1, 2, 3, -1, -2]),
    ),
    max_size=4,
)
WRITES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 140_000), st.integers(1, 3000), st.integers(1, 9)),
    max_size=6,
)


def _world(views: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    """Three arrays, above and below what is mapped, and views of them that overlap."""
    bases = [
        np.zeros(150_000),
        np.asfortranarray(np.zeros((400, 350))),
        np.zeros(500, np.int8),
    ]
    made = {f"base{index}": base for index, base in enumerate(bases)}
    for index, (base, start, length, step) in enumerate(views):
        flat = bases[base].T.reshape(-1) if base == 1 else bases[base]
        made[f"view{index}"] = flat[start : start + length][::step]
    return made


def _write(world: dict[str, Any], writes: list[tuple[int, int, int, int]]) -> None:
    names = sorted(world)
    for which, start, length, value in writes:
        array = world[names[which % len(names)]]
        if array.ndim == 2:
            array[start % 400, : length % 350] += value
        else:
            array[start : start + length] += value


def _same_sharing(world: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = [(one, two) for one in world for two in world if one < two]
    return all(
        np.shares_memory(world[one], world[two]) == np.shares_memory(other[one], other[two])
        for one, two in pairs
    )


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ARRAYS, WRITES)
def test_any_arrays_and_views_changed_anyhow_are_as_after_a_plain_run(
    tmp_path: Path, views: list[tuple[int, int, int, int]], writes: list[tuple[int, int, int, int]]
) -> None:
    world, plain = _world(views), _world(views)
    # the whole of a base travels with a view only if it is itself there: so it is
    before = dict(world)
    cell = Cell(tmp_path, world)
    _write(cell.space, writes)
    _write(plain, writes)
    cell.finish()
    assert all(world[name] is before[name] for name in before)
    assert all(np.array_equal(world[name], plain[name]) for name in plain)
    assert _same_sharing(world, plain)


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=1, max_size=300_000), st.lists(st.integers(0, 299_999), max_size=5))
def test_changed_ranges_hold_every_difference_and_no_more_than_they_must(
    data: bytes, places: list[int]
) -> None:
    other = bytearray(data)
    for place in places:
        if place < len(other):
            other[place] ^= 1
    ranges = changed_ranges(memoryview(data), memoryview(other))
    differing = {at for at, (a, b) in enumerate(zip(data, other, strict=True)) if a != b}
    assert all(any(start <= at < end for start, end in ranges) for at in differing)
    assert all(data[start:end] != bytes(other[start:end]) for start, end in ranges)


@linux
def test_pages_are_believed_only_for_mappings_of_the_same_place(tmp_path: Path) -> None:
    array = np.arange(float(MANY))
    for name in ("one", "two"):
        Large(array.view(np.uint8).data).store(str(tmp_path / name), flush=False)
    (tmp_path / "two").write_bytes(b"\1" * (tmp_path / "two").stat().st_size)
    start = Large(array.view(np.uint8).data).start
    one = large.map_large(str(tmp_path / "one"), start, array.nbytes)
    two = large.map_large(str(tmp_path / "two"), start, array.nbytes)
    assert changed_ranges(one, two, Maps()) == [(0, array.nbytes)]
    same = large.map_large(str(tmp_path / "one"), start, array.nbytes)
    assert changed_ranges(one, same, Maps()) == []


def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMLINK, "too many links")

    array = np.arange(float(MANY))
    Cell(tmp_path / "1", {"a": array})
    monkeypatch.setattr(os, "link", refuse)
    cell = Cell(tmp_path / "2", {"a": array})
    assert links(tmp_path / "2" / "payload.0") == 1
    assert (cell.space["a"] == array).all()
    Linked(tmp_path / "2" / "payload.0").store(str(tmp_path / "copy"), flush=True)
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "2" / "payload.0").read_bytes()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        save_values(tmp_path / "v", {"a": np.zeros(MANY)})
    assert not list(tmp_path.iterdir())


def test_a_file_beside_it_that_is_gone_or_cut_costs_its_name(tmp_path: Path) -> None:
    save_values(tmp_path / "v", {"a": np.zeros(MANY), "b": 1})
    os.truncate(tmp_path / "v.0", MANY)
    values, problems = load_values(tmp_path / "v")
    assert values == {"b": 1}
    assert "cut short" in problems["a"]
    (tmp_path / "v.0").unlink()
    values, problems = load_values(tmp_path / "v")
    assert values == {"b": 1}
    assert "FileNotFoundError" in problems["a"]


@pytest.mark.parametrize("count", [3, MANY])
def test_dates_and_structures_travel_like_numbers(tmp_path: Path, count: int) -> None:
    dates = np.arange(count).astype("M8[s]")
    pairs = np.zeros(count, [("a", "i4"), ("b", "f8")])
    cell = Cell(tmp_path, {"dates": dates, "pairs": pairs})
    assert cell.space["dates"].dtype == dates.dtype
    assert (cell.space["dates"] == dates).all()
    cell.space["dates"][1] += 5
    cell.space["pairs"]["b"][2] = 1.5
    cell.finish()
    assert dates[1] == np.datetime64(6, "s")
    assert pairs["b"][2] == 1.5


def test_what_earlier_files_name_is_still_there() -> None:
    newer = {"fill_array", "make_memmap", "make_reconstructed"}
    newer |= {"make_array_over", "make_row", "make_storage_over"}
    names = [name for name in making.__all__ if name.startswith(("make_", "fill_", "load_"))]
    names = [name for name in names if name not in newer]
    assert len(names) > 10
    assert all(getattr(pickling, name) is getattr(making, name) for name in names)


def test_files_of_the_first_version_can_be_read(tmp_path: Path) -> None:
    old = b"".join(dump_values({"a": np.arange(5.0)}).pieces)
    (tmp_path / "v").write_bytes(old.replace(b"values 2", b"values 1", 1))
    assert load_file(tmp_path / "v").values["a"].tolist() == [0, 1, 2, 3, 4]


def test_flushing_gently_reads_like_any_flush(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    flush_gently(str(tmp_path / "f"), step=1 << 14)
    assert (tmp_path / "f").read_bytes() == b"x" * 100_000
    assert container.MAPPED <= LARGE


_PEAK = """
import numpy as np, re, sys
from gpuqueue.run.values import save_values, load_file

def memory(what):
    return int(re.search(what + r":\\s*(\\d+)", open("/proc/self/status").read())[1]) >> 10

path, size = sys.argv[1], 200 << 20
small = np.ones(1000)
save_values(path + ".first", {"a": small}, let_go=True)
before = memory("VmHWM")
array = np.ones(size // 8)
save_values(path, {"a": array}, let_go=True)
assert array[0] == array[-1] == 1 and array.sum() == size // 8
print(memory("VmHWM") - before)
del array
own = memory("RssAnon")
back = load_file(path).values["a"]
assert back.sum() == size // 8
print(memory("RssAnon") - own)
"""


@linux
def test_neither_side_has_a_second_copy_in_memory(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path / "v")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    saved, loaded = map(int, run.stdout.split())
    # reading the array after it was saved brings its file in, page by page, in place of the memory
    assert saved < 200 + 32
    assert loaded < 16


def test_a_submit_that_does_not_fit_leaves_nothing(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    payload = cell_payload("a.sum()", {"a": np.zeros(MANY)})
    assert list(payload.large) == ["payload.0"]
    monkeypatch.setattr(large, "_reserve", full)
    with pytest.raises(NoSpace, match="nothing was queued"):
        client.submit([(payload, options_from({}))])
    assert list(client.home.jobs.iterdir()) == []
    assert client.store.live() == []


def test_a_sender_is_gone_without_the_garbage_collector() -> None:
    sender = Sender({}, None)
    sender.expect([np.zeros(MANY)])
    pickler = weakref.ref(sender._pickler)
    gc.disable()
    try:
        del sender
        assert pickler() is None
    finally:
        gc.enable()
