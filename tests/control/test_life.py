"""What happens to jobs when processes end, are killed, or were of an earlier boot."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import end_leads, lead_process, leads_of, until

import gpuqueue
from gpuqueue.control.lead import spawn_headless
from gpuqueue.model import JobState
from gpuqueue.run.files import read_exit
from gpuqueue.run.process import alive, descendants, identify, marked, send_signal
from gpuqueue.store import Store

FAMILY = r"""
import os, signal, subprocess, sys, time
subprocess.Popen(["sleep", "701"])
subprocess.Popen(["setsid", "sleep", "702"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "703"])
    os._exit(0)
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(704)"
subprocess.Popen([sys.executable, "-c", stubborn])
print("ready", flush=True)
time.sleep(0 if sys.argv[1:] == ["leave"] else 600)
"""


def settings(home, text):
    home.config.write_text(text)


def running(job):
    return until(lambda: job.state is JobState.RUNNING, what=f"{job} runs")


def left_of(job):
    folder = job._client.home.attempt(job.id, max(1, job.record.attempt))
    return marked("GPUQUEUE_ATTEMPT_DIR", str(folder))


@pytest.mark.parametrize("way", ["cancel", "leave"])
def test_no_descendant_is_left_and_the_gpu_waits_for_the_last(home, tmp_path, way):
    settings(home, "grace = 0.5\ngpus = [0]\n")
    (tmp_path / "fam.py").write_text(FAMILY)
    job = gpuqueue.submit(
        ["python", "fam.py", *(["leave"] if way == "leave" else [])], cwd=tmp_path
    )
    after = gpuqueue.submit(["true"])  # waits for the one GPU
    until(lambda: "ready" in job.logs())
    if way == "cancel":
        until(lambda: len(left_of(job)) >= 5, what="all of the family are there")
        job.cancel()
    job.wait(60)
    assert left_of(job) == []
    assert job.state is (JobState.CANCELLED if way == "cancel" else JobState.SUCCEEDED)
    after.wait(60)
    assert after.record.started >= job.record.ended


def test_a_job_may_take_its_grace_to_end_well(home, tmp_path):
    settings(home, "grace = 30\n")
    (tmp_path / "t.py").write_text(
        "import signal, sys, time\n"
        "def end(*_):\n    print('saved', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
    )
    job = gpuqueue.submit(["python", "t.py"], cwd=tmp_path)
    until(lambda: "up" in job.logs())
    job.cancel()
    assert job.wait(60) == 3
    assert job.state is JobState.CANCELLED
    assert "saved" in job.logs()


DEAF = """
import multiprocessing as mp, signal, sys, time
if sys.argv[1] == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
mp.get_context("fork").Process(target=time.sleep, args=(600,)).start()
print("up", end="", flush=True)
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("way", "heard"), [("ignore", "which it ignores"), ("go on", "and has not")]
)
def test_the_log_says_that_a_program_did_not_end_when_asked_and_was_killed(
    home, tmp_path, way, heard
):
    settings(home, "grace = 0.5\n")
    (tmp_path / "deaf.py").write_text(DEAF)
    job = gpuqueue.submit(["python", "deaf.py", way], cwd=tmp_path)
    until(lambda: "up" in job.logs())
    until(lambda: len(left_of(job)) == 2)
    job.cancel()
    assert job.wait(60) == -signal.SIGKILL
    assert left_of(job) == []
    assert job.logs().splitlines()[-1] == (
        f"[gpuqueue: the program was asked to end by SIGTERM, {heard}; after 0.5 s (the setting "
        "grace) it was killed by SIGKILL, and 1 it had started]"
    )
    assert job.logs().count("SIGKILL") == 1


def test_interrupt_is_what_ctrl_c_would_be(home):
    def wait():
        print("up", flush=True)
        time.sleep(600)

    job = gpuqueue.submit(wait)
    until(lambda: "up" in job.logs())
    job.interrupt()
    with pytest.raises(gpuqueue.JobCancelled):
        job.result(60)
    assert "KeyboardInterrupt" in job.logs()


def test_signals_and_exit_codes_are_the_job_s_own(home):
    for number in (signal.SIGTERM, signal.SIGKILL):
        job = gpuqueue.submit(["sh", "-c", f"kill -{int(number)} $$"])
        assert job.wait(60) == -number
        assert number.name in job.reason
        assert job.state is JobState.FAILED


