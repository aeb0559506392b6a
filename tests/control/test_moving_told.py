"""What came of trying to move GPU memory is told by ``doctor`` and ``cards``."""

from __future__ import annotations

import json

import pytest
from conftest import until
from parking_stage import *  # noqa: F403
from parking_stage import is_proven
from stub_checkpoint import Stub
from typer.testing import CliRunner

import gpuqueue
from gpuqueue.cli.app import app
from gpuqueue.client import LocalClient
from gpuqueue.client.doctor.findings import Check, Scene
from gpuqueue.client.doctor.machine import frozen_memory
from gpuqueue.client.moving import moving
from gpuqueue.control import proving
from gpuqueue.control.proving import PROOF
from gpuqueue.paths import Home


def told(home: Home) -> Check:
    (check,) = frozen_memory(Scene(home))
    return check


def shown() -> tuple[str, dict[str, str]]:
    runner = CliRunner()
    text = runner.invoke(app, ["cards"])
    data = runner.invoke(app, ["cards", "--json"])
    assert (text.exit_code, data.exit_code) == (0, 0)
    return text.stdout, json.loads(data.stdout)["moving"]


def test_not_tried_then_seen_to_work(home: Home, client: LocalClient, stub: Stub) -> None:
    check = told(home)
    assert check.ok
    assert "not tried since the machine was started" in check.sentence
    assert shown()[1]["standing"] == "untried"
    gpuqueue.submit(["true"]).wait(60)
    until(is_proven)
    check = told(home)
    assert (check.name, check.ok) == ("moving GPU memory", True)
    assert "seen to work: 64M left the GPU in" in check.sentence
    text, data = shown()
    assert "GPU memory of frozen jobs, to the host: proven" in text
    assert data["standing"] == "proven"
    home.config.write_text("move_gpu_memory = false\n")
    assert "turned off by the setting move_gpu_memory" in told(home).sentence
    assert shown()[1]["standing"] == "off"


def test_tried_and_failed_is_told_with_why(home: Home, client: LocalClient, stub: Stub) -> None:
    stub.tell("checkpoint", "fail")
    gpuqueue.submit(["true"]).wait(60)
    until(lambda: client.store.fact(PROOF))
    check = told(home)
    assert (check.ok, check.fix) == (None, "see docs/free.md")
    assert "not to be relied on: checkpoint: could not checkpoint" in check.sentence
    assert shown()[1]["standing"] == "failed"


def test_a_trial_of_another_start_or_driver_does_not_count(
    home: Home, client: LocalClient, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpuqueue.submit(["true"]).wait(60)
    until(is_proven)
    monkeypatch.setattr(proving, "_driver", lambda: "another driver")
    found = moving(home)
    assert found is not None
    assert found.standing == "untried"


def test_where_there_is_nothing_to_move_nothing_is_said(home: Home, client: LocalClient) -> None:
    assert list(frozen_memory(Scene(home))) == []
    assert list(frozen_memory(Scene(None))) == []
    text, data = shown()
    assert "frozen jobs" not in text
    assert data is None
