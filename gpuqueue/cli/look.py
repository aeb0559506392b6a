"""Commands that look and change nothing."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuqueue.cli.words import TIMEOUT, UNKNOWN, JobId, exit_code, paint, say_json, tell
from gpuqueue.errors import GpuqueueError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuqueue.client import LocalClient
    from gpuqueue.model import Job

__all__ = ["gpus", "job_view", "jobs", "logs", "show", "status", "wait"]

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]

_COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "bright_black", "running": "blue"}
# differ between any two shells and say nothing
_DULL = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES"})


def status(
    recent: Annotated[
        int, typer.Option("-n", "--recent", metavar="N", min=0, help="How many ended jobs to show.")
    ] = 5,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the GPUs, and what runs, waits (and why) and has ended."""
    from gpuqueue.client.local import default_client
    from gpuqueue.client.status import render, status_of

    now = status_of(default_client(), recent=recent)
    if as_json:
        say_json(now.to_dict())
    else:
        typer.echo(render(now))


def jobs(
    state: Annotated[
        str | None,
        typer.Option(metavar="STATES", help="Only jobs in these states, such as queued,running."),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(metavar="USER", help="Only jobs of this user.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="At most this many, the newest.")
    ] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    from gpuqueue.cli.text import job_table
    from gpuqueue.client.local import default_client
    from gpuqueue.store import job_to_dict

    found = default_client().store.jobs(states=_states(state), owner=owner, limit=limit)
    if as_json:
        say_json({"schema": 1, "jobs": [job_to_dict(job) for job in found]})
        return
    if not found:
        tell("there are no such jobs" if state or owner else "there are no jobs yet")
        return
    for row in job_table(found, time.time()):
        row[1] = (
            paint(row[1], _COLOURS.get(row[1].strip(), ""))
            if row[1].strip() in _COLOURS
            else row[1]
        )
        typer.echo("  ".join(row))


def _states(text: str | None) -> list[str] | None:
    from gpuqueue.model import JobState

    if text is None:
        return None
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in list(JobState):
            raise InvalidRequest("state", f"{word!r} is not one of {', '.join(JobState)}")
    return wanted


def show(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Show all about one job.

    Of its environment only the names of the variables are shown that differ from the environment
    here; values never are.
    """
    from gpuqueue.cli.text import show_text
    from gpuqueue.client.local import default_client

    client = default_client()
    view = job_view(client, client.job(job_id))
    if as_json:
        say_json(view)
    else:
        typer.echo(show_text(view, time.time()))


def job_view(client: LocalClient, job: Job) -> dict[str, Any]:
    """A job with its surroundings, as plain data (schema 1)."""
    from gpuqueue.client.status import wait_to_dict
    from gpuqueue.client.throughput import throughput
    from gpuqueue.model import JobState
    from gpuqueue.record.checkpoints import captured
    from gpuqueue.record.facts import code_from
    from gpuqueue.store import job_to_dict

    spec = client.spec(job.id)
    events = client.store.events(job_id=job.id)
    code = code_from(events)
    used = set(job.placement.gpus) if job.placement else set()
    wait = client.why(job.id) if job.state is JobState.QUEUED else None
    return job_to_dict(job) | {
        "schema": 1,
        "wait": wait_to_dict(wait),
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid}
            for gpu in client.machine().gpus
            if gpu.uuid in used
        ],
        "environment": _environment(spec),
        "code": code and code.to_dict(),
        "throughput": [rate.to_dict() for rate in throughput(client, job)],
        "checkpoints": [str(path) for path in captured(client.home.job(job.id), spec)],
        "directory": str(client.home.job(job.id)),
        "log": str(client.log_path(job)),
        "events": [
            {"seq": event.seq, "at": event.at, "kind": event.kind, "data": dict(event.data)}
            for event in events
        ],
    }


def _environment(spec: Mapping[str, Any] | None) -> dict[str, list[str]] | None:
    """Names, never values, of the variables in which a job's environment differs from ours."""
    from gpuqueue.client.payload import as_submitted

    if spec is None:
        return None
    theirs, ours = as_submitted(spec["env"]), as_submitted(os.environ)
    return {
        "changed": sorted(n for n in theirs.keys() & ours.keys() - _DULL if theirs[n] != ours[n]),
        "added": sorted(theirs.keys() - ours.keys() - _DULL),
        "removed": sorted(ours.keys() - theirs.keys() - _DULL),
    }


def logs(
    job_id: JobId,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", metavar="N", min=0, help="Only the last lines.")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="That of an earlier start, the first is 1."),
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")
    ] = False,
) -> None:
    """Print what a job wrote, byte for byte.

    Of a job that was started several times it is the latest start. Ctrl-C ends a look with
    --follow; the job goes on.
    """
    from gpuqueue.cli.follow import copy_log, print_log
    from gpuqueue.client.local import default_client
    from gpuqueue.model import JobState

    client = default_client()
    job = client.job(job_id)
    if job.state is JobState.QUEUED:
        why = client.why(job_id)
        tell(f"job {job_id} waits: {why.sentence if why else 'it is about to start'}")
    if attempt is not None:
        if follow or attempt > job.attempt:
            wrong = "goes without --follow" if follow else f"there are starts up to {job.attempt}"
            raise InvalidRequest("attempt", wrong)
        print_log(client.log_path(replace(job, attempt=attempt)), lines)
        return
    if job.attempt > 1:
        tell(f"start {job.attempt} of job {job_id}; --attempt has the earlier ones")
    if follow:
        copy_log(client, job_id, lines=lines)
    else:
        print_log(client.log_path(job), lines)


def wait(
    job_id: JobId,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Give up after, for example, 30m.")
    ] = None,
) -> None:
    """Wait until a job has ended, and exit with its exit code.

    A job that was ended by a signal gives 128 + its number, a cancelled one 130. 124: it has not
    ended within --timeout, and goes on. 125: there is no such job, or its code is not known.
    """
    from gpuqueue.cli.text import ended_text
    from gpuqueue.client.local import default_client
    from gpuqueue.model import JobState
    from gpuqueue.units import parse_duration

    seconds = None if timeout is None else parse_duration(timeout, "timeout")
    try:
        job = default_client().wait(job_id, seconds)
    except TimeoutError as error:
        tell(str(error))
        raise typer.Exit(TIMEOUT) from None
    except GpuqueueError as error:
        tell(str(error))
        raise typer.Exit(UNKNOWN) from None
    if job.state is not JobState.SUCCEEDED:
        tell(f"job {job_id} {ended_text(job)}")
    raise typer.Exit(exit_code(job))


def gpus(*, as_json: AsJson = False) -> None:
    """List the GPUs that the queue uses, and who holds them."""
    from gpuqueue.cli.text import gpu_table
    from gpuqueue.client.local import default_client
    from gpuqueue.client.status import status_of

    found = status_of(default_client(), recent=0).to_dict()
    if as_json:
        say_json({"schema": 1, "problem": found["problem"], "gpus": found["gpus"]})
        return
    if not found["gpus"]:
        tell(f"there are no GPUs: {found['problem'] or 'the settings leave none'}")
        return
    for row in gpu_table(found["gpus"]):
        typer.echo("  ".join(row))
