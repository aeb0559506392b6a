"""What frameworks are told of a cap: merged with the user's own settings, and never twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.share.frameworks import FrameworkSettings, fraction_of, settings
from gpuqueue.share.installed import versions_in
from gpuqueue.share.mechanism import Bound, Effect, Standing

GIB = 1 << 30
ONE, TWO = "GPU-1", "GPU-2"


def bound(cap=20 * GIB, total=80 * GIB, torch="2.13.0+cu130", **base):
    return Bound(Path("/job"), {ONE: cap}, {ONE: total}, base, {"torch": torch})


def test_a_quarter_of_a_card_in_each_frameworks_own_words():
    assert settings(bound()) == {
        "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.2500",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2500",
        "CUPY_GPU_MEMORY_LIMIT": str(20 * GIB),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "FLAGS_fraction_of_gpu_memory_to_use": "0.2500",
    }


def test_a_cap_that_the_job_is_told_as_its_card_is_not_taken_of_itself():
    assert settings(bound(total=20 * GIB)) == {"CUPY_GPU_MEMORY_LIMIT": str(20 * GIB)}


@pytest.mark.parametrize("torch", ["", "2.9.1", "1.13", "unknown"])
def test_a_pytorch_that_may_not_know_the_key_is_left_alone(torch):
    assert "PYTORCH_ALLOC_CONF" not in settings(bound(torch=torch))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("max_split_size_mb:128", "max_split_size_mb:128,per_process_memory_fraction:0.2500"),
        (
            "roundup_power2_divisions:[256:1,512:2,>:8], expandable_segments:True",
            "roundup_power2_divisions:[256:1,512:2,>:8], expandable_segments:True,"
            "per_process_memory_fraction:0.2500",
        ),
        ("per_process_memory_fraction:0.1", None),
        (
            "per_process_memory_fraction:0.9,backend:native",
            "backend:native,per_process_memory_fraction:0.2500",
        ),
        ("", "per_process_memory_fraction:0.2500"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_pytorchs_list_keeps_what_the_user_has_set(name, own, expected):
    made = settings(bound(**{name: own}))
    assert made.get(name) == expected
    assert len([key for key in made if key.startswith("PYTORCH")]) == (expected is not None)


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"])
@pytest.mark.parametrize(("own", "expected"), [("0.9", "0.2500"), (".1", None), ("much", None)])
def test_jax_has_one_of_its_two_names_and_the_users_if_that_is_less(name, own, expected):
    made = settings(bound(**{name: own}))
    assert made.get(name) == expected
    assert len([key for key in made if key.startswith("XLA")]) == (expected is not None)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (str(GIB), None),
        (str(40 * GIB), str(20 * GIB)),
        ("50%", str(20 * GIB)),
        ("10%", None),
        ("48GB", None),
    ],
)
def test_cupys_limit(own, expected):
    assert settings(bound(CUPY_GPU_MEMORY_LIMIT=own)).get("CUPY_GPU_MEMORY_LIMIT") == expected


def test_what_is_the_users_choice_stays():
    made = settings(
        bound(TF_FORCE_GPU_ALLOW_GROWTH="false", FLAGS_fraction_of_gpu_memory_to_use="0.2")
    )
    assert not {"TF_FORCE_GPU_ALLOW_GROWTH", "FLAGS_fraction_of_gpu_memory_to_use"} & set(made)


def test_nothing_is_said_without_a_cap_or_its_measure():
    assert settings(bound(cap=None)) == {}
    assert settings(Bound(Path("/job"), {})) == {}
    assert settings(bound(total=None)) == {"CUPY_GPU_MEMORY_LIMIT": str(20 * GIB)}


def test_the_least_of_several_gpus_counts():
    two = Bound(Path("/job"), {ONE: 40 * GIB, TWO: 20 * GIB}, {ONE: 80 * GIB, TWO: 80 * GIB})
    assert fraction_of(two) == 0.25
    assert settings(two)["CUPY_GPU_MEMORY_LIMIT"] == str(20 * GIB)
    unknown = Bound(Path("/job"), {ONE: 40 * GIB, TWO: 20 * GIB}, {ONE: 80 * GIB})
    assert fraction_of(unknown) is None


@given(
    cap=st.integers(1, 200 * GIB),
    total=st.integers(GIB, 200 * GIB),
    own=st.one_of(st.none(), st.floats(0, 1), st.text("0.19x", max_size=4)),
)
def test_never_more_than_the_cap_and_the_same_when_done_again(cap, total, own):
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    first = bound(cap, total, **({} if own is None else {name: str(own)}))
    made = settings(first)
    if name in made:
        assert float(made[name]) <= max(cap / total, 0.0001)
    again = bound(cap, total, **{**first.base, **made})
    assert settings(again) == {}


def test_pytorch_takes_it():
    """The one that is installed here, without a GPU, reads the list and says nothing."""
    made = settings(bound(PYTORCH_ALLOC_CONF="max_split_size_mb:128"))
    code = "import torch; torch.ones(2); print(torch._C._accelerator_getAllocatorSettings())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin", **made},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == made["PYTORCH_ALLOC_CONF"]


def test_as_a_mechanism():
    mechanism = FrameworkSettings()
    assert mechanism.probe().usable
    assert mechanism.standing is Standing.ADVISED
    assert mechanism.environment(bound()) == settings(bound())
    assert mechanism.resize(bound()) is Effect.NEXT_START
    assert mechanism.verify(bound(), [1]) == ()


def test_versions_are_told_from_files(tmp_path: Path) -> None:
    program = tmp_path / "env" / "bin" / "python3"
    packages = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    (packages / "torch-2.13.0+cu126.dist-info").mkdir(parents=True)
    (packages / "torchvision-0.28.0.dist-info").mkdir()
    assert versions_in(str(program)) == {"torch": "2.13.0+cu126"}
    assert versions_in(str(program.with_name("train"))) == {}
    assert versions_in("") == {}
    (packages.parents[1] / "python3.11" / "site-packages" / "torch-2.4.0.dist-info").mkdir(
        parents=True
    )
    assert versions_in(str(program)) == {}
