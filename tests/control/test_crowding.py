"""A tip to jobs that share a GPU and keep it busy: once, and only where it is so for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import until

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.client.status import status_of
from gpuqueue.control.crowding import CROWDED, FACT, Crowding, sentences
from gpuqueue.control.machine import Machine
from gpuqueue.control.turn import Turn
from gpuqueue.model import (
    Gpu,
    Grant,
    Job,
    JobKind,
    JobState,
    Origin,
    Placement,
    Reading,
    Request,
)
from gpuqueue.paths import Home

GPU = Gpu("A", 0, "a", 2**34)


def job(number: int, *, whole: bool = False) -> Job:
    placement = Placement((Grant("A", 1000 if whole else 250, 2**30, whole=whole),), 1)
    return Job(number, JobKind.SCRIPT, JobState.RUNNING, Request(), "a", "me", "s", "/", Origin(),
               0, 1, attempt=1, placement=placement)  # fmt: skip


class Stage:
    """Looks at a GPU that is as busy as is said, some seconds after the look before."""

    def __init__(self, client: LocalClient) -> None:
        self.client = client
        self.now = 0.0
        self.crowding = Crowding(client.store, lambda: self.now)

    def look(self, busy: int | None, jobs: list[Job], after: float = 10.0) -> list[int]:
        """Which jobs are told."""
        self.now += after
        turn = Turn({job.id: job for job in jobs}, self.now)
        self.crowding.look(turn, Machine((GPU,), (Reading("A", utilization=busy),)))
        assert all(kind == CROWDED for _, kind, _ in turn.notes)
        return [number for number, _, _ in turn.notes]


@pytest.fixture
def stage(client: LocalClient) -> Stage:
    return Stage(client)


FOUR = [job(number) for number in (1, 2, 3, 4)]


def test_it_is_told_once_to_the_same_jobs(stage: Stage) -> None:
    told = [stage.look(95, FOUR) for _ in range(20)]
    assert [jobs for jobs in told if jobs] == [[1, 2, 3, 4]]
    assert told.index([1, 2, 3, 4]) == 6  # seen for a minute
    # another lead does not say it again
    again = Stage(stage.client)
    assert not any(again.look(95, FOUR) for _ in range(20))
    # to others it is news
    assert [jobs for jobs in (stage.look(95, FOUR[1:]) for _ in range(20)) if jobs] == [[2, 3, 4]]
    fact = stage.client.store.fact(FACT)
    (words,) = sentences(fact, [GPU], FOUR[1:])
    assert words.startswith("The 3 jobs that share GPU 0 keep it busy all the time")
    assert sentences(fact, [GPU], FOUR) == ()


def test_what_is_no_crowd(stage: Stage) -> None:
    assert not any(stage.look(89, FOUR) for _ in range(20))
    assert not any(stage.look(None, FOUR) for _ in range(20))
    assert not any(stage.look(100, FOUR[:1]) for _ in range(20))
    assert not any(stage.look(100, [job(1, whole=True)]) for _ in range(20))
    # bursts
    assert not any(stage.look(95 if turn % 4 else 10, FOUR) for turn in range(40))
    # jobs that come and go: not the same ones for a minute
    assert not any(stage.look(95, FOUR[: 2 + turn % 2]) for turn in range(40))


def test_status_says_it(
    home: Home, client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")
    processes = tmp_path / "processes"
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(processes))
    processes.write_text("busy:0:95\n")
    jobs = [gpuqueue.submit(["sleep", "600"], share=0.5) for _ in range(2)]
    until(lambda: all(one.state is JobState.RUNNING for one in jobs))
    # the lead is a process of its own, for which a minute is a minute
    client.store.set_fact(FACT, {"FAKE-0": [one.id for one in jobs]})
    status = status_of(client)
    assert status.to_dict()["tips"] == list(status.tips)
    assert "tip: The 2 jobs that share GPU 0 keep it busy" in str(status)
    until(lambda: status_of(client).to_dict()["gpus"][0]["reading"]["utilization"] == 95)
    jobs[0].cancel()
    until(jobs[0].done)
    assert status_of(client).tips == ()
    for one in jobs[1:]:
        one.cancel()
