"""Arrays of NumPy between a notebook and a job: classes, views, flags, memory maps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.run.values import dump_values, parse_values

np = pytest.importorskip("numpy")


class Unit(np.ndarray):  # type: ignore[misc]
    """An array with an attribute."""

    def __array_finalize__(self, other: Any) -> None:
        self.unit = getattr(other, "unit", None)


def there(**values: Any) -> dict[str, Any]:
    loaded = parse_values(io.BytesIO(b"".join(dump_values(values).pieces)))
    assert not loaded.problems
    return loaded.values


@pytest.mark.parametrize("size", [3, 5000, 500_000])
def test_a_class_of_ones_own_keeps_attributes_and_views(size: int) -> None:
    array = np.arange(float(size)).view(Unit)
    array.unit = "km"
    part = array[1:]
    part.unit = "cm"
    made = there(array=array, part=part, plain=np.asarray(array))
    assert type(made["array"]) is type(made["part"]) is Unit
    assert (made["array"].unit, made["part"].unit) == ("km", "cm")
    made["array"][1] = -1
    assert made["part"][0] == made["plain"][1] == -1


def test_objects_in_an_array_of_ones_own_class() -> None:
    inner = [1]
    array = np.array([inner, None], dtype=object).view(Unit)
    array.unit = "km"
    made = there(array=array, inner=inner)
    assert made["array"].unit == "km"
    assert made["array"][0] is made["inner"]


@pytest.mark.parametrize("size", [3, 5000, 500_000])
def test_what_may_be_written_to_stays_so(size: int) -> None:
    whole = np.arange(float(size))
    part, fixed = whole[1:], whole[1:]
    whole.flags.writeable = fixed.flags.writeable = False
    made = there(whole=whole, part=part, fixed=fixed)
    assert [one.flags.writeable for one in made.values()] == [False, True, False]
    made["part"][0] = -1
    assert made["whole"][1] == made["fixed"][0] == -1


def test_records_are_of_numpys_own_class() -> None:
    table = np.rec.fromrecords([(1, "a"), (2, "b")], names="x,y")
    made = there(table=table, x=table.x)
    assert type(made["table"]) is np.recarray
    made["table"].x[0] = 5
    assert made["table"][0].x == made["x"][0] == 5


def test_a_memory_map_is_the_same_file(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "m", dtype="i4", mode="w+", shape=(2, 3), order="F")
    mapped[:] = 1
    made = there(mapped=mapped, part=mapped[1:])
    assert (made["mapped"].mode, made["part"].mode) == ("w+", "w+")
    made["part"][0, 0] = 7
    made["mapped"].flush()
    assert mapped[1, 0] == 7
    private = np.memmap(tmp_path / "m", dtype="i4", mode="c", shape=(2, 3), order="F")
    private[0, 0] = 9
    other = there(private=private)["private"]
    assert other.tolist() == private.tolist()
    other[0, 1] = 9
    assert mapped[0, 1] == 1


def test_a_memory_map_without_its_file_is_a_copy(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "m", dtype="i4", mode="w+", shape=(3,))
    mapped[:] = 4
    (tmp_path / "m").unlink()
    assert there(mapped=mapped)["mapped"].tolist() == [4, 4, 4]
