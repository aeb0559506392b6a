"""What is told: plain data made from the store and the job directories."""

from __future__ import annotations

import codecs
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import InvalidRequest, NotAllowedNow
from gpuqueue.model import ACTIVE, TERMINAL, Job, JobKind, JobState
from gpuqueue.run.ended import failure_of
from gpuqueue.run.files import LOG, OUTPUTS, PROGRESS
from gpuqueue.run.kernelshare import activity

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient
    from gpuqueue.store import Sought

__all__ = [
    "MOST_LOG",
    "counts_told",
    "doctor_told",
    "events_told",
    "gpus_told",
    "job_told",
    "jobs_told",
    "log_bytes",
    "log_tail",
    "log_told",
    "outputs_told",
    "progress_told",
    "queue_told",
    "settings_told",
    "status_told",
    "warnings_of",
]

MOST_LOG = 1 << 20
"""The most of a log or of outputs that one answer holds, in bytes."""
_LONGEST_CHARACTER = 4


def job_told(client: LocalClient, job: Job) -> dict[str, Any]:
    """A job; where it waits, also why and until when, where it runs, how far it is."""
    from gpuqueue.client.progress import latest_note
    from gpuqueue.client.status import wait_to_dict
    from gpuqueue.store import job_to_dict

    wait = client.looked()[1].waits.get(job.id) if job.state is JobState.QUEUED else None
    more: dict[str, Any] = {"wait": wait_to_dict(wait)}
    if job.state in ACTIVE:
        more["progress"] = latest_note(client, job)
        more |= _activity(client, job)
    if (failure := failure_of(client.home, job)) is not None:
        more["failure"] = failure
    return job_to_dict(job) | more


def warnings_of(client: LocalClient, job: Job) -> dict[str, list[str]]:
    """What whoever has just submitted a job had better know."""
    from gpuqueue.client.progress import slow_save_before

    return {
        "warnings": [said for said in (slow_save_before(client, job, client.settings),) if said]
    }


def _activity(client: LocalClient, job: Job) -> dict[str, Any]:
    """Of a notebook's kernel whether a cell runs in it, else since when none does."""
    if job.kind is not JobKind.KERNEL:
        return {}
    busy, since = activity(client.home.attempt(job.id, job.attempt))
    return {"busy": busy, "idle_since": since}


def _counted(running: Sequence[Job], waiting: Sequence[Job]) -> dict[str, int]:
    kernels = sum(job.kind is JobKind.KERNEL for job in running)
    return {"running": len(running), "waiting": len(waiting), "notebooks": kernels}


def _with_failure(client: LocalClient, told: dict[str, Any], job: Job) -> dict[str, Any]:
    if (failure := failure_of(client.home, job)) is not None:
        told["failure"] = failure
    return told


def jobs_told(
    client: LocalClient,
    sought: Sought | None,
    owner: str | None,
    before: int | None,
    limit: int,
    *,
    ended: bool,
) -> dict[str, Any]:
    """One page of jobs, newest first, or of those that have ``ended``, the last to end first."""
    from gpuqueue.store import job_to_dict

    states = None if sought is None else sought.states
    found = client.store.jobs(
        states=states, owner=owner, before=before, limit=limit, sought=sought, ended=ended
    )
    return {
        "jobs": [_with_failure(client, job_to_dict(job), job) for job in found],
        "next": found[-1].id if len(found) == limit else None,
    }


