"""The checks of the failure-injection test do find what they are for."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from failure_checks import Audit, Broken, Evidence, _sweep, check_job
from failure_choices import Make, rounds
from failure_processes import Killed

from gpuqueue.model import Event, Job, JobKind, JobState, Origin, ProcessId, Request
from gpuqueue.paths import Home
from gpuqueue.run.files import take_claim

RUNNER = ProcessId(100, 7, "boot")


def event(seq: int, kind: str, state: str = "", **data: object) -> Event:
    return Event(seq, float(seq), 1, kind, ({"state": state} if state else {}) | data)


def sound() -> Evidence:
    """A job that ran once and ended with 0."""
    job = Job(
        id=1, kind=JobKind.SCRIPT, state=JobState.SUCCEEDED, request=Request(), tag="t1",
        owner="o", command="c", cwd="/", origin=Origin(), submitted=1.0, position=1, attempt=1,
        started=3.0, ended=4.0, returncode=0,
    )  # fmt: skip
    events = [
        event(1, "submitted"), event(2, "starting", "starting"), event(3, "started", "running"),
        event(4, "ended", "succeeded", returncode=0),
    ]  # fmt: skip
    audit = Audit(begins=[(1, 55, 0)], ends=[(1, 55, 0)])
    return Evidence(Make("t1", "script", 0.1, 0, ()), job, events, audit, [], cancelled=False)


def failed(**changes: object) -> Job:
    return replace(sound().job, state=JobState.FAILED, **changes)


@pytest.fixture
def home(tmp_path) -> Home:
    home = Home(tmp_path)
    home.attempt(1, 1).mkdir(parents=True)
    take_claim(str(home.attempt(1, 1)), RUNNER)
    return home


def test_what_is_sound_passes(home):
    check_job(sound(), home, [])


ENDED_LOST = [*sound().events[:3], event(4, "ended", "failed")]
ENDED_FAILED = [*sound().events[:3], event(4, "ended", "failed", returncode=3)]

WRONG = {
    "began twice": {"audit": Audit(begins=[(1, 5, 0), (1, 6, 0)], ends=[(1, 6, 0)])},
    "ran in two attempts": {"audit": Audit(begins=[(1, 5, 0), (2, 6, 0)], ends=[(1, 6, 0)])},
    "never came to its end": {"audit": Audit(begins=[(1, 55, 0)])},
    "shared a whole GPU": {
        "audit": Audit(begins=[(1, 5, 0)], ends=[(1, 5, 0)], clashes=[(1, 5, 0)])
    },
    "false success": {"make": Make("t1", "script", 0.1, 3, ())},
    "ended twice": {"events": [*sound().events, event(5, "ended", "failed")]},
    "out of order": {"events": [event(9, "submitted"), *sound().events[1:]]},
    "skipped a state": {"events": [sound().events[0], *sound().events[2:]]},
    "state and events differ": {"events": sound().events[:3]},
    "lost, and nobody killed it": {
        "job": failed(returncode=None, reason="lost: its runner was killed"),
        "events": ENDED_LOST,
    },
    "another exit code": {"job": failed(returncode=3), "events": ENDED_FAILED},
    "before its parent": {"parents": [replace(sound().job, id=2, ended=50.0)]},
    "after a parent that failed": {"parents": [failed(id=2, ended=1.0)]},
    "cancelled by nobody": {
        "job": replace(sound().job, state=JobState.CANCELLED),
        "events": [*sound().events[:3], event(4, "ended", "cancelled")],
    },
    "negative time": {"job": replace(sound().job, ended=2.0)},
    "put back for nothing": {
        "events": [
            *sound().events[:3], event(4, "requeued", "queued", reason="lost: x"),
            event(5, "starting", "starting"), event(6, "started", "running"),
            event(7, "ended", "succeeded"),
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_is_found(home, what):
    with pytest.raises(Broken):
        check_job(replace(sound(), **WRONG[what]), home, [])


def test_lost_is_right_where_the_runner_was_killed(home):
    seen = replace(
        sound(), job=failed(returncode=None, reason="lost: its runner was killed"),
        events=ENDED_LOST, audit=Audit(begins=[(1, 55, 0)]),
    )  # fmt: skip
    check_job(seen, home, [Killed(3.5, "runner", RUNNER)])
    with pytest.raises(Broken):  # another process with that pid
        check_job(seen, home, [Killed(3.5, "runner", ProcessId(100, 8, "boot"))])


@pytest.mark.parametrize(
    "held",
    [
        [(1.0, 5.0, 600, 1, 0, 1), (2.0, 3.0, 600, 1, 0, 2)],
        [(1.0, 5.0, 10, 70, 0, 1), (2.0, None, 10, 70, 0, 2)],
        [(1.0, 5.0, 10, 1, 1, 1), (2.0, 3.0, 0, 1, 0, 2)],
    ],
)
def test_promises_beyond_a_gpu_are_found(held):
    with pytest.raises(Broken):
        _sweep("GPU", held, 100)
    _sweep("GPU", [held[0], (5.0, None, *held[1][2:])], 100)


def test_the_seed_decides_everything():
    assert list(islice(rounds(5), 4)) == list(islice(rounds(5), 4))
    assert list(islice(rounds(5), 4)) != list(islice(rounds(6), 4))
