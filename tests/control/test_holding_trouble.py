"""What holds jobs fails in ways that nobody foresaw, is slow, or was left by a lead that died."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import until
from holding_stage import Lead, Stand

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.holding import FACT, Holder
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.share import Ladder, Subject


@pytest.fixture
def stand() -> Stand:
    made = Stand()
    made.gate.set()
    return made


@pytest.fixture
def lead(home: Home, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lead]:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    made = Lead(home, stand)
    yield made
    for job in gpuqueue.jobs():
        if not job.done():
            job.cancel()
    until(lambda: all(job.done() for job in gpuqueue.jobs()))
    made.end()


@pytest.fixture
def proven(lead: Lead, client: LocalClient) -> Lead:
    until(lambda: (client.store.fact(FACT) or {}).get("standings"), what="the trial is over")
    return lead


def test_a_start_is_answered_whatever_is_raised(proven: Lead) -> None:
    proven.stand.odd = ValueError("a number that is none")
    job = gpuqueue.submit(["true"], share=0.25)
    assert job.wait(60) == 0
    assert job.hold is not None
    assert job.hold.by == ()
    assert "ValueError: a number that is none" in job.hold.missing["stand"]
    strict = gpuqueue.submit(["true"], share=0.25, require="compute=hard")
    strict.wait(60)
    assert strict.state is JobState.CANCELLED


def test_a_resize_is_answered_whatever_is_raised(proven: Lead) -> None:
    job = gpuqueue.submit(["sleep", "600"], share=0.25)
    until(lambda: job.state is JobState.RUNNING)
    proven.stand.odd = ValueError("a number that is none")
    assert "ValueError: a number that is none" in job.resize(share=0.5).problem
    proven.stand.odd = None
    # and the next one is not kept waiting by it
    assert job.resize(share=0.75).applied["share"] == "now"


def test_trials_end_though_one_breaks_off(home: Home, stand: Stand) -> None:
    memory = Stand(name="odd", subject=Subject.MEMORY, broken=True)
    memory.gate.set()
    holder = Holder(home, lambda *_: Ladder([memory, stand]))
    holder.know(())
    until(lambda: not holder.trying, what="the trials are over")
    fact = holder.fact()
    assert fact is not None
    assert fact["standings"] == {"compute": "capped", "memory": "admitted only"}
    assert "ValueError: no JSON" in fact["reasons"]["memory"]
    holder.close()
