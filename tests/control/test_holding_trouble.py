"""What holds jobs fails in ways that nobody foresaw, is slow, or was left by a lead that died."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from conftest import until
from holding_stage import *  # noqa: F403
from holding_stage import Lead, Stand

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.holding import FACT, Holder
from gpuqueue.control.keeping import Keeper
from gpuqueue.model import (
    Gpu,
    Grant,
    Hold,
    IntentKind,
    Job,
    JobKind,
    JobState,
    Origin,
    Placement,
    Request,
)
from gpuqueue.paths import Home
from gpuqueue.share import Bound, Effect, Ladder, Subject

CARDS = (Gpu("FAKE-0", 0, "pretend", 2**34, fake=True),)
PART = Placement((Grant("FAKE-0", 500, 2**30, whole=False),), 1)


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


@dataclass
class Slow(Stand):
    """One whose looks wait for ``daemon``; ``done`` tells in which order its calls were begun."""

    daemon: threading.Event = field(default_factory=threading.Event)
    done: list[str] = field(default_factory=list)

    def environment(self, bound: Bound) -> dict[str, str]:
        self.done.append(f"start {bound.folder.parent.name}")
        return super().environment(bound)

    def resize(self, bound: Bound) -> Effect:
        self.done.append(f"resize {bound.folder.parent.name}")
        assert self.daemon.wait(60)
        return super().resize(bound)

    def verify(self, bound: Bound, users: Collection[int]) -> tuple[str, ...]:
        self.done.append(f"look {bound.folder.parent.name} {max(users)}")
        assert self.daemon.wait(60)
        return ()


def running(number: int) -> Job:
    return Job(number, JobKind.SCRIPT, JobState.RUNNING, Request(), "a", "me", "s", "/", Origin(),
               0, 1, attempt=1, placement=PART, hold=Hold(by=("stand",)))  # fmt: skip


def test_looks_at_a_sick_daemon_keep_no_start_waiting(home: Home) -> None:
    slow = Slow()
    slow.gate.set()
    holder = Holder(home, lambda *_: Ladder([slow]))
    holder.know(())
    until(lambda: not holder.trying)
    first, second, third = (running(number) for number in (1, 2, 3))
    folders = {job.id: home.attempt(job.id, 1) for job in (first, second, third)}
    for pid in range(1, 21):  # its processes come and go
        holder.verify(first, folders[1], {pid})
        until(lambda: slow.done)
    holder.verify(second, folders[2], {30})
    holder.verify(third, folders[3], {40})
    holder.start(running(4), home.attempt(4, 1), None)
    # what is to change a job comes after what was to be seen of it as it was
    holder.resize(third, PART, folders[3], 7)
    holder.release(folders[2])
    slow.daemon.set()
    until(lambda: "look 1 20" in slow.done)
    names = {job: folder.parent.name for job, folder in folders.items()}
    four = home.attempt(4, 1).parent.name
    assert slow.done == [
        f"look {names[1]} 1", f"start {four}", f"look {names[3]} 40", f"resize {names[3]}",
        f"look {names[1]} 20",
    ]  # fmt: skip
    assert slow.released == [folders[2]]
    holder.close()


def test_what_a_lead_made_that_was_killed_then_is_let_go_of(
    home: Home, proven: Lead, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(Keeper, "take_in", lambda keeper, turn: False)  # it takes in no answer
        job = gpuqueue.submit(["sleep", "0.1"], share=0.25)
        until(lambda: proven.stand.asked, what="the job's share is made ready")
        proven.end()
    assert job.state is JobState.STARTING
    # the next one is not through with its trials
    proven.stand.gate.clear()
    monkeypatch.setattr("gpuqueue.control.holding._MOMENT", 0.0)
    proven.__init__(home, proven.stand)
    proven.stand.released.clear()
    until(lambda: job.state in {JobState.RUNNING, JobState.SUCCEEDED})
    assert job.hold is not None
    assert job.hold.by == ()
    proven.stand.gate.set()
    assert job.wait(60) == 0
    until(lambda: proven.stand.released == [home.attempt(job.id, 1)])


def test_releases_wait_for_gpus(home: Home, stand: Stand) -> None:
    found: list[Ladder] = []
    holder = Holder(home, lambda *_: found[0] if found else None)
    holder.know(())
    holder.release(home.attempt(1, 1))
    found.append(Ladder([stand]))
    holder.know(CARDS)  # the driver answers now
    until(lambda: stand.released == [home.attempt(1, 1)])
    holder.close()


def test_nothing_is_kept_of_a_resize_whose_job_has_ended(
    home: Home, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    slow = Slow()
    slow.gate.set()
    lead = Lead(home, slow)
    try:
        until(lambda: (client.store.fact(FACT) or {}).get("standings"))
        job = gpuqueue.submit(["sleep", "600"], share=0.25)
        until(lambda: job.state is JobState.RUNNING)
        value = {"share": 500, "memory": None}
        (wish,) = client.store.intend(IntentKind.RESIZE, [job.id], value)
        client.wake("intent")
        until(lambda: any(call.startswith("resize") for call in slow.done))
        job.cancel()
        job.wait(60)
        until(lambda: client.store.intent(wish).done is not None)
        slow.daemon.set()
        until(lambda: slow.released)  # which is after the answer
        until(lambda: not lead.controller.holder._told)
        resizer = lead.controller.resizer
        until(lambda: not resizer._asked)
        until(lambda: not resizer._heard)
    finally:
        slow.daemon.set()
        lead.end()


def test_what_a_lead_was_started_for_is_held(
    home: Home, client: LocalClient, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    monkeypatch.setattr("gpuqueue.control.holding._MOMENT", 60.0)
    stand.gate.clear()
    job = gpuqueue.submit(["sh", "-c", "echo $STAND"], share=0.25)
    lead = Lead(home, stand)
    try:
        until(lambda: job.state is JobState.STARTING)
        stand.gate.set()  # its trial was a matter of moments
        assert job.wait(60) == 0
        assert job.logs() == "250\n"
        assert job.hold is not None
        assert job.hold.by == ("stand",)
    finally:
        lead.end()


def test_nothing_is_made_ready_after_the_moment(
    home: Home, client: LocalClient, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    monkeypatch.setattr("gpuqueue.control.holding._MOMENT", 60.0)
    stand.gate.clear()
    job = gpuqueue.submit(["sleep", "600"], share=0.25)
    lead = Lead(home, stand)
    try:
        until(lambda: job.state is JobState.STARTING)
        until(lambda: lead.controller.starter._preparing, what="it waits for the trials")
        monkeypatch.setattr("gpuqueue.control.holding._MOMENT", 0.0)
        until(lambda: job.state is JobState.RUNNING)
        stand.gate.set()
        until(lambda: not lead.controller.holder.trying)
        assert job.hold is not None
        assert job.hold.by == ()
        job.cancel()
        job.wait(60)
        assert not stand.asked  # nothing was made that nobody waited for any more
    finally:
        lead.end()
