"""What usage records add up to, against sums made by hand."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.client.books import KEYS, Usage, add_up, begin_of, key_of, total_of
from gpuqueue.errors import InvalidRequest
from gpuqueue.store import Stay

G = 2**30
HOUR = 3600.0
BEGIN, END = 10 * HOUR, 20 * HOUR
CARDS = {
    "A": {"index": 0, "name": "H200", "vendor": "nvidia", "memory": 40 * G},
    "B": {"index": 1, "name": "MI", "vendor": "amd", "memory": 40 * G},
}


def stay(job: int, since: float, until: float | None, **more: object) -> Stay:
    about = {
        "owner": "ann", "tag": "train", "notebook": "a.ipynb", "gpu": "A", "compute": 500,
        "memory": 8 * G, "frozen": False,
    } | more  # fmt: skip
    return Stay(job=job, since=since, until=until, **about)  # type: ignore[arg-type]


def rows(stays: list[Stay], by: str = "owner") -> dict[object, dict[str, object]]:
    return {row[by]: row for row in add_up(stays, by, BEGIN, END, CARDS)}


FIVE = [
    stay(1, 5 * HOUR, 9 * HOUR),  # before: nothing
    stay(2, 8 * HOUR, 12 * HOUR),  # over its begin: 2 hours
    stay(3, 13 * HOUR, 14.5 * HOUR),  # inside: 1.5 hours
    stay(4, 19 * HOUR, 23 * HOUR),  # over its end: 1 hour
    stay(5, 16 * HOUR, None),  # open: 4 hours, until now
]


def test_five_intervals_against_a_window() -> None:
    assert rows(FIVE) == {
        "ann": {
            "owner": "ann", "gpu_hours": 4.25, "gib_hours": 68.0, "held_hours": 8.5, "jobs": 4,
        }
    }  # fmt: skip
    by_job = rows(FIVE, "job")
    assert {job: row["held_hours"] for job, row in by_job.items()} == {2: 2, 3: 1.5, 4: 1, 5: 4}
    assert by_job[5] == {
        "job": 5, "name": "train", "gpu_hours": 2.0, "gib_hours": 32.0, "held_hours": 4.0,
        "jobs": 1,
    }  # fmt: skip


def test_each_key() -> None:
    stays = [
        stay(1, 10 * HOUR, 11 * HOUR),
        stay(
            2,
            10 * HOUR,
            12 * HOUR,
            owner="bob",
            tag="eval",
            notebook="",
            gpu="B",
            compute=1000,
            agent="Codex",
        ),
        stay(3, 10 * HOUR, 11 * HOUR, gpu="gone", compute=250),
    ]
    assert {key: row["gpu_hours"] for key, row in rows(stays, "owner").items()} == {
        "bob": 2, "ann": 0.75,
    }  # fmt: skip
    assert {key: row["gpu_hours"] for key, row in rows(stays, "tag").items()} == {
        "eval": 2, "train": 0.75,
    }  # fmt: skip
    assert {key: row["gpu_hours"] for key, row in rows(stays, "agent").items()} == {
        "Codex": 2, "": 0.75,
    }  # fmt: skip
    assert set(rows(stays, "notebook")) == {"", "a.ipynb"}
    assert {key: row.get("name") for key, row in rows(stays, "gpu").items()} == {
        "A": "GPU 0 (H200)", "B": "GPU 1 (MI)", "gone": None,
    }  # fmt: skip
    assert {key: row["gpu_hours"] for key, row in rows(stays, "vendor").items()} == {
        "amd": 2, "nvidia": 0.5, "unknown": 0.25,
    }  # fmt: skip
    # the most first
    assert [row["owner"] for row in add_up(stays, "owner", BEGIN, END, CARDS)] == ["bob", "ann"]


def test_what_is_frozen_holds_and_does_not_run() -> None:
    found = rows([stay(1, 10 * HOUR, 12 * HOUR, frozen=True), stay(1, 12 * HOUR, 13 * HOUR)])
    assert found["ann"] == {
        "owner": "ann", "gpu_hours": 0.5, "gib_hours": 24.0, "held_hours": 3.0, "jobs": 1,
    }  # fmt: skip


def test_one_without_a_share_counts_by_its_memory() -> None:
    found = rows([stay(1, 10 * HOUR, 11 * HOUR, compute=0, memory=10 * G)])
    assert found["ann"]["gpu_hours"] == 0.25
    # of a GPU that nobody knows any more, nothing can be told
    assert rows([stay(1, 10 * HOUR, 11 * HOUR, compute=0, gpu="x")])["ann"]["gpu_hours"] == 0


TIMES = st.floats(0, 30 * HOUR, allow_nan=False)


@given(st.lists(st.tuples(st.integers(1, 4), TIMES, TIMES | st.none()), max_size=12))
def test_every_key_has_the_same_sum(some: list[tuple[int, float, float | None]]) -> None:
    stays = [
        stay(job, since, until if until is None else max(since, until), owner=f"o{job % 2}")
        for job, since, until in some
    ]
    sums = [
        sum(float(row["gpu_hours"]) for row in add_up(stays, by, BEGIN, END, CARDS)) for by in KEYS
    ]
    assert sums == pytest.approx([sums[0]] * len(KEYS))
    total = total_of(stays, BEGIN, END, CARDS)
    assert total["gpu_hours"] == pytest.approx(sums[0])
    assert total["jobs"] == len(add_up(stays, "job", BEGIN, END, CARDS))


def test_what_is_asked_is_checked() -> None:
    with pytest.raises(InvalidRequest, match="owner, notebook, tag, agent, gpu, vendor"):
        key_of("colour")
    with pytest.raises(InvalidRequest, match="did you mean owner"):
        key_of("owners")
    with pytest.raises(InvalidRequest, match="since"):
        begin_of("yesterday", 0.0)
    assert begin_of("24h", 90_000.0) == 3600.0
    assert begin_of("all", 5.0) == 0.0


def test_a_table_of_rows() -> None:
    total = total_of(FIVE, BEGIN, END, CARDS)
    found = Usage(
        add_up(FIVE, "job", BEGIN, END, CARDS), by="job", since=BEGIN, until=END, total=total
    )
    head, first, *_, last = repr(found).splitlines()
    assert head == "JOB    NAME   GPU-H  GIB-H  HELD-H  JOBS"
    assert first == "5      train   2.00  32.00    4.00     1"
    assert last == "total          4.25  68.00    8.50     4"
    assert "<th>GPU-H</th>" in found._repr_html_()
    frame = pd.DataFrame(found)
    assert list(frame.columns) == ["job", "name", "gpu_hours", "gib_hours", "held_hours", "jobs"]
    assert frame.gpu_hours.sum() == 4.25