def status_told(
    client: LocalClient, server: dict[str, Any], limit: int, recent: int, sought: Sought | None
) -> dict[str, Any]:
    """Everything at a glance; of running and of waiting jobs the first ``limit``.

    Of what is ``sought`` only such jobs are listed; ``counts`` counts all, ``matches`` these.
    """
    from gpuqueue.api.host import host_told
    from gpuqueue.client.progress import latest_note
    from gpuqueue.client.status import status_of

    whole = status_of(client, recent=0)
    running, waiting = whole.running, whole.waiting
    states = None
    if sought is not None:
        running = tuple(job for job in running if sought.fits(job))
        waiting = tuple(job for job in waiting if sought.fits(job))
        states = sought.states
    # one that ran for long has a low number and may be what ended last
    ended = tuple(client.store.jobs(states=states, limit=recent, sought=sought, ended=True))
    # the GPUs tell of all that run
    told = replace(whole, waiting=waiting[:limit], recent=ended).to_dict()
    told["counts"] = _counted(whole.running, whole.waiting)
    if sought is not None:
        told["matches"] = _counted(running, waiting)
        numbers = {job.id for job in running}
        told["running"] = [plain for plain in told["running"] if plain["id"] in numbers]
    told["running"] = told["running"][:limit]
    for plain, job in zip(told["running"], running, strict=False):
        plain["progress"] = latest_note(client, job)
        plain.update(_activity(client, job))
    for plain, job in zip(told["recent"], ended, strict=True):
        _with_failure(client, plain, job)
    told["host"] = host_told(client.home.root)
    told["server"] = server
    return told


def counts_told(client: LocalClient) -> dict[str, int]:
    """How many jobs run and wait, and the number of the newest change.

    ``notebooks`` are those of the running that are a notebook's kernel.
    """
    seq = client.store.last_event()
    found = client.store.live_counts()
    waiting = sum(count for (state, _), count in found.items() if state == JobState.QUEUED)
    kernels = sum(
        count
        for (state, kind), count in found.items()
        if kind == JobKind.KERNEL and state != JobState.QUEUED
    )
    running = sum(found.values()) - waiting
    return {"seq": seq, "running": running, "waiting": waiting, "notebooks": kernels}


def queue_told(
    client: LocalClient, offset: int, limit: int, sought: Sought | None
) -> dict[str, Any]:
    """One page of the waiting jobs, or of those that are ``sought``, in the order of the queue."""
    from gpuqueue.client.status import wait_to_dict
    from gpuqueue.store import job_to_dict

    live, plan = client.looked()
    waiting = sorted((job for job in live if job.state is JobState.QUEUED), key=lambda j: j.order)
    if sought is not None:
        waiting = [job for job in waiting if sought.fits(job)]
    waits = plan.waits if waiting[offset : offset + limit] else {}
    return {
        "at": time.time(),
        "total": len(waiting),
        "offset": offset,
        "jobs": [
            job_to_dict(job) | {"wait": wait_to_dict(waits.get(job.id))}
            for job in waiting[offset : offset + limit]
        ],
    }


def gpus_told(client: LocalClient) -> dict[str, Any]:
    """The GPUs with what is promised on them and what they say of themselves."""
    from gpuqueue.client.status import status_of

    told = status_of(client, recent=0).to_dict()
    return {name: told[name] for name in ("at", "gpus", "slots", "problem")}


def settings_told(client: LocalClient) -> dict[str, Any]:
    """The settings in force and what each is for."""
    settings = client.settings
    values = settings.as_dict()
    return {
        "settings": values,
        "help": {name: settings.trait_metadata(name, "help") for name in values},
        "file": str(client.home.config),
        "warning": client.settings_warning,
    }


def doctor_told() -> dict[str, Any]:
    """What is in order here and what is not, as ``jupyter gpuqueue doctor --json`` tells it."""
    from gpuqueue.client.doctor import checks

    found = checks()
    return {
        "schema": 1,
        "ok": all(check.ok is not False for check in found),
        "checks": [check.to_dict() for check in found],
    }


def events_told(client: LocalClient, job_id: int, since: int, limit: int) -> dict[str, Any]:
    """What happened to a job, oldest first."""
    client.job(job_id)
    found = client.store.events(since, job_id=job_id, limit=limit)
    return {
        "events": [
            {
                "seq": event.seq,
                "at": event.at,
                "job": event.job,
                "kind": event.kind,
                "data": dict(event.data),
            }
            for event in found
        ],
        "next": found[-1].seq if found else since,
    }


def progress_told(
    client: LocalClient, job_id: int, attempt: int | None, points: int
) -> dict[str, Any]:
    """What a job has noted of its progress; of many notes the first, the last, and some between."""
    from gpuqueue.client.progress import notes, thinned
    from gpuqueue.client.throughput import rates_of

    job, number, path, ended = _attempt_file(client, job_id, attempt, PROGRESS)
    found = notes(path)
    return {
        "attempt": number,
        "count": len(found),
        "points": thinned(found, points),
        "rates": [rate.to_dict() for rate in rates_of(client, job, found)],
        "ended": ended,
    }


