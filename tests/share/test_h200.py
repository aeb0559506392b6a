"""The bench for a real GPU, as far as a pretend one goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from share_cards import needs_compiler

from gpuqueue.gpus import NvidiaDevices

ROOT = Path(__file__).resolve().parents[2]
STEPS = [
    "probe", "whole", "one quarter", "two halves", "four quarters", "four without shares",
    "latency", "refusals", "resize", "costs", "stopped", "checkpoint", "ended", "nothing left",
]  # fmt: skip


def bench(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "bench/h200.py", "--quick", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_compiler
def test_every_step_is_done_or_says_why_not():
    head, *lines, last = bench("--fake")
    assert head["fake"] is True
    assert [line["step"] for line in lines] == STEPS
    assert [line for line in lines if "error" in line] == []
    assert [line["step"] for line in lines if "skipped" in line] == ["checkpoint"]
    found = {line["step"]: line for line in lines}
    assert found["checkpoint"]["skipped"] == "the driver has no cuCheckpointProcessLock"
    # what does not hang on the machine's speed
    for step in ("probe", "refusals", "resize", "ended", "nothing left"):
        assert found[step]["pass"] is True, found[step]
    assert found["probe"]["result"]["mps"]["multiprocessors_at_25"] == 33
    assert found["four quarters"]["result"]["multiprocessors"] == [33] * 4
    assert found["refusals"]["result"]["two_of_60_per_cent"]["memory_cap"] == [0, 2]
    assert last["skipped"] == ["checkpoint"]
    assert set(last["passed"]) >= {"probe", "refusals", "resize", "ended", "nothing left"}


@needs_compiler
def test_without_a_gpu_it_takes_a_pretend_one_and_keeps_to_its_time():
    head, probe, resize, last = bench("--only", "resize", "--limit", "0.1")
    assert head["limit_s"] == 0.1
    assert "s are left, and it may need" in probe["skipped"]
    assert "s are left" in resize["skipped"]
    assert last["skipped"] == ["probe", "resize"]


@pytest.mark.gpu
@needs_compiler
def test_on_a_real_gpu():
    devices = NvidiaDevices()
    found, problem = devices.gpus(), devices.problem
    devices.close()
    if not found:
        pytest.skip(problem)
    head, *lines, last = bench("--only", "one quarter,refusals,resize,nothing left")
    assert head["fake"] is False
    assert [line for line in lines if "error" in line] == []
    assert set(last["passed"]) >= {"refusals", "resize"}
