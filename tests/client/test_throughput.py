"""What a job does for what it holds, of its notes and its usage records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.client.throughput import Rate, rates
from gpuqueue.store import Stay

HOUR = 3600.0
CARDS = {"A": {"memory": 40 << 30}, "B": {"memory": 40 << 30}}


def note(at: float, step: int | None = None, **metrics: Any) -> dict[str, Any]:
    return {"at": at, "step": step, "metrics": metrics}


def stay(since: float, until: float | None, compute: int = 1000, **more: Any) -> Stay:
    about = {"owner": "ann", "tag": "", "notebook": "", "gpu": "A", "memory": 8 << 30} | more
    return Stay(job=1, compute=compute, since=since, until=until, **about)


def told(found: list[dict[str, Any]], stays: list[Stay], now: float = 9e9) -> dict[str, Any]:
    return {
        rate.name: (rate.per_second, rate.per_gpu_hour) for rate in rates(found, stays, CARDS, now)
    }


def test_steps_by_the_second_and_by_the_hour_of_a_whole_gpu() -> None:
    found = [note(100 + i, step=10 * i) for i in range(11)]
    assert rates(found, [stay(0, None)], CARDS, 200) == [Rate("steps", 10.0, 36_000.0)]
    # half of a GPU: as many a second, and twice as many for a whole one
    assert told(found, [stay(0, None, 500)]) == {"steps": (10.0, 72_000.0)}
    assert told(found, [stay(0, None), stay(0, None, gpu="B")]) == {"steps": (10.0, 18_000.0)}
    # memory alone counts as in the books: a fifth of the GPU
    assert told(found, [stay(0, None, 0)])["steps"][1] == pytest.approx(36_000 * 5)
    assert told(found, []) == {"steps": (10.0, None)}


def test_a_resize_counts_from_its_moment_and_what_is_frozen_does_not() -> None:
    found = [note(0, step=0), note(100, step=1000)]
    resized = [stay(-50, 50), stay(50, None, 500)]
    assert told(found, resized) == {"steps": (10.0, 1000 * HOUR / 75)}
    frozen = [stay(0, 40), stay(40, 60, frozen=True), stay(60, None)]
    assert told(found, frozen) == {"steps": (12.5, 1000 * HOUR / 80)}


def test_rates_that_the_job_has_measured() -> None:
    found = [
        note(0, step=1, samples_per_second=400.0),
        note(10, step=2, samples_per_second=500.0),
        note(40, step=3, samples_per_second=100.0, loss=0.5, note="warm"),
    ]
    answer = told(found, [stay(0, None, 250)])
    # ten seconds at 500, thirty at 100
    assert answer["samples"] == (200.0, 200 * HOUR * 4)
    assert set(answer) == {"samples", "steps"}


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("samples_per_second", "samples"), ("tokens_per_sec", "tokens"), ("tokens/s", "tokens"),
        ("train_samples_per_second", "samples"), ("perf/images/sec", "images"),
        ("throughput", "throughput"), ("train_steps_per_second", "train_steps_per_second"),
    ],
)  # fmt: skip
def test_names_of_rates(metric: str, name: str) -> None:
    assert told([note(5, **{metric: 8})], [stay(0, None)]) == {name: (8.0, 8 * HOUR)}


def test_two_rates_of_the_same_thing_keep_their_names() -> None:
    found = [note(5, train_samples_per_second=8, eval_samples_per_second=20)]
    assert set(told(found, [])) == {"train_samples_per_second", "eval_samples_per_second"}


def test_what_is_no_rate() -> None:
    found = [
        note(i, loss=0.5, per_second=3, name_per_second="fast", x_per_s=True) for i in range(3)
    ]
    assert told(found, [stay(0, None)]) == {}
    assert told([note(0, step=5)], [stay(0, None)]) == {}
    assert told([note(0, step=5), note(3, step=5), note(4, step=2)], [stay(0, None)]) == {}
    # of a clock that was set, what lies ahead counts for nothing
    assert told([note(0, step=0), note(50, step=9)], [stay(0, None)], now=10) == {}
    # frozen all the while
    assert told([note(0, step=0), note(50, step=9)], [stay(0, None, frozen=True)]) == {}


def test_several_processes_may_note_their_steps() -> None:
    both = [note(at, step=at) for at in range(11) for _ in range(2)]
    assert told(both, []) == {"steps": (1.0, None)}


TIMES = st.floats(0, 1e6, allow_nan=False)


@given(
    st.lists(st.tuples(TIMES, st.none() | st.integers(0, 10**6), st.floats())),
    st.lists(st.tuples(TIMES, TIMES, st.integers(0, 1000), st.booleans())),
)
def test_nothing_that_is_noted_breaks_it(
    some: list[tuple[float, int | None, float]], held: list[tuple[float, float, int, bool]]
) -> None:
    found = [note(at, step=step, tokens_per_s=value) for at, step, value in some]
    stays = [stay(begin, max(begin, end), part, frozen=frozen) for begin, end, part, frozen in held]
    for rate in rates(found, stays, CARDS, 9e9):
        assert rate.per_second == rate.per_second