# -- what a job wrote ------------------------------------------------------------------------


def _attempt_file(
    client: LocalClient, job_id: int, attempt: int | None, name: str
) -> tuple[Job, int, Path, bool]:
    job = client.job(job_id)
    latest = max(1, job.attempt)
    if attempt is not None and attempt > latest:
        raise InvalidRequest("attempt", f"job {job_id} has been started {job.attempt} times")
    number = attempt or latest
    # asked before the file is looked at: what an ended attempt wrote is all there
    ended = job.state in TERMINAL or number < latest or job.state is JobState.QUEUED
    return job, number, client.home.attempt(job_id, number) / name, ended


def _part(path: Path, offset: int, limit: int) -> tuple[bytes, int]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return file.read(limit), size
    except FileNotFoundError:
        return b"", 0


def log_bytes(
    client: LocalClient, job_id: int, attempt: int | None, offset: int, limit: int
) -> tuple[bytes, int]:
    """A part of a log as it is, and where the next begins."""
    _, _, path, _ = _attempt_file(client, job_id, attempt, LOG)
    data, _ = _part(path, offset, limit)
    return data, offset + len(data)


def _log_answer(
    text: str, attempt: int, offset: int, after: int, size: int, *, ended: bool
) -> dict[str, Any]:
    return {
        "text": text,
        "attempt": attempt,
        "offset": offset,
        "next": after,
        "size": size,
        "ended": ended and after >= size,
    }


def log_told(
    client: LocalClient, job_id: int, attempt: int | None, offset: int, limit: int
) -> dict[str, Any]:
    """A part of a log as text, cut between two characters; bytes that are none show as �."""
    _, number, path, ended = _attempt_file(client, job_id, attempt, LOG)
    data, size = _part(path, offset, max(limit, _LONGEST_CHARACTER))
    after = offset + len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=ended and after >= size)
    after -= len(decoder.getstate()[0])
    return _log_answer(text, number, offset, after, size, ended=ended)


def log_tail(client: LocalClient, job_id: int, attempt: int | None, lines: int) -> dict[str, Any]:
    """The last lines of a log, at most ``MOST_LOG`` bytes."""
    _, number, path, ended = _attempt_file(client, job_id, attempt, LOG)
    _, size = _part(path, 0, 0)
    start = max(0, size - MOST_LOG)
    data, _ = _part(path, start, size - start)
    kept = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
    text = kept.decode(errors="replace")
    return _log_answer(text, number, size - len(kept), size, size, ended=ended)


def outputs_told(
    client: LocalClient, job_id: int, attempt: int | None, offset: int
) -> dict[str, Any]:
    """A cell's outputs from a byte ``offset`` on, whole ones only.

    Raises
    ------
    NotAllowedNow
        The job is of a kind that has no outputs but a log.
    """
    job, number, path, ended = _attempt_file(client, job_id, attempt, OUTPUTS)
    if job.kind is not JobKind.CELL:
        raise NotAllowedNow(f"job {job_id} is a {job.kind}; what it wrote is in its log")
    data, size = _part(path, offset, MOST_LOG)
    whole = data.rfind(b"\n") + 1
    while data and not whole and offset + len(data) < size:
        # one output that is larger than an answer should be still comes whole
        more, size = _part(path, offset + len(data), MOST_LOG)
        whole = len(data) + more.rfind(b"\n") + 1 if b"\n" in more else 0
        data += more
    outputs = []
    for line in data[:whole].splitlines():
        try:
            output = json.loads(line)
        except ValueError:  # a line that a full disk or a kill cut short
            continue
        if output["output_type"] not in ("comm", "over"):  # these are for the notebook alone
            outputs.append(output)
    after = offset + whole
    return {
        "outputs": outputs,
        "attempt": number,
        "offset": offset,
        "next": after,
        "size": size,
        "ended": ended and (after >= size or not outputs),
    }
