"""The drill: a job's work is killed in the middle and run again, and has to go on where it saved.

Its two runs are jobs of the queue like others, with a folder for their checkpoints that no other
run has and that goes with the drill.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client.drilled import Drill, Point, judge, points_of, remarks, saved_point, told_apart
from gpuqueue.client.follow import tail
from gpuqueue.client.progress import notes
from gpuqueue.client.resubmit import payload_again
from gpuqueue.control.runners import ask_aside
from gpuqueue.errors import (
    GpuqueueError,
    InvalidRequest,
    JobFailed,
    NotAllowedNow,
    NotSupportedHere,
)
from gpuqueue.model import TERMINAL, IntentKind, Job, JobKind, JobState, ProcessId
from gpuqueue.record.checkpoints import captured
from gpuqueue.run.farewell import Farewell
from gpuqueue.run.files import LOG, PROGRESS, ask_to_stop, is_resumable, read_payload
from gpuqueue.run.process import alive, descendants, identify, is_elsewhere, send_signal, session_of
from gpuqueue.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.client.local import LocalClient
    from gpuqueue.client.payload import Payload
    from gpuqueue.client.request import Options
    from gpuqueue.model import Origin
    from gpuqueue.paths import Home

__all__ = ["STEPS", "TIMEOUT", "drill", "drill_job"]

TIMEOUT = 600.0
"""Seconds that each run has, from its start."""
STEPS = 3
"""How many reports the first run makes after a checkpoint before it is killed."""

_LOOK = 0.1
_SOON = 1.0
"""Seconds that a job may wait before that is worth a sentence."""
_NAMED = "GPUQUEUE_CHECKPOINT_DIR"
_AGAIN = 'export GPUQUEUE_RESUME=1; exec "$0" "$@"'
"""A job's own environment would lose to what the queue says of a first start."""
_ADD = (
    "add `from gpuqueue import checkpoint` and, in its loop, `checkpoint.log(step, loss=loss)`: "
    "the drill goes by what that reports"
)

_DEAF = "it never calls checkpoint.should_stop(), so the queue cannot ask it to save and step aside"

_ASKED = "it may save when it is asked to: the drill with --ask (ask=True) tries that"


@dataclass(frozen=True, slots=True)
class _Rules:
    timeout: float
    steps: int
    at: int | None
    ask: bool
    origin: Origin | None
    tell: Callable[[str], None]