def test_a_program_that_vanished_is_told(home, tmp_path):
    settings(home, "gpus = [0]\n")
    program = tmp_path / "p.sh"
    program.write_text("#!/bin/sh\ntrue\n")
    program.chmod(0o755)
    blocker = gpuqueue.submit(["sleep", "600"])
    running(blocker)
    job = gpuqueue.submit([program])
    program.unlink()
    blocker.cancel()
    job.wait(60)
    assert job.state is JobState.FAILED
    assert "could not start" in job.reason
    assert str(program) in job.reason


def test_a_flood_is_kept_up_to_its_limit_with_a_note(home):
    settings(home, 'log_limit = "1M"\n')
    job = gpuqueue.submit(
        ["python", "-c", "print('first'); [print('y' * 999) for _ in range(20000)]; print('last')"]
    )
    assert job.wait(60) == 0
    text = job.logs()
    assert len(text) < 1.3 * 2**20
    assert text.startswith("first")
    assert text.endswith("last\n")
    assert "gpuqueue:" in text


def test_killing_the_lead_touches_no_job(home):
    job = gpuqueue.submit(["sh", "-c", "sleep 1; exit 5"])
    running(job)
    first = lead_process(home)
    send_signal(first, signal.SIGKILL)
    until(lambda: not alive(first))
    other = until(lambda: lead_process(home), what="another leads, though nobody asked")
    assert other.pid != first.pid
    assert job.wait(60) == 5
    kinds = [event.kind for event in job._client.store.events(job_id=job.id)]
    assert [k for k in kinds if k != "code"] == ["submitted", "starting", "started", "ended"]


def test_whoever_waits_has_a_lead_again(home):
    job = gpuqueue.submit(["sh", "-c", "sleep 1; exit 5"])
    running(job)
    send_signal(lead_process(home), signal.SIGKILL)
    assert job.wait(60) == 5  # waiting notices that nobody leads


def test_many_leads_at_once_make_one(home):
    for _ in range(5):
        spawn_headless(home)
    job = gpuqueue.submit(["true"])
    assert job.wait(60) == 0
    until(lambda: len(leads_of(home)) == 1, what="the others give up")
    kinds = [event.kind for event in job._client.store.events(job_id=job.id)]
    assert kinds.count("starting") == 1


