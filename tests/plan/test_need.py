from __future__ import annotations

import pytest
from machines import G, gpu, policy

from gpuqueue.model import Gpu, Preset, Request
from gpuqueue.plan import Need, Policy, need_of, never_fits

TWO = [gpu(0), gpu(1)]


def whole(gpus: int, slots: int = 2, *, exclusive: bool = False) -> Need:
    compute = 1000 if gpus else 0
    return Need(gpus, compute, None, gpus > 0, light=False, slots=slots, exclusive=exclusive)


def part(
    compute: int, memory: int | None, *, gpus: int = 1, slots: int = 1, light: bool = False
) -> Need:
    return Need(gpus, compute, memory, whole=False, light=light, slots=slots, exclusive=False)


def no_gpu(slots: int) -> Need:
    return part(0, None, gpus=0, slots=slots)


def need(preset: str, on: list[Gpu] = TWO, rules: Policy | None = None, **asked: object) -> Need:
    return need_of(Request(Preset(preset), **asked), on, rules or policy())  # type: ignore[arg-type]


def never(
    preset: str, on: list[Gpu] = TWO, rules: Policy | None = None, **asked: object
) -> str | None:
    return never_fits(Request(Preset(preset), **asked), on, rules or policy())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"preset": "light"}, part(0, None, light=True)),
        ({"preset": "light", "memory": G}, part(0, G, light=True)),
        ({"preset": "one"}, whole(1, slots=2)),
        ({"preset": "one", "memory": 8 * G}, part(0, 8 * G)),
        ({"preset": "one", "share": 250}, part(250, None)),
        ({"preset": "one", "share": 250, "memory": G}, part(250, G)),
        ({"preset": "one", "share": 1000}, whole(1, slots=2)),
        ({"preset": "one", "gpus": 2}, whole(2, slots=2)),
        ({"preset": "one", "gpus": 0}, no_gpu(1)),
        ({"preset": "one", "slots": 3}, whole(1, slots=3)),
        ({"preset": "two"}, whole(2, slots=2)),
        ({"preset": "two", "gpus": 1}, whole(1, slots=2)),
        ({"preset": "two", "share": 500}, part(500, None, gpus=2, slots=2)),
        ({"preset": "exclusive"}, whole(2, slots=4, exclusive=True)),
        ({"preset": "exclusive", "share": 500}, whole(2, slots=4, exclusive=True)),
        ({"preset": "cpu"}, no_gpu(1)),
        ({"preset": "cpu", "memory": G}, no_gpu(1)),
    ],
)
def test_presets_and_what_overrides_them(asked: dict[str, object], expected: Need) -> None:
    assert need(**asked) == expected  # type: ignore[arg-type]


def test_two_is_all_gpus() -> None:
    assert need("two", [gpu(i) for i in range(4)]).gpus == 4
    assert need("two", [gpu(0)]) == need("one", [gpu(0)])


def test_exclusive_without_gpus_is_just_alone() -> None:
    assert need("exclusive", []) == whole(0, slots=4, exclusive=True)


def test_without_packing_every_job_but_a_light_one_is_whole() -> None:
    rules = policy(packing=False)
    assert need("one", rules=rules, share=250) == whole(1, slots=2)
    assert need("one", rules=rules, memory=G).whole
    assert need("light", rules=rules) == need("light")


@pytest.mark.parametrize(
    ("grain", "share", "compute"), [(10, 333, 340), (10, 340, 340), (125, 1, 125)]
)
def test_a_share_is_rounded_up_to_the_grain(grain: int, share: int, compute: int) -> None:
    assert need("one", [gpu(0, grain=grain)], share=share).compute == compute


def test_a_share_that_rounds_to_all_of_a_gpu_is_whole() -> None:
    assert need("one", [gpu(0, grain=10)], share=995).whole


def test_a_preset_makes_do_with_the_slots_there_are() -> None:
    assert need("one", rules=policy(1)).slots == 1
    assert need("exclusive", rules=policy(1)).slots == 1
    assert need("one", rules=policy(1), slots=2).slots == 2


@pytest.mark.parametrize(
    ("asked", "gpus", "sentence"),
    [
        ({"preset": "one", "gpus": 3}, TWO, "asks for 3 GPUs, this machine has 2"),
        ({"preset": "one"}, [], "asks for 1 GPU, this machine has none; use --cpu"),
        ({"preset": "two"}, [], "asks for 2 GPUs, this machine has none; use --cpu"),
        ({"preset": "light"}, [], "asks for 1 GPU, this machine has none; use --cpu"),
        ({"preset": "cpu", "slots": 6}, TWO, "asks for 6 slots, this machine has 4"),
        (
            {"preset": "one", "memory": 100 * G},
            [gpu(0, 24 * G), gpu(1, 80 * G)],
            "asks for 100G of device memory, the largest GPU has 80G",
        ),
        (
            {"preset": "one", "gpus": 2, "memory": 60 * G},
            [gpu(0, 24 * G), gpu(1, 80 * G)],
            "asks for 60G of device memory on each of 2 GPUs, this machine has 1 that large",
        ),
        (
            {"preset": "one", "memory": G},
            [gpu(0, None)],
            "asks for 1G of device memory, and no GPU here tells how much it has; "
            "leave the memory out",
        ),
        (
            {"preset": "light", "memory": 30 * G},
            [gpu(0, 24 * G), gpu(1, 80 * G)],
            "asks for 30G of device memory, the shared GPU has 24G",
        ),
        (
            {"preset": "light", "gpus": 2},
            TWO,
            "asks for 2 GPUs, light jobs sit on the one shared GPU",
        ),
    ],
)
def test_what_never_fits_says_so_with_the_numbers(
    asked: dict[str, object], gpus: list[Gpu], sentence: str
) -> None:
    assert never(on=gpus, **asked) == sentence  # type: ignore[arg-type]


def test_sizes_that_read_alike_are_told_apart() -> None:
    said = never("one", [gpu(0, 24 * G)], memory=24 * G + 1)
    assert said == (
        f"asks for {24 * G + 1} bytes of device memory, the largest GPU has {24 * G} bytes"
    )


def test_light_needs_a_shared_gpu() -> None:
    assert "no GPU of this machine is set aside" in str(never("light", rules=policy(shared=None)))


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"preset": "one"}, TWO),
        ({"preset": "two"}, [gpu(0)]),
        ({"preset": "cpu"}, []),
        ({"preset": "exclusive"}, []),
        ({"preset": "one", "memory": 24 * G}, TWO),
        ({"preset": "one", "share": 500}, [gpu(0, None)]),
        ({"preset": "one", "share": 1000, "memory": G}, [gpu(0, None)]),
        ({"preset": "one", "memory": G}, [gpu(0, None), gpu(1)]),
    ],
)
def test_what_fits_an_empty_machine_is_not_refused(
    asked: dict[str, object], gpus: list[Gpu]
) -> None:
    assert never(on=gpus, **asked) is None  # type: ignore[arg-type]