def drill_job(
    client: LocalClient,
    job: Job,
    *,
    timeout: float = TIMEOUT,
    steps: int = STEPS,
    at: int | None = None,
    ask: bool = False,
    origin: Origin | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Drill:
    """The drill with the work of a job, which is left alone; as for `drill`."""
    from gpuqueue.client.request import Options

    options = Options(replace(job.wants, after=()), tag=job.tag)
    payload = payload_again(client, job)
    return drill(
        client, payload, options,
        timeout=timeout, steps=steps, at=at, ask=ask, origin=origin, tell=tell,
    )  # fmt: skip


def drill(
    client: LocalClient,
    payload: Payload,
    options: Options,
    *,
    timeout: float = TIMEOUT,
    steps: int = STEPS,
    at: int | None = None,
    ask: bool = False,
    origin: Origin | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Drill:
    """Run some work, kill it after a checkpoint, run it again, and compare what it reports.

    Nothing of it is left running, also after an exception or Ctrl-C.

    Parameters
    ----------
    timeout
        Seconds that each run has from its start; waiting in the queue is not counted. A first
        run that has saved nothing by then is killed all the same.
    steps
        How many reports it makes after a checkpoint before it is killed.
    at
        Kill it at the first report of this step or a later one, whatever it has saved.
    ask
        Do not kill it: ask it to save and step aside, as for a job of higher priority or free
        mode. The queue then starts the same job again, and that is the second run.
    tell
        Is given a sentence now and then.

    Raises
    ------
    InvalidRequest
        A number makes no sense; the work reports nothing, or ends before it can be killed.
    JobFailed
        The first run failed by itself.
    NotAllowedNow
        A run was taken out of the queue, or stopped for somebody else.
    """
    if not timeout > 0:
        raise InvalidRequest("timeout", f"{timeout:g}: give more than 0 seconds")
    if steps < 1:
        raise InvalidRequest("steps", f"{steps}: give 1 or more")
    if payload.kind not in (JobKind.SCRIPT, JobKind.FUNCTION):
        raise InvalidRequest("command", f"a {payload.kind} cannot go on from a checkpoint")
    rules = _Rules(timeout, steps, at, ask, origin, tell)
    with _own_folder(client.home, payload) as folder, _ended(client) as started:
        payload = replace(payload, env={**payload.env, _NAMED: str(folder)})
        one = _submit(client, payload, options, rules, started)
        first, saved = _first_run(client, one, rules)
        two = one if ask else _submit(client, _resuming(payload), options, rules, started)
        second, problem = _second_run(client, two, first, saved, rules)
        problems = judge(first, saved, second) if second else [problem]
        told = remarks(first, second) if second and not problems else []
        hears = options.request.resumable or is_resumable(client.home.attempt(one, 1))
        if not hears:
            told.append(_DEAF)
        elif saved is None and not ask:
            told.append(_ASKED)
        resumed = second[0] if second else None
        return Drill((one, two), first[0], saved, first[-1], resumed, tuple(problems), tuple(told))


# -- the two jobs ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _own_folder(home: Home, payload: Payload) -> Iterator[Path]:
    """A new folder on the disk where the work keeps its checkpoints, if it says where."""
    above = home.root  # which the jobs see, whatever becomes of /tmp in a service
    if named := payload.env.get(_NAMED):
        above = Path(payload.cwd) / Path(named).expanduser().parent
        above.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gpuqueue-drill-", dir=above)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ended(client: LocalClient) -> Iterator[list[int]]:
    """Ends the jobs whose numbers are put into the list."""
    started: list[int] = []
    try:
        yield started
    finally:
        for job_id in started:
            _end(client, job_id)


def _end(client: LocalClient, job_id: int) -> None:
    with contextlib.suppress(NotAllowedNow):  # it has just ended
        if client.job(job_id).state not in TERMINAL:
            client.intend(IntentKind.CANCEL, job_id)
    with contextlib.suppress(TimeoutError):
        client.wait(job_id, client.settings.grace + 30)


def _submit(
    client: LocalClient, payload: Payload, options: Options, rules: _Rules, started: list[int]
) -> int:
    # nothing is to start it again but the drill
    resumable = options.request.resumable and rules.ask
    request = replace(options.request, restartable=False, preemptible=False, resumable=resumable)
    tag = f"drill {options.tag or payload.tag}"[:60]
    job = client.submit(
        [(payload, replace(options, request=request, tag=tag, key=None))], origin=rules.origin
    )[0]
    started.append(job.id)
    return job.id


def _resuming(payload: Payload) -> Payload:
    """The same work, told that it is to go on."""
    shell = shutil.which("sh", path=os.defpath)
    if shell is None:
        raise NotSupportedHere("the drill needs a shell, sh")
    return replace(
        payload,
        program=shell,
        argv=(shell, "-c", _AGAIN, payload.program, *payload.argv[1:]),
        # what a run that begins in the middle takes is no lesson for whole ones
        command=f"GPUQUEUE_RESUME=1 {payload.command}",
    )


def _points(client: LocalClient, job_id: int, attempt: int = 1) -> list[Point]:
    return points_of(notes(client.home.attempt(job_id, attempt) / PROGRESS))


def _looks(
    client: LocalClient, job_id: int, rules: _Rules, attempt: int = 1
) -> Iterator[tuple[Job, list[Point]]]:
    """A run as it is, again and again: until it has ended, or for as long as it may take."""
    silent, told = time.monotonic() + _SOON, False
    with client.watch() as watch:
        while True:
            job = client.job(job_id)
            if job.state is JobState.QUEUED and not told and time.monotonic() > silent:
                told, wait = True, client.why(job_id)
                rules.tell(f"job {job_id} waits: {wait.sentence if wait else 'it is to start'}")
            here = job.attempt == attempt
            if job.attempt > attempt or (here and job.state is JobState.QUEUED):
                raise NotAllowedNow(f"job {job_id} was stopped and put back; try the drill again")
            yield job, _points(client, job_id, attempt)
            over = here and job.started is not None and job.ran(time.time()) > rules.timeout
            if job.state in TERMINAL or over:
                return
            watch.wait(_LOOK)


# -- what each does --------------------------------------------------------------------------------


def _first_run(client: LocalClient, job_id: int, rules: _Rules) -> tuple[list[Point], Point | None]:
    """Let it save and go further, kill it, and tell what it reported, and from where it can go on.

    The latter is the last report before its newest checkpoint.
    """
    how = "asked to step aside after some steps" if rules.ask else "killed after a checkpoint"
    rules.tell(f"job {job_id} is the first run, to be {how}")
    mark: Point | None = None
    for job, points in _looks(client, job_id, rules):
        if job.state in TERMINAL:
            raise _ended_early(client, job, points)
        if rules.at is not None:
            if points and points[-1].step >= rules.at:
                break
            continue
        if rules.ask:
            if len(points) > rules.steps and told_apart(points, points[-1]):
                break
            continue
        if mark is None:
            newest = _saved(client, job_id, points)
            mark = newest if newest and told_apart(points, newest) else None
        if mark is not None and sum(point.at > mark.at for point in points) >= rules.steps:
            break
    if not _points(client, job_id):
        limit = format_duration(rules.timeout)
        raise InvalidRequest("command", f"job {job_id} has reported nothing in {limit}; {_ADD}")
    if not (_ask(client, job_id) if rules.ask else _kill(client, job_id)):
        raise _ended_early(client, client.wait(job_id, 60), _points(client, job_id))
    points = _points(client, job_id)
    if any(later.step < one.step for one, later in pairwise(points)):
        raise InvalidRequest(
            "command",
            f"the steps that job {job_id} reports go back within one run; let it report one number "
            "that counts on over all epochs",
        )
    done = "has stepped aside" if rules.ask else "is killed"
    rules.tell(f"job {job_id} {done} at step {points[-1].step}")
    return points, _saved(client, job_id, points)


def _saved(client: LocalClient, job_id: int, points: list[Point]) -> Point | None:
    """The last report before the newest checkpoint."""
    found = captured(client.home.job(job_id), client.spec(job_id))
    try:
        return saved_point(points, found[-1].stat().st_mtime) if found else None
    except FileNotFoundError:  # it has removed it since
        return None


def _ended_early(client: LocalClient, job: Job, points: list[Point]) -> GpuqueueError:
    """What to say of a first run that ended before it could be killed."""
    if job.state is JobState.CANCELLED:
        return NotAllowedNow(f"job {job.id}, a run of the drill, was cancelled")
    if job.state is not JobState.SUCCEEDED:
        return JobFailed(_last_words(client, job), job.id, job.returncode)
    if not points:
        return InvalidRequest("command", f"job {job.id} has ended and reported nothing; {_ADD}")
    return InvalidRequest(
        "command",
        f"job {job.id} ended at step {points[-1].step}, before it had saved a checkpoint in "
        "checkpoint_dir() and gone further; give it more to do, let it save more often, or say at "
        "which step to kill it",
    )


def _last_words(client: LocalClient, job: Job) -> str:
    words = f"job {job.id} {job.state}: {job.reason}"
    last = tail(client.home.attempt(job.id, max(1, job.attempt)) / LOG, 5).rstrip()
    return f"{words}\nlast lines of its log:\n{last}" if last else words


def _second_run(
    client: LocalClient, job_id: int, first: list[Point], saved: Point | None, rules: _Rules
) -> tuple[list[Point], str]:
    """Let it come past where the first was killed; what it reported, or why that is nothing."""
    rules.tell(f"job {job_id} is the second run, with GPUQUEUE_RESUME=1")
    points: list[Point] = []
    for _, points in _looks(client, job_id, rules, 2 if rules.ask else 1):
        if points and (judge(first, saved, points) or points[-1].step > first[-1].step):
            break
    if points:
        return points, ""
    job = client.job(job_id)
    if job.state not in TERMINAL:
        return [], f"job {job_id} has reported nothing in {format_duration(rules.timeout)}"
    if job.state is JobState.CANCELLED:
        raise NotAllowedNow(f"job {job_id}, a run of the drill, was cancelled")
    if job.state is JobState.SUCCEEDED:
        return [], f"job {job_id} ended and reported nothing, as if there were nothing left to do"
    return [], _last_words(client, job)


# -- asking, killing -------------------------------------------------------------------------------


def _ask(client: LocalClient, job_id: int) -> bool:
    """Have a run save and go back into the queue. Whether it did; False where it has ended.

    Raises
    ------
    InvalidRequest
        It cannot be asked, or has not done so in the time that free mode leaves a job.
    """
    folder = client.home.attempt(job_id, 1)
    if not (ask_to_stop(folder) or (client.job(job_id).request.resumable and ask_aside(folder))):
        if client.job(job_id).state in TERMINAL:
            return False
        raise InvalidRequest("ask", f"job {job_id} cannot be asked: it calls no should_stop()")
    limit = client.settings.evict_timeout
    until = time.monotonic() + limit
    with client.watch() as watch:
        while (job := client.job(job_id)).state not in TERMINAL:
            if job.attempt > 1 or job.state is JobState.QUEUED:
                return True
            if time.monotonic() > until:
                raise InvalidRequest(
                    "ask", f"job {job_id} did not save and exit in {format_duration(limit)}"
                )
            watch.wait(_LOOK)
    return False


def _kill(client: LocalClient, job_id: int) -> bool:
    """Have a run end as by a crash: no signal that it could hear. Whether it was there to be."""
    folder = client.home.attempt(job_id, 1)
    payload = read_payload(folder)
    if payload is None:
        return False
    if is_elsewhere(payload):
        raise NotSupportedHere("the drill cannot kill what runs in another container; run it there")
    farewell = Farewell(str(folder))
    killed = False
    with client.watch() as watch:
        while client.job(job_id).state not in TERMINAL:
            there = _members(payload)
            if farewell.said([process.pid for process in there]):
                for process in there:
                    killed |= send_signal(process, signal.SIGKILL)
            watch.wait(_LOOK)
    return killed and client.job(job_id).state is JobState.FAILED


def _members(payload: ProcessId) -> list[ProcessId]:
    if not alive(payload):
        return []
    pids = {payload.pid, *session_of(payload.pid), *descendants(payload.pid)}
    return [process for pid in pids if (process := identify(pid)) is not None]
