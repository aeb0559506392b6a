"""Two containers of a machine that share a state directory: neither sees the other's processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import lead_process, until

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.control.leading import lead_of
from gpuqueue.control.runners import lives
from gpuqueue.errors import NotAllowedNow
from gpuqueue.model import JobState, ModeName
from gpuqueue.run.files import ASK, is_held
from gpuqueue.run.process import alive, is_elsewhere, marked, process_table, send_signal

_APART = (
    "unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child",
)  # fmt: skip


def _can() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _can(), reason="no PID namespace can be made here")

# its lead is followed by none there, and killed when it is told so; its runners go on
_LEAD = """
import os, signal, sys
import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.control.lead import spawn_headless
spawn_headless(default_client().home)
if words := sys.argv[1:]:
    print(gpuqueue.submit(words, restartable=True).id, flush=True)
for line in sys.stdin:
    os.kill(default_client().lead()["pid"], signal.SIGKILL)
    print("killed", flush=True)
"""


@contextlib.contextmanager
def container(*words):
    """A PID namespace of its own with a lead, which submits a command."""
    process = subprocess.Popen(
        [*_APART, sys.executable, "-c", _LEAD, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GPUQUEUE_AUTOSTART": "0"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def orphan(*words):
    """A job that runs in a container whose lead is killed; the container and the job."""
    with container(*words) as process:
        job = gpuqueue.job(int(process.stdout.readline()))
        until(lambda: job.state is JobState.RUNNING)
        assert lead_of(default_client().store) is not None  # it is known here, too
        process.stdin.write("now\n")
        process.stdin.flush()
        assert process.stdout.readline() == "killed\n"
        yield process, job


def take_over():
    """Have the lead that is there by now take one look at every job."""
    assert gpuqueue.submit(["true"], preset="cpu").wait(60) == 0


@pytest.fixture
def one_gpu(home):
    """A queue of one GPU."""
    home.config.write_text("gpus = [0]\nslots = 4\n")
    return home


@pytest.mark.parametrize("where", ["outside", "in another"])
def test_a_job_of_a_container_runs_on_and_is_cancelled(one_gpu, tmp_path, monkeypatch, where):
    mark = tmp_path / "asked"
    script = f"trap 'touch {mark}; exit 1' TERM; touch {tmp_path}/on; while :; do sleep 0.05; done"
    with contextlib.ExitStack() as stack:
        _, job = stack.enter_context(orphan("sh", "-c", script))
        until((tmp_path / "on").exists)
        runner, folder = job.record.process, one_gpu.attempt(job.id, 1)
        assert is_elsewhere(runner)
        assert not alive(runner)
        assert not send_signal(runner, signal.SIGTERM)
        assert lives(folder, runner)
        if where == "in another":
            monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
            stack.enter_context(container())
        take_over()
        waiting = gpuqueue.submit(["true"])  # for the GPU that the job holds
        take_over()
        assert job.state is JobState.RUNNING
        assert waiting.state is JobState.QUEUED
        assert job.record.attempt == 1
        job.cancel()
        job.wait(60)
        assert job.state is JobState.CANCELLED
        assert mark.exists()
        assert waiting.wait(60) == 0
        assert not (folder / ASK).exists()
        assert not is_held(folder)


def test_a_job_goes_back_into_the_queue_when_its_container_is_removed(one_gpu, tmp_path):
    script = f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 2 || sleep 600"
    with orphan("sh", "-c", script) as (process, job):
        until((tmp_path / "runs").exists)
        take_over()
        process.kill()
        assert job.wait(60) == 0
        assert job.record.attempt == 2
        reasons = [event.data.get("reason", "") for event in default_client().store.events()]
        assert any(reason.startswith("lost: the container") for reason in reasons)


def test_without_room_for_a_doorbell_a_cancel_is_refused(one_gpu):
    with orphan("sleep", "600") as (_, job):
        take_over()
        (one_gpu.attempt(job.id, 1) / ASK).unlink()
        with pytest.raises(NotAllowedNow, match="runs in another container"):
            job.cancel()
        assert job.state is JobState.RUNNING


def test_one_of_this_container_is_not_elsewhere(home):
    job = gpuqueue.submit(["sleep", "600"])
    until(lambda: job.state is JobState.RUNNING)
    runner = job.record.process
    assert not is_elsewhere(runner)
    assert is_held(home.attempt(job.id, 1))
    assert not is_elsewhere(lead_process(home))
    os.kill(runner.pid, signal.SIGKILL)
    until(lambda: not is_held(home.attempt(job.id, 1)))
    job.wait(60)


def test_a_job_of_a_container_is_frozen_and_goes_on(one_gpu, tmp_path):
    """Its processes cannot be stopped from here; its own runner does it."""
    beats = tmp_path / "beats"
    with orphan("sh", "-c", f"while :; do echo x >> {beats}; sleep 0.02; done") as (_, job):
        until(beats.exists)
        take_over()
        store, folder = default_client().store, str(one_gpu.attempt(job.id, 1))

        def states():
            found = [process_table().get(pid) for pid in marked("GPUQUEUE_ATTEMPT_DIR", folder)]
            return {seen.state for seen in found if seen is not None}

        gpuqueue.free(soft=True)
        until(lambda: job.state is JobState.FROZEN)
        until(lambda: states() == {"T"})
        assert store.mode().name is ModeName.FREE
        then = beats.stat().st_size
        gpuqueue.resume()
        until(lambda: beats.stat().st_size > then)
        gpuqueue.free(soft=True)
        until(lambda: states() == {"T"})
        job.cancel()
        job.wait(60)
        assert job.state is JobState.CANCELLED
        gpuqueue.resume()
