"""Compute caps by MPS: jobs on a daemon, what they are told, and what is seen to hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from mps_stage import ONE, TWO, Stage, drivers, stage
from share_cards import GIB, MIB, needs_compiler

from gpuqueue import share
from gpuqueue.errors import MpsError
from gpuqueue.model import Gpu, Grant, Placement
from gpuqueue.share import Effect, Standing, Subject
from gpuqueue.share.memcap import LEDGER
from gpuqueue.share.mps import LIMIT, PERCENTAGE, PIPE

__all__ = ["drivers", "stage"]

pytestmark = needs_compiler


def test_what_a_trial_saw(stage: Stage):
    mps = stage.mps()
    probe = mps.probe()
    assert probe.usable, probe
    assert probe.figure == "66 of 132 multiprocessors at 50 per cent"
    assert probe.beside == "memory of each process"
    assert stage.daemons() == []
    assert not stage.place().pipe.exists()
    # it is not tried again by the next process
    before = len(stage.log)
    assert stage.mps().probe().on(ONE) == probe.on(ONE)
    assert len(stage.log) == before


def test_a_job_is_told_its_daemon_and_its_share(stage: Stage):
    mps = stage.mps()
    quarter = stage.job("a", 250, 6 * GIB)
    told = mps.environment(quarter)
    assert told == {
        PIPE: str(stage.place().pipe),
        PERCENTAGE: "25",
        LIMIT: "0=6144M",
        "CUDA_VISIBLE_DEVICES": ONE,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert len(told[PIPE]) < 75
    starts = [line for line in stage.log if line["command"] == "-d"]
    assert {line["gpus"] for line in stage.log} == {ONE}
    assert len(starts) == 2  # the trial's and the job's
    assert not {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", PERCENTAGE} & set(starts[1]["names"])
    assert "set_default_active_thread_percentage 25" in stage.commands
    process = stage.start(told, "n = c_int(); cu('cuDeviceGetAttribute', byref(n), 16, 0)")
    assert mps.verify(quarter, [process.pid]) == ()


def test_one_daemon_for_all_jobs_of_a_gpu(stage: Stage):
    mps = stage.mps()
    mps.probe()
    jobs = [stage.job(name) for name in "abcd"]
    pipes = {mps.environment(job)[PIPE] for job in jobs}
    assert pipes == {str(stage.place().pipe)}
    assert stage.commands.count("-d") == 2
    for job in jobs:
        assert len(stage.daemons()) == 1
        mps.release(job)
        mps.release(job)
    assert stage.daemons() == []
    assert stage.commands.count("quit") == 2


def test_the_daemon_gives_no_more_than_the_largest_share(stage: Stage):
    mps = stage.mps()
    mps.probe()
    small, large = stage.job("small", 125), stage.job("large", 500)
    mps.environment(small)
    process = stage.start({PIPE: str(stage.place().pipe)})  # it has lost its own share
    mps.environment(large)
    with stage.control().session() as session:
        (server,) = session.servers()
        assert session.number(f"get_active_thread_percentage {server}") == 50
        assert session.number("get_default_active_thread_percentage") == 50
    mps.release(large)
    with stage.control().session() as session:
        assert session.number(f"get_active_thread_percentage {server}") == 12
    (said,) = mps.verify(small, [process.pid])
    assert said == (
        f"Process {process.pid} was started with all per cent of the GPU's compute, and the job's "
        "share is 12."
    )


def test_a_process_beside_mps_is_seen(stage: Stage):
    mps = stage.mps()
    job = stage.job("a")
    told = mps.environment(job)
    wrong = {**told, PIPE: str(stage.folder / "nowhere")}
    process = stage.start(wrong, "n = c_int(); cu('cuDeviceGetAttribute', byref(n), 16, 0); "
                                 "assert n.value == 132")  # fmt: skip
    (said,) = mps.verify(job, [process.pid])
    assert said == (
        f"Process {process.pid} uses {ONE} and is not held to the job's share of compute: MPS does "
        "not have it. It was started without the job's environment, or before MPS was there."
    )


def test_a_share_changes_with_the_next_process(stage: Stage):
    mps = stage.mps()
    mps.probe()
    job, other = stage.job("a", 500), stage.job("a", 250)
    told = mps.environment(job)
    assert mps.resize(job) is Effect.NOW  # no change
    assert mps.resize(other) is Effect.NOW  # none of its processes is there yet
    assert "set_default_active_thread_percentage 25" in stage.commands
    process = stage.start(dict(told), "n = c_int(); cu('cuDeviceGetAttribute', byref(n), 16, 0); "
                                      "assert n.value == 33, n")  # fmt: skip
    assert mps.resize(job) is Effect.NEXT_START  # the process keeps what it has
    assert mps.resize(other) is Effect.NEXT_START
    process.communicate("\n")
    assert mps.resize(stage.job("none", None)) is Effect.NEXT_START


def test_a_smaller_share_beside_a_larger_one_waits_for_the_next_start(stage: Stage):
    mps = stage.mps()
    mps.probe()
    mps.environment(stage.job("large", 500))
    mps.environment(stage.job("a", 400))
    assert mps.resize(stage.job("a", 100)) is Effect.NEXT_START


def test_beside_the_memory_cap_it_limits_no_memory(stage: Stage):
    mps = stage.mps()
    # a process would keep that limit while the memory cap is raised
    job = stage.job("a", 250, 6 * GIB, GPUQUEUE_MEMCAP=str(stage.folder / "a" / "memcap"))
    assert LIMIT not in mps.environment(job)
    # that of the job that has submitted it says nothing
    job = stage.job("b", 250, 6 * GIB, GPUQUEUE_MEMCAP=str(stage.folder / "a" / "memcap"))
    assert mps.environment(job)[LIMIT] == "0=6144M"


def test_what_the_user_has_set_stays_if_it_is_less(stage: Stage):
    mps = stage.mps()
    for own, told in (("10", "10"), ("90", "25"), ("many", "25"), ("", "25"), ("-3", "1")):
        assert mps.environment(stage.job("a", **{PERCENTAGE: own}))[PERCENTAGE] == told


def test_a_daemon_of_the_jobs_own_is_left_alone(stage: Stage):
    with pytest.raises(MpsError, match=r"CUDA_MPS_PIPE_DIRECTORY=/run/mps, so it is left with"):
        stage.mps().environment(stage.job("a", **{PIPE: "/run/mps"}))
    assert stage.log == []


def test_a_job_from_inside_a_job_has_its_own_share_or_none(stage: Stage):
    mps = stage.mps()
    told = mps.environment(stage.job("outer", 100))
    assert mps.environment(stage.job("inner", 250, **told))[PERCENTAGE] == "25"
    free = mps.environment(stage.job("free", None, **told))
    assert free[PERCENTAGE] == "100"
    assert not Path(free[PIPE]).exists()
    assert mps.environment(stage.job("plain", None)) == {}


def test_parts_of_several_gpus(stage: Stage):
    job = stage.job("a")
    both = type(job)(job.folder, {}, base=job.base, compute={ONE: 250, TWO: 250})
    with pytest.raises(MpsError, match=r"parts of 2 GPUs\. Each has an MPS daemon of its own"):
        stage.mps(ONE, TWO).environment(both)


def test_each_gpu_is_tried_and_told_apart(stage: Stage):
    probe = stage.mps(ONE, "MIG-1").probe()
    assert probe.usable
    assert probe.on(ONE).usable
    assert "MIG-1 is a MIG instance" in probe.on("MIG-1").reason


def test_no_control_program(stage: Stage):
    mps = stage.mps(PATH="/nowhere")
    assert mps.probe().reason.startswith("There is no nvidia-cuda-mps-control on the PATH: install")
    assert stage.mps().name == "MPS"
    assert (mps.subject, mps.standing) == (Subject.COMPUTE, Standing.CAPPED)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("FAKE_MPS_LIES", "A cap of MPS does not hold: a program saw 132 of 132 multiprocessors"),
        ("FAKE_MPS_NO_LIMIT", "A program saw 66 of 132 multiprocessors at 50 per cent. MPS limits"),
    ],
)
def test_a_driver_that_does_not_hold_it(stage: Stage, lie: str, said: str):
    probe = stage.mps(**{lie: "1"}).probe()
    assert probe.reason.startswith(said)
    assert probe.usable is (lie == "FAKE_MPS_NO_LIMIT")
    assert probe.beside == ""
    assert stage.daemons() == []


def test_one_call_gives_compute_and_memory(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuqueue.share.mps.place._roots", lambda: [stage.root])
    ladder = share.ladder_for([Gpu(ONE, 0, "A GPU", 64 * GIB)], stage.folder / "m", stage.base)
    assert set(ladder.promises().values()) == {Standing.CAPPED}
    assert ladder.reasons() == {}
    folder = stage.folder / "job"
    folder.mkdir()
    placed = Placement((Grant(ONE, 250, 64 * MIB),))
    outcome = share.environment(
        placed, folder, ladder=ladder, totals={ONE: 64 * GIB}, base=stage.base
    )
    assert (outcome.compute, outcome.memory) == (Standing.CAPPED, Standing.CAPPED)
    assert outcome.by == ("memory cap", "MPS", "framework settings")
    assert outcome.missing == {}
    assert LIMIT not in outcome.environment
    assert {"LD_PRELOAD", LEDGER, PIPE, PERCENTAGE} <= set(outcome.environment)
    process = stage.start(
        dict(outcome.environment),
        "n = c_int(); cu('cuDeviceGetAttribute', byref(n), 16, 0); assert n.value == 33\n"
        "assert alloc(65 * MIB) == -OOM and alloc(32 * MIB) > 0",
    )
    bound = share.bound_of(placed, folder, totals={}, base={})
    assert ladder.verify(bound, outcome.by, [process.pid]) == ()
    assert len(ladder.verify(bound, outcome.by, [process.pid, 1])) == 2
    smaller = share.bound_of(Placement((Grant(ONE, 125, 16 * MIB),)), folder, totals={}, base={})
    assert ladder.resize(smaller, outcome.by) == {
        Subject.MEMORY: Effect.NOW,
        Subject.COMPUTE: Effect.NEXT_START,
    }
    process.communicate("\n")
    ladder.release(bound, outcome.by)
    assert stage.daemons() == []


def test_where_mps_fails_for_a_job_it_is_admitted_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gpuqueue.share.mps.place._roots", lambda: [stage.root])
    ladder = share.ladder_for([Gpu(ONE, 0, "A GPU", 64 * GIB)], stage.folder / "m", stage.base)
    (stage.folder / "job").mkdir()
    outcome = share.environment(
        Placement((Grant(ONE, 250, 0),)),
        stage.folder / "job",
        ladder=ladder,
        totals={},
        base={**stage.base, PIPE: "/run/mps"},
    )
    assert outcome.compute is Standing.ADMITTED_ONLY
    said = share.refusal(share.demanded("compute=hard"), outcome.standings, outcome.reasons)
    assert said.startswith(
        "It requires compute=hard, and compute would be admitted only here. The job's own "
        "environment has CUDA_MPS_PIPE_DIRECTORY=/run/mps, so it is left with that MPS"
    )