def test_a_job_submitted_while_nobody_leads_waits_in_the_store(home, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    job = gpuqueue.submit(["true"])
    gone = gpuqueue.submit(["true"])
    gone.cancel()
    assert leads_of(home) == []
    assert job.state is JobState.QUEUED
    spawn_headless(home)
    assert job.wait(60) == 0
    gone.wait(60)
    assert gone.state is JobState.CANCELLED


def test_killing_the_runner_ends_the_job_as_lost(home):
    job = gpuqueue.submit(["sh", "-c", "sleep 600 & sleep 600"])
    running(job)
    until(lambda: len(left_of(job)) >= 2)
    send_signal(job.record.process, signal.SIGKILL)
    job.wait(60)
    assert job.state is JobState.FAILED
    assert "lost" in job.reason
    assert left_of(job) == []
    with pytest.raises(gpuqueue.JobLost):
        job.result()


def test_a_restartable_job_starts_again_when_its_runner_is_killed(home, tmp_path):
    job = gpuqueue.submit(
        [
            "sh",
            "-c",
            f"echo x >> '{tmp_path}/runs'; test $(wc -l < '{tmp_path}/runs') = 2 || sleep 600",
        ],
        restartable=True,
    )
    running(job)
    until(lambda: (tmp_path / "runs").exists())
    send_signal(job.record.process, signal.SIGKILL)
    assert job.wait(60) == 0
    assert job.record.attempt == 2
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def pretend(home, job_id, **changes):
    """Rewrite a job's recorded process, as if the machine had gone on without it."""
    with sqlite3.connect(home.database) as db:
        for name, value in changes.items():
            db.execute(
                "UPDATE jobs SET process = json_set(process, ?, ?) WHERE id = ?",
                (f"$.{name}", value, job_id),
            )


@pytest.mark.parametrize("restartable", [False, True])
def test_after_a_reboot(home, restartable):
    job = gpuqueue.submit(["sleep", "600"], restartable=restartable)
    running(job)
    process = job.record.process
    end_leads(home)
    send_signal(process, signal.SIGKILL)
    for pid in left_of(job):
        os.kill(pid, signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        pretend(home, job.id, boot="another-boot", pid=stranger.pid)
        spawn_headless(home)
        if restartable:
            until(lambda: job.record.attempt == 2 and job.state is JobState.RUNNING)
            job.cancel()
            job.wait(60)
        else:
            job.wait(60)
            assert job.state is JobState.FAILED
            assert "machine restarted" in job.reason
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_stranger_with_the_job_s_pid_is_left_alone(home):
    job = gpuqueue.submit(["sleep", "600"])
    running(job)
    process = job.record.process
    end_leads(home)
    send_signal(process, signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        pretend(home, job.id, pid=stranger.pid)  # the pid is in use, but not by our process
        spawn_headless(home)
        job.wait(60)
        assert job.state is JobState.FAILED
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_lock_on_the_database_delays_and_loses_nothing(home):
    gpuqueue.submit(["true"]).wait(60)
    job = gpuqueue.submit(["sh", "-c", "sleep 0.5"])
    running(job)
    db = sqlite3.connect(home.database, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    until(lambda: read_exit(home.attempt(job.id, 1)))
    assert gpuqueue.status().running[0].id == job.id  # reading goes on
    db.execute("ROLLBACK")
    assert job.wait(60) == 0


def test_settings_are_read_again_and_a_bad_file_changes_nothing(home):
    gpuqueue.submit(["true"]).wait(60)
    blocker = gpuqueue.submit(["sleep", "600"], preset="one")
    other = gpuqueue.submit(["sleep", "600"], preset="one")
    third = gpuqueue.submit(["true"], preset="cpu")  # 4 slots are taken
    running(other)
    assert "slot" in third.why()
    home.config.write_text("slots = [")
    until(lambda: gpuqueue.status().warning)
    assert gpuqueue.status().slots == 4
    home.config.write_text("slots = 5\n")
    assert third.wait(60) == 0
    blocker.cancel()
    other.cancel()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mount namespaces")
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root to make a disk")
def test_a_full_disk_costs_output_and_submits_but_no_job(home, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)]
    if subprocess.run(words, check=False).returncode != 0:
        pytest.skip("this root may not mount, as in many containers")
    try:
        _full_disk(small)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def _full_disk(small):
    from conftest import clean_up

    from gpuqueue.client import Job, LocalClient
    from gpuqueue.client.payload import script_payload
    from gpuqueue.client.request import options_from
    from gpuqueue.paths import Home

    client = LocalClient(Home(small))

    def submit(*words):
        record = client.submit([(script_payload(words), options_from({}))])[0]
        return Job(client, record.id)

    try:
        flood = submit("python", "-c", "for _ in range(60000): print('y' * 999)")
        other = submit("sh", "-c", "sleep 0.5; echo survived")
        assert other.wait(60) == 0
        assert "survived" in other.logs()
        assert flood.wait(60) == 0
        assert "not kept" in flood.logs()
        fill(small)
        refusal = until(lambda: refused(submit), what="a submit is refused")
        assert "no space" in str(refusal)
        assert not [path for path in client.home.jobs.iterdir() if path.name.startswith(".new")]
        (small / "fill").unlink()
        assert submit("true").wait(60) == 0
        until(lambda: not client.store.live(), what="all that was queued has ended")
        assert client.store.counts().keys() == {"succeeded"}
    finally:
        client.close()
        clean_up(Home(small))


def refused(submit):
    """The refusal of one submit; the database may have room within its pages for a while."""
    from gpuqueue.errors import NoSpace

    try:
        submit("true")
    except NoSpace as error:
        return error
    return None


def fill(folder: Path) -> None:
    with open(folder / "fill", "wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


def test_process_identity():
    me = identify(os.getpid())
    assert alive(me)
    child = subprocess.Popen(["sleep", "60"])
    known = identify(child.pid)
    assert child.pid in descendants(os.getpid())
    child.kill()
    until(lambda: not alive(known), what="a zombie is not alive")
    child.wait()
    assert not send_signal(known, signal.SIGTERM)
    assert identify(child.pid) is None


def test_the_store_is_all_the_controller_remembers(home):
    """A controller that dies between recording a start and ordering it does not lose the job."""
    job = gpuqueue.submit(["true"])
    job.wait(60)
    end_leads(home)
    store = Store(home.database)
    with store.transaction() as db:
        db.execute(
            "UPDATE jobs SET state = 'starting', attempt = 2, returncode = NULL, process = NULL, "
            "ended = NULL WHERE id = ?",
            (job.id,),
        )
    store.close()
    spawn_headless(home)
    assert job.wait(60) == 0
    assert job.record.attempt == 2
