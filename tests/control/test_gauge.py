"""GPUs whose driver hangs."""

import threading

import pytest
from conftest import until

from gpuqueue.control import gauge as module
from gpuqueue.control.gauge import Gauge
from gpuqueue.control.machine import seen_on, snapshot_of
from gpuqueue.model import Job, JobState, Origin, Preset, Request
from gpuqueue.plan import WaitReason, plan
from gpuqueue.settings import Settings


def waiting(number, preset):
    return Job(
        id=number, kind="script", state=JobState.QUEUED, request=Request(preset=preset), tag="",
        owner="", command="", cwd="", origin=Origin(), submitted=0, position=number,
    )  # fmt: skip


@pytest.fixture
def gauge():
    made = Gauge("2x24G")
    made.first(60)
    yield made
    made.close()


def test_a_driver_that_hangs_is_told_and_given_no_jobs(gauge, monkeypatch):
    answers = threading.Event()
    read = gauge.devices.read
    monkeypatch.setattr(gauge.devices, "read", lambda: (answers.wait(60), read())[1])
    monkeypatch.setattr(module, "_STUCK", 0.0)
    assert not gauge.silent
    readings = gauge.ask()
    until(lambda: gauge.silent)
    assert "does not answer" in gauge.problem

    jobs = [waiting(1, Preset.ONE), waiting(2, Preset.CPU)]
    machine = seen_on(gauge.devices.gpus(), readings, [], gauge.problem, silent=gauge.silent)
    assert type(machine).from_fact(machine.as_fact()) == machine
    decision = plan(snapshot_of(jobs, {}, machine, Settings()), 0.0)
    assert [start.job for start in decision.starts] == [2]
    assert decision.waits[1].reason is WaitReason.DRAINED

    answers.set()
    until(lambda: not gauge.silent)
    machine = seen_on(gauge.devices.gpus(), gauge.ask(), [], gauge.problem)
    decision = plan(snapshot_of(jobs, {}, machine, Settings()), 0.0)
    assert [start.job for start in decision.starts] == [1, 2]
