"""Commands that ask the controller for something about jobs that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuqueue.cli.words import JobId, LiveJobId, live_jobs, say_json, tell
from gpuqueue.errors import GpuqueueError

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient

__all__ = ["cancel", "priority", "release", "resize", "retry", "swap"]


def cancel(
    job_ids: Annotated[
        list[int],
        typer.Argument(metavar="ID...", help="Numbers of jobs.", autocompletion=live_jobs),
    ],
) -> None:
    """Take waiting jobs out of the queue, and end running ones.

    A running job is asked to end (SIGTERM); what is left of it after a few seconds is ended.
    """
    from gpuqueue.client.local import default_client

    client = default_client()
    failed = False
    for job_id in dict.fromkeys(job_ids):
        try:
            _cancel(client, job_id)
        except GpuqueueError as error:
            tell(str(error))
            failed = True
    if failed:
        raise typer.Exit(1)


def _cancel(client: LocalClient, job_id: int) -> None:
    from gpuqueue.model import TERMINAL, IntentKind, JobState
    from gpuqueue.units import format_duration

    client.intend(IntentKind.CANCEL, job_id)
    job = client.job(job_id)
    if job.state in TERMINAL:
        typer.echo(f"job {job_id} is cancelled")
    elif client.lead() is None or job.state is JobState.QUEUED:
        typer.echo(f"job {job_id} will be cancelled as soon as a controller runs")
    else:
        grace = format_duration(client.settings.grace)
        typer.echo(f"job {job_id} was asked to end; what is left of it in {grace} is ended")


def retry(
    job_id: JobId,
    *,
    priority: Annotated[
        bool, typer.Option("--priority", help="Put the copy at the front of the queue.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Queue a copy of a job that has ended.

    It has the same command, directory, environment and request.
    """
    from gpuqueue.cli.submit import report
    from gpuqueue.client.local import default_client
    from gpuqueue.client.resubmit import resubmit

    client = default_client()
    job = resubmit(client, client.job(job_id), priority=priority)
    report(client, job, seen_before=job.retry_of != job_id, as_json=as_json)


def priority(
    job_id: LiveJobId,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[N]", help="Higher starts first; without it, before all."),
    ] = None,
) -> None:
    """Move a waiting job to the front, or give it a priority."""
    from gpuqueue.client.local import default_client
    from gpuqueue.model import IntentKind

    client = default_client()
    client.intend(IntentKind.PRIORITY, job_id, number)
    _say_places(client, job_id)


def resize(
    job_id: Annotated[
        int, typer.Argument(metavar="ID", help="Number of a job.", autocompletion=live_jobs)
    ],
    *,
    share: Annotated[
        str | None, typer.Option(metavar="F", help="Part of each GPU's compute: 0.25, 1/3, 25%.")
    ] = None,
    mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory on each GPU, such as 6G.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Give a job another share or memory, also as it runs.

    It grows only into what is free on its GPUs, and keeps its size where that is too little.
    """
    from gpuqueue.client.local import default_client
    from gpuqueue.client.resizing import resize as ask

    answer = ask(default_client(), job_id, share=share, mem=mem)
    if as_json:
        say_json({"schema": 1} | answer.to_dict())
    else:
        typer.echo(answer.message)


def release(
    job_id: LiveJobId,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Give back the share of a notebook's kernel, which goes on.

    What its process holds of a GPU stays until it is restarted or shut down.
    """
    from gpuqueue.client.local import default_client
    from gpuqueue.client.releasing import release as ask

    answer = ask(default_client(), job_id)
    if as_json:
        say_json({"schema": 1} | answer.to_dict())
    else:
        typer.echo(answer.message)


def swap(first: LiveJobId, second: LiveJobId) -> None:
    """Exchange the places of two waiting jobs."""
    from gpuqueue.client.local import default_client
    from gpuqueue.model import IntentKind

    client = default_client()
    client.intend(IntentKind.SWAP, first, second)
    _say_places(client, first, second)


def _say_places(client: LocalClient, *job_ids: int) -> None:
    if client.lead() is None:
        tell("no controller runs; it is noted, and done once one does")
        return
    waits = client.plan().waits
    for job_id in job_ids:
        wait = waits.get(job_id)
        if wait is None:
            typer.echo(f"job {job_id} is {client.job(job_id).state}")
        else:
            typer.echo(f"job {job_id} is at position {wait.position} of {len(waits)}")
