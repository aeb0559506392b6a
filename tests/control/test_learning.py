"""What earlier runs of a command teach, and what is kept with a job."""

import time

from conftest import until

import gpuqueue
from gpuqueue.model import JobState


def test_the_third_run_is_expected_to_take_what_the_first_two_did(home):
    for _ in range(2):
        assert gpuqueue.submit(["sleep", "1"]).wait(60) == 0
    blockers = [gpuqueue.submit(["sleep", "600"], eta="10m") for _ in range(2)]
    third = gpuqueue.submit(["sleep", "1"])
    until(lambda: third.record.learned is not None, what="it is taught")
    assert 1.0 <= third.record.learned < 3.0
    told = gpuqueue.submit(["sleep", "1"], eta="5m")
    until(lambda: told.record.latest is not None, what="it is promised")
    assert told.record.learned is None
    other = gpuqueue.submit(["sleep", "2"])
    until(lambda: other.record.state is JobState.QUEUED)
    assert other.record.learned is None
    for job in (*blockers, third, told, other):
        job.cancel()


def test_a_job_that_waits_learns_from_one_that_ends_meanwhile(home, tmp_path):
    command = ["sh", "-c", "until test -e go; do sleep 0.02; done"]
    first = gpuqueue.submit(command, cwd=tmp_path, eta="5m")
    blocker = gpuqueue.submit(["sleep", "600"], eta="10m")
    until(lambda: first.state is blocker.state is JobState.RUNNING)
    wall = gpuqueue.submit(["sleep", "600"], preset="exclusive")
    same = gpuqueue.submit(command, cwd=tmp_path)
    until(lambda: wall.record.latest is not None)
    assert same.record.learned is None
    (tmp_path / "go").touch()
    assert first.wait(60) == 0
    until(lambda: same.record.learned is not None, what="it is taught")
    # short enough now to go before the one that waits for the whole machine
    assert same.wait(60) == 0
    for job in (blocker, wall):
        job.cancel()


def test_a_promise_is_kept_with_the_job(home):
    blockers = [gpuqueue.submit(["sleep", "600"], eta="10m") for _ in range(2)]
    until(lambda: all(job.state is JobState.RUNNING for job in blockers))
    waiting = gpuqueue.submit(["sleep", "1"], eta="1m")
    until(lambda: waiting.record.latest is not None, what="it is promised")
    record = waiting.record
    assert abs(record.expected - (time.time() + 600)) < 60
    assert record.latest == record.expected + 3600
    wait = waiting._client.why(waiting.id)
    assert abs(wait.expected - record.expected) < 5
    for job in (*blockers, waiting):
        job.cancel()
