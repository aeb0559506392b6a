"""What hangs on one GPU keeps no job of another waiting, nor does a trial what was tried."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import until
from holding_stage import *  # noqa: F403
from holding_stage import Lead, Stand

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.errands import Lines
from gpuqueue.control.holding import FACT, Holder
from gpuqueue.errors import DoesNotFit
from gpuqueue.model import Gpu, Grant, Hold, Job, JobKind, JobState, Origin, Placement, Request
from gpuqueue.paths import Home
from gpuqueue.share import Bound, Ladder, Subject

ONE, TWO = "FAKE-0", "FAKE-1"
CARDS = tuple(Gpu(uuid, index, "pretend", 2**34) for index, uuid in enumerate((ONE, TWO)))


def on(gpu: str, number: int, **more: object) -> Job:
    """A job that is about to start there, with a part of it."""
    part = Placement((Grant(gpu, 250, 2**30, whole=False),), 1)
    return Job(number, JobKind.SCRIPT, JobState.STARTING, Request(), "a", "me", "s", "/", Origin(),
               0, 1, attempt=1, placement=part, **more)  # type: ignore[arg-type]  # fmt: skip


@dataclass
class Sick(Stand):
    """One whose calls about a GPU hang until it is well; ``done`` has those that came through."""

    sick: str = ""
    well: threading.Event = field(default_factory=threading.Event)
    begun: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def _call(self, what: str, gpu: str) -> None:
        self.begun.append(what)
        if gpu == self.sick:
            assert self.well.wait(60)
        self.done.append(what)

    def environment(self, bound: Bound) -> dict[str, str]:
        self._call(f"start {bound.folder.parent.name}", next(iter(bound.compute)))
        return super().environment(bound)

    def release(self, bound: Bound) -> None:
        (told,) = json.loads((bound.folder / "gpu").read_text())
        self._call(f"release {bound.folder.parent.name}", told)
        super().release(bound)


def attempt(home: Home, job: Job) -> Path:
    assert job.placement is not None
    folder = home.attempt(job.id, 1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu").write_text(json.dumps(job.placement.gpus))
    return folder


def test_a_release_and_a_start_that_hang_keep_nothing_waiting_elsewhere(home: Home) -> None:
    sick = Sick(sick=ONE)
    sick.gate.set()
    holder = Holder(home, lambda *_: Ladder([sick]))
    holder.know(CARDS)
    until(lambda: not holder.trying)
    there, more, here = on(ONE, 1), on(ONE, 2), on(TWO, 3)
    holder.start(here, attempt(home, here), None)
    until(lambda: sick.done == ["start 3"])
    holder.start(there, attempt(home, there), None)
    until(lambda: "start 1" in sick.begun)  # it hangs
    holder.release(attempt(home, there))
    holder.start(more, attempt(home, more), None)
    fourth = on(TWO, 4)
    holder.start(fourth, attempt(home, fourth), None)
    holder.release(attempt(home, here))
    until(lambda: sick.done == ["start 3", "start 4", "release 3"])
    assert [told.job for told in holder.take()] == [3, 4]
    # what is asked of one attempt keeps its order, and so does what is asked of one GPU
    sick.well.set()
    until(lambda: len(sick.done) == 6)
    assert sick.done[3:] == ["start 1", "release 1", "start 2"]
    holder.close()


def test_the_line_of_what_an_earlier_lead_has_left_is_told_by_its_note(home: Home) -> None:
    sick = Sick(sick=ONE)
    sick.gate.set()
    holder = Holder(home, lambda *_: Ladder([sick]))
    left, other = on(ONE, 1), on(TWO, 2)
    for job in (left, other):
        folder = attempt(home, job)
        assert job.placement is not None
        (folder / "mps.json").write_text(json.dumps({"gpu": job.placement.gpus[0], "pipe": "/p"}))
        holder.release(folder)  # as a lead begins, before it knows of any GPU
    holder.know(CARDS)
    until(lambda: sick.done == ["release 2"])
    started = on(TWO, 3)
    holder.start(started, attempt(home, started), None)
    until(lambda: "start 3" in sick.done)
    sick.well.set()
    until(lambda: "release 1" in sick.done)
    holder.close()


# -- trials ----------------------------------------------------------------------------------------


@pytest.fixture
def two(home: Home, monkeypatch: pytest.MonkeyPatch) -> tuple[Stand, Stand]:
    """A memory cap that is proven at once, and a cap of compute whose trial takes its time."""
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    monkeypatch.setattr("gpuqueue.control.holding._MOMENT", 0.0)
    memory, compute = Stand("memory cap", Subject.MEMORY), Stand("slow")
    memory.gate.set()
    return memory, compute


@pytest.fixture
def both(home: Home, two: tuple[Stand, Stand], monkeypatch: pytest.MonkeyPatch):
    """A lead that is held by the two."""
    monkeypatch.setattr("holding_stage.Ladder", lambda stands: Ladder([*two]))
    made = Lead(home, two[1])
    yield made
    for job in gpuqueue.jobs():
        if not job.done():
            job.cancel()
    until(lambda: all(job.done() for job in gpuqueue.jobs()))
    made.end()


def test_what_was_tried_is_used_while_another_trial_goes_on(
    both: Lead, two: tuple[Stand, Stand], client: LocalClient
) -> None:
    _, slow = two
    fact = until(lambda: (client.store.fact(FACT) or {}).get("capped") and client.store.fact(FACT))
    assert fact == {"trying": ["slow"], "capped": ["memory"], "library": ""}
    job = gpuqueue.submit(["true"], share=0.25, mem="1G")
    assert job.wait(60) == 0
    assert job.hold == Hold(
        "admitted only", "capped", ("memory cap",), {"slow": "It is still being tried here."}
    )
    # one that requires what is known does not wait either, and is not refused
    strict = gpuqueue.submit(["true"], share=0.25, mem="1G", require="memory=hard")
    assert strict.wait(60) == 0
    assert not slow.asked
    slow.gate.set()
    until(lambda: (client.store.fact(FACT) or {}).get("standings"), what="the trials are over")
    both_hard = gpuqueue.submit(["true"], share=0.25, mem="1G", require="compute=hard,memory=hard")
    assert both_hard.wait(60) == 0
    assert both_hard.hold is not None
    assert both_hard.hold.by == ("memory cap", "slow")


def test_one_that_requires_what_is_tried_waits_for_that_alone(
    both: Lead, two: tuple[Stand, Stand], client: LocalClient
) -> None:
    until(lambda: (client.store.fact(FACT) or {}).get("capped"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuqueue.client.demands._PATIENCE", 0.0)
        strict = gpuqueue.submit(["true"], share=0.25, mem="1G", require="compute=hard")
    until(lambda: both.controller.holder._waiting, what="it waits for the trial")
    other = gpuqueue.submit(["true"], share=0.25, mem="1G")
    assert other.wait(60) == 0  # on the same GPU, and asks for no more than there is
    assert strict.state is JobState.STARTING
    two[1].gate.set()
    assert strict.wait(60) == 0
    assert strict.hold is not None
    assert strict.hold.compute == "capped"


def test_a_trial_that_fails_refuses_what_requires_it(
    both: Lead, two: tuple[Stand, Stand], client: LocalClient
) -> None:
    two[1].usable = False
    until(lambda: (client.store.fact(FACT) or {}).get("capped"))
    two[1].gate.set()
    with pytest.raises(DoesNotFit, match="slow was tried"):
        gpuqueue.submit(["true"], share=0.25, mem="1G", require="compute=hard")


def test_lines_end_together() -> None:
    lines, gate, done = Lines("test"), threading.Event(), []
    lines.at("sick").put(lambda: done.append(gate.wait(60)))
    lines.at("well").put(lambda: done.append("well"))
    until(lambda: done)
    lines.close(0.2)  # which does not wait for the other
    assert done == ["well"]
    gate.set()
    until(lambda: done == ["well", True])
