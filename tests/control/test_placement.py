"""Where jobs go and why they wait, with real processes on pretend GPUs."""

import os
import subprocess
import time

import pytest
from conftest import until

import gpuqueue
from gpuqueue.model import TERMINAL, JobState

pytestmark = pytest.mark.usefixtures("home")


def up(*jobs):
    until(lambda: all(job.state is JobState.RUNNING for job in jobs), what="all run at once")


def end(*jobs):
    for job in jobs:
        if not job.done():
            job.cancel()
    for job in jobs:
        job.wait(60)


def test_each_job_has_a_gpu_of_its_own_through_a_wrapper(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "24G,24G,24G,24G")
    wrap = tmp_path / "wrap.sh"
    wrap.write_text("#!/bin/sh\nsh -c 'echo dev=$CUDA_VISIBLE_DEVICES; sleep 600'\n")
    wrap.chmod(0o755)
    jobs = [gpuqueue.submit([wrap], gpus=1) for _ in range(4)]
    until(lambda: all("dev=" in job.logs() for job in jobs))
    assert sorted(job.logs().strip() for job in jobs) == ["dev=0", "dev=1", "dev=2", "dev=3"]
    shown = {
        g["job"]: gpu["index"] for gpu in gpuqueue.status().to_dict()["gpus"] for g in gpu["grants"]
    }
    assert {job.id: int(job.logs().strip()[4:]) for job in jobs} == shown
    end(*jobs)


def test_a_stream_of_small_jobs_does_not_starve_a_wide_one():
    began = time.monotonic()
    small = [gpuqueue.submit(["sleep", "0.4"], gpus=1) for _ in range(4)]
    wide = gpuqueue.submit(["sleep", "0.4"], gpus=2)

    def more():
        small.append(gpuqueue.submit(["sleep", "0.4"], gpus=1))
        return wide.state not in (JobState.QUEUED, JobState.STARTING)

    until(more)
    wide.wait(60)
    behind = [job for job in small[4:] if job.record.started]
    assert all(job.record.started >= wide.record.started for job in behind)
    assert time.monotonic() - began < 60
    for job in small:
        if not job.done():
            job.cancel()


def test_without_the_guard_a_stream_of_small_jobs_starves_a_wide_one(home):
    home.config.write_text("starvation_guard = false\n")
    small = [gpuqueue.submit(["sleep", "0.4"], gpus=1) for _ in range(4)]
    wide = gpuqueue.submit(["true"], gpus=2)
    # always two more that wait: whenever a GPU comes free one of them is there to take it
    for _ in range(12):
        small[-3].wait(60)
        small.append(gpuqueue.submit(["sleep", "0.4"], gpus=1))
    assert wide.state is JobState.QUEUED
    assert sum(job.record.started is not None for job in small) > 8
    assert wide.wait(60) == 0
    assert wide.record.started >= max(job.record.started for job in small)


def test_what_fits_exactly_starts():
    both = gpuqueue.submit(["sleep", "600"], gpus=2)
    up(both)
    end(both)
    full = gpuqueue.submit(["sleep", "600"], mem="24G")
    up(full)
    end(full)


@pytest.mark.parametrize("options", [{"mem": "8G"}, {"share": "1/3"}, {"share": 1 / 3}])
def test_three_thirds_share_one_gpu(options, home):
    home.config.write_text("gpus = [0]\nslots = 4\n")
    jobs = [gpuqueue.submit(["sleep", "600"], **options) for _ in range(3)]
    up(*jobs)
    assert {job.placement.gpus for job in jobs} == {("FAKE-0",)}
    end(*jobs)


def test_shared_gpus_fill_up_first():
    jobs = [gpuqueue.submit(["sleep", "600"], mem="4G") for _ in range(3)]
    up(*jobs)
    assert len({job.placement.gpus for job in jobs}) == 1
    whole = gpuqueue.submit(["sleep", "600"], slots=1)
    up(whole)
    end(*jobs, whole)


def test_a_job_is_told_what_it_got():
    def told():
        return os.environ["GPUQUEUE_COMPUTE"], os.environ["GPUQUEUE_MEMORY"]

    assert gpuqueue.submit(told, share=0.25).result(60) == ("0.25", str(6 * 2**30))


def test_a_waiting_job_names_who_holds_the_gpu_outside_the_queue(tmp_path, monkeypatch, home):
    procs = tmp_path / "procs"
    procs.write_text(f"{os.getpid()}:0:20000\n{os.getpid()}:1:20000\n")
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(procs))
    job = gpuqueue.submit(["true"])
    until(lambda: str(os.getpid()) in job.why(), what="the holder is named")
    wait = job._client.why(job.id)
    assert wait.reason == "outside use"
    # it can be cancelled while it waits, once, and nothing starts later
    job.cancel()
    assert job.wait(60) is None
    assert job.state is JobState.CANCELLED
    with pytest.raises(gpuqueue.GpuqueueError, match="already"):
        job.cancel()
    free = gpuqueue.submit(["true"])
    procs.write_text("")
    assert free.wait(60) == 0
    assert job.record.attempt == 0


def test_a_notebook_that_holds_a_gpu_is_named(tmp_path, monkeypatch):
    name = "/home/ann/some folder/train (2).ipynb"
    kernel = subprocess.Popen(["sleep", "600"], env={"JPY_SESSION_NAME": name})
    procs = tmp_path / "procs"
    procs.write_text(f"{kernel.pid}:0:20000\n{kernel.pid}:1:20000\n")
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(procs))
    job = gpuqueue.submit(["true"])
    until(lambda: f"notebook train (2).ipynb, pid {kernel.pid} (" in job.why())
    assert f"notebook train (2).ipynb, pid {kernel.pid}" in str(gpuqueue.status())
    kernel.kill()
    kernel.wait()
    procs.write_text("")
    assert job.wait(60) == 0


def test_a_job_s_own_memory_is_not_outside_use(tmp_path, monkeypatch):
    procs = tmp_path / "procs"
    procs.write_text("")
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(procs))
    job = gpuqueue.submit(["sh", "-c", "echo pid=$$; sleep 600"], mem="8G")
    until(lambda: "pid=" in job.logs())
    procs.write_text(f"{job.logs().strip()[4:]}:0:8000\n")
    second = gpuqueue.submit(["sleep", "600"], mem="12G")
    up(second)

    def used():
        gpu = gpuqueue.status().to_dict()["gpus"][0]
        assert gpu["outside"] == 0
        return [g["used"] for g in gpu["grants"] if g["job"] == job.id] == [8000 * 2**20]

    until(used, what="its memory is shown")
    assert "uses 7.8G" in str(gpuqueue.status())
    assert second.placement.gpus == job.placement.gpus
    end(job, second)


def test_nothing_runs_beside_an_exclusive_job():
    first = gpuqueue.submit(["sleep", "600"], preset="exclusive")
    cpu = gpuqueue.submit(["true"], preset="cpu")
    up(first)
    assert cpu.state is JobState.QUEUED
    assert str(first.id) in cpu.why()
    end(first)
    assert cpu.wait(60) == 0
    assert cpu.state in TERMINAL
