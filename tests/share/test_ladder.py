"""Which mechanism holds a job here, what was proven of it, and what the job starts with."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import until
from share_cards import GIB, MIB, ONE, TWO, Job, drivers, hear, job, library, needs_compiler, tell

from gpuqueue import share
from gpuqueue.errors import MemoryCapError
from gpuqueue.model import Grant, Placement, ProcessId
from gpuqueue.share import Bound, Effect, Ladder, MemoryCap, Probe, Standing, Subject
from gpuqueue.share.memcap import LEDGER, canary

__all__ = ["drivers", "job", "library"]

PLACED = Placement((Grant(ONE, 250, 64 * MIB), Grant(TWO, 1000, 64 * GIB, whole=True)))
TOTALS = {ONE: 64 * GIB, TWO: 64 * GIB}


@dataclass
class Stand:
    """A mechanism that notes what it was asked."""

    name: str
    standing: Standing = Standing.CAPPED
    subject: Subject = Subject.MEMORY
    usable: bool = True
    reports: bool = False
    fails: bool = False
    scope: str = "each"
    changes: Effect = Effect.NOW
    bypass: str = "nothing"
    asked: list[Bound] = field(default_factory=list)
    probes: int = 0

    def probe(self) -> Probe:
        self.probes += 1
        return Probe(self.usable, f"{self.name} was tried")

    def environment(self, bound: Bound):
        self.asked.append(bound)
        if self.fails:
            raise MemoryCapError("not for this job")
        return {self.name: "on"}

    def apply(self, bound: Bound, process: ProcessId) -> None: ...

    def resize(self, bound: Bound) -> Effect:
        return Effect.NOW

    def verify(self, bound: Bound, users) -> tuple[str, ...]:
        return ()

    def release(self, bound: Bound) -> None: ...


def start(*mechanisms: Stand) -> share.Outcome:
    return share.environment(
        PLACED, Path("/job"), ladder=Ladder(mechanisms), totals=TOTALS, base={"A": "1"}
    )


def test_the_first_that_works_and_all_advice():
    first, second, third = Stand("first", usable=False), Stand("second"), Stand("third")
    advice = Stand("advice", Standing.ADVISED)
    outcome = start(first, second, third, advice)
    assert outcome.environment == {"second": "on", "advice": "on"}
    assert outcome.by == ("second", "advice")
    assert outcome.standing is Standing.CAPPED
    assert outcome.missing == {"first": "first was tried"}
    assert not third.asked


def test_each_is_tried_once():
    mechanism = Stand("it")
    ladder = Ladder([mechanism])
    for _ in range(3):
        share.environment(PLACED, Path("/job"), ladder=ladder, totals=TOTALS, base={})
    assert mechanism.probes == 1


def test_what_did_not_work_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch):
    clock = [1000.0]
    monkeypatch.setattr("gpuqueue.share.ladder.time.monotonic", lambda: clock[0])
    mechanism = Stand("it", usable=False)
    ladder = Ladder([mechanism])
    bound = Bound(Path("/job"), {ONE: MIB})
    tried = []
    for moment in (1000.0, 1299.0, 1301.0, 1800.0, 1902.0):
        clock[0] = moment
        assert ladder.start(bound).memory is Standing.ADMITTED_ONLY
        tried.append(mechanism.probes)
    assert tried == [1, 1, 2, 2, 3]
    mechanism.usable, clock[0] = True, 9999.0
    assert not ladder.picked()  # whoever only looks does not wait for a trial
    assert ladder.start(bound).memory is Standing.CAPPED
    clock[0] = 1e9
    assert ladder.start(bound).by == ("it",)
    assert mechanism.probes == 4


class Slow(Stand):
    """One whose trial ends when it is let."""

    def __init__(self, name: str, **more: object) -> None:
        super().__init__(name, **more)  # type: ignore[arg-type]
        self.gate = threading.Event()
        self.begun = threading.Event()

    def probe(self) -> Probe:
        self.begun.set()
        assert self.gate.wait(60)
        return super().probe()


def test_each_is_used_from_the_end_of_its_own_trial_on():
    cap, mps = Stand("cap"), Slow("mps", subject=Subject.COMPUTE)
    ladder = Ladder([mps, cap, Stand("advice", Standing.ADVISED)])
    heard: list[str] = []
    threads = ladder.begin(lambda: heard.append("one"))
    until(lambda: ladder.trying == ("mps",))
    assert (ladder.complete, ladder.works) == (False, True)
    assert not ladder.tried(["mps", "cap"])
    assert ladder.tried(["cap", "advice", "what is not there"])
    assert ladder.decided(Subject.MEMORY)
    assert not ladder.decided(Subject.COMPUTE)
    # a job that starts now has what there is, and waits for nothing
    outcome = ladder.start(Bound(Path("/job"), {ONE: MIB}, compute={ONE: 250}))
    assert outcome.by == ("cap", "advice")
    assert outcome.memory is Standing.CAPPED
    assert outcome.missing == {"mps": "It is still being tried here."}
    assert outcome.reasons == {Subject.COMPUTE: "It is still being tried here."}
    assert (mps.probes, cap.probes) == (0, 1)
    mps.gate.set()
    for thread in threads:
        thread.join()
    assert ladder.complete
    assert heard == ["one"] * 3
    assert ladder.promises() == dict.fromkeys(Subject, Standing.CAPPED)
    assert (mps.probes, cap.probes) == (1, 1)


def test_who_wants_to_know_all_waits_for_the_trials_of_others():
    slow = Slow("slow")
    ladder = Ladder([slow, Stand("quick")])
    ladder.begin()
    found: list[object] = []
    asker = threading.Thread(target=lambda: found.append(ladder.probes()))
    asker.start()
    assert slow.begun.wait(60)
    assert not found
    slow.gate.set()
    asker.join(60)
    assert set(found[0]) == {"slow", "quick"}
    assert slow.probes == 1


def test_a_second_that_is_proven_first_holds_until_the_first_is():
    slow, second = Slow("slow"), Stand("second")
    ladder = Ladder([slow, second])
    threads = ladder.begin()
    until(lambda: ladder.works)
    bound = Bound(Path("/job"), {ONE: MIB})
    assert ladder.decided(Subject.MEMORY)
    assert ladder.start(bound).by == ("second",)
    slow.gate.set()
    for thread in threads:
        thread.join()
    assert ladder.start(bound).by == ("slow",)


def test_a_start_waits_for_no_trial_that_another_has_begun_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("gpuqueue.share.ladder._RETRY", 0.0)
    slow, cap = Slow("slow", usable=False, subject=Subject.COMPUTE), Stand("cap")
    slow.gate.set()
    ladder = Ladder([slow, cap])
    ladder.probes()
    slow.gate.clear()
    slow.begun.clear()
    bound = Bound(Path("/job"), {ONE: MIB}, compute={ONE: 250})
    first = threading.Thread(target=lambda: ladder.start(bound))
    first.start()
    assert slow.begun.wait(60)
    assert ladder.start(bound).by == ("cap",)  # though the first still tries
    slow.gate.set()
    first.join(60)
    assert not first.is_alive()


def test_what_a_job_is_told_is_the_measure_of_what_comes_after():
    cap, advice = Stand("cap", reports=True), Stand("advice", Standing.ADVISED)
    start(cap, advice)
    assert cap.asked[0].totals == TOTALS
    assert advice.asked[0].totals == {ONE: 64 * MIB, TWO: 64 * GIB}
    assert advice.asked[0].base == {"A": "1", "cap": "on"}
    # a whole GPU has no cap
    assert cap.asked[0].caps == {ONE: 64 * MIB, TWO: None}


def test_one_that_fails_for_a_job_is_told():
    outcome = start(Stand("cap", fails=True), Stand("advice", Standing.ADVISED))
    assert outcome.standing is Standing.ADVISED
    assert outcome.missing == {"cap": "not for this job"}
    assert start().standing is Standing.ADMITTED_ONLY


def test_without_a_cap_nothing_is_claimed():
    placed = Placement((Grant(ONE, 1000, 64 * GIB, whole=True),))
    outcome = share.environment(
        placed, Path("/job"), ladder=Ladder([Stand("cap")]), totals=TOTALS, base={}
    )
    assert outcome.standing is Standing.ADMITTED_ONLY


def test_a_job_inside_a_job_leaves_the_others_ledger():
    outcome = share.environment(
        Placement(), Path("/job"), ladder=Ladder([]), totals={}, base={LEDGER: "/other/memcap"}
    )
    assert outcome.environment == {LEDGER: ""}


@needs_compiler
def test_the_cap_is_proven_before_it_is_claimed(job: Job, tmp_path: Path):
    base = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(job.drivers)}
    ladder = share.memory_ladder(tmp_path / "memcap", ONE, base)
    assert ladder.probes()["memory cap"].usable, ladder.probes()
    outcome = share.environment(PLACED, job.folder, ladder=ladder, totals=TOTALS, base=base)
    assert outcome.standing is Standing.CAPPED
    assert outcome.by == ("memory cap", "framework settings")
    assert outcome.missing == {}
    # fractions are of the cap, which is what the job sees, so none is set
    assert set(outcome.environment) == {"LD_PRELOAD", LEDGER, "CUPY_GPU_MEMORY_LIMIT"}
    job.variables = dict(outcome.environment)
    assert job.run("use(); say(alloc(65 * MIB), info()[1] // MIB)") == ["-2 64"]


@needs_compiler
def test_without_a_driver_there_is_advice_and_the_reason(tmp_path: Path):
    ladder = share.memory_ladder(tmp_path / "memcap", ONE, {"PATH": os.environ["PATH"]})
    outcome = share.environment(PLACED, tmp_path, ladder=ladder, totals=TOTALS, base={})
    assert outcome.standing is Standing.ADVISED
    assert "libcuda" in outcome.missing["memory cap"]
    assert outcome.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.0009"


@needs_compiler
def test_a_library_that_does_not_hold_is_found_out(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = tmp_path / "idle.c"
    source.write_text("int idle(void) { return 0; }\n")
    idle = tmp_path / "idle.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", idle, source], check=True)
    base = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(job.drivers)}
    assert "were not refused" in canary.try_out(idle, ONE, base)
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    assert "printed" in canary.try_out(broken, ONE, base)
    monkeypatch.setattr(canary, "_SECONDS", 0.5)
    block = {"FAKE_CUDA_BLOCK": str(2 * MIB), "FAKE_CUDA_AT": str(tmp_path / "at")}
    assert "did not end" in canary.try_out(job.library, ONE, base | block)


@needs_compiler
def test_the_cap_of_a_running_job(job: Job, tmp_path: Path):
    cap = MemoryCap(tmp_path / "memcap", ONE)
    bound = Bound(job.folder, {ONE: 64 * MIB})
    job.variables = dict(cap.environment(bound))
    first = job.start("use(); alloc(40 * MIB); say('held'); heard(); say(alloc(512)); heard()")
    hear(first)
    assert cap.verify(bound, [first.pid]) == ()
    (stranger,) = cap.verify(bound, [first.pid, 1])
    assert "Process 1 uses a GPU" in stranger
    smaller = Bound(job.folder, {ONE: 30 * MIB})
    assert cap.resize(smaller) is Effect.NOW
    (over,) = cap.verify(smaller, [first.pid])
    assert f"{10 * MIB} bytes more" in over
    tell(first)
    assert hear(first) == "-2"
    cap.release(bound)
    cap.release(bound)
    assert cap.environment(Bound(job.folder, {})) == {}


def test_compute_and_memory_are_held_each_by_its_own():
    slow = Stand("slow", subject=Subject.COMPUTE, usable=False)
    fast, faster = Stand("fast", subject=Subject.COMPUTE), Stand("faster", subject=Subject.COMPUTE)
    cap = Stand("cap", usable=False)
    ladder = Ladder([slow, fast, faster, cap, Stand("advice", Standing.ADVISED)])
    assert ladder.promises() == {"compute": Standing.CAPPED, "memory": Standing.ADVISED}
    assert ladder.reasons() == {"memory": "cap was tried"}
    outcome = share.environment(PLACED, Path("/job"), ladder=ladder, totals=TOTALS, base={})
    assert outcome.by == ("fast", "advice")
    assert outcome.standings == ladder.promises()
    assert outcome.standing is outcome.memory
    assert not outcome.whole
    assert fast.asked[0].compute == {ONE: 250, TWO: None}
    bound = fast.asked[0]
    assert ladder.resize(bound, outcome.by) == {"compute": Effect.NOW}
    assert ladder.verify(bound, outcome.by, [1]) == ()
    ladder.release(bound, outcome.by)


def test_a_job_alone_on_its_gpus_says_so():
    placed = Placement((Grant(ONE, 1000, 64 * GIB, whole=True),))
    outcome = share.environment(placed, Path("/job"), ladder=Ladder([]), totals=TOTALS, base={})
    assert outcome.whole


def test_one_that_cannot_let_go_does_not_keep_the_others(caplog: pytest.LogCaptureFixture):
    class Stuck(Stand):
        def release(self, bound: Bound) -> None:
            raise OSError("no room")

    class Noted(Stand):
        def release(self, bound: Bound) -> None:
            self.asked.append(bound)

    stuck, noted = Stuck("stuck"), Noted("noted")
    bound = Bound(Path("/job"), {})
    Ladder([stuck, noted]).release(bound, ("stuck", "noted"))
    assert noted.asked == [bound]
    assert "stuck could not let go of a job: no room" in caplog.text
