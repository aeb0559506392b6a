"""``ps`` and ``top``: the jobs that are there and the GPUs, a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuqueue.cli.text import one_line, table
from gpuqueue.cli.words import say_json
from gpuqueue.model import WHOLE, Job, JobState
from gpuqueue.units import format_bytes, format_share

if TYPE_CHECKING:
    from gpuqueue.model import Gpu

__all__ = ["job_rows", "ps", "seat_rows", "top"]

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]


def ps(*, as_json: AsJson = False) -> None:
    """List the jobs that run and, in the order of the queue, wait."""
    from gpuqueue.client.local import default_client
    from gpuqueue.store import job_to_dict

    client = default_client()
    found = sorted(client.store.live(), key=lambda job: (job.state is JobState.QUEUED, job.order))
    if as_json:
        say_json({"schema": 1, "jobs": [job_to_dict(job) for job in found]})
        return
    for row in job_rows(found, client.machine().gpus):
        typer.echo("  ".join(row))


def top(*, as_json: AsJson = False) -> None:
    """List the GPUs: what is left of each, and the jobs on it."""
    from gpuqueue.client.local import default_client
    from gpuqueue.client.status import status_of

    found = status_of(default_client(), recent=0).to_dict()
    if as_json:
        say_json({"schema": 1, "problem": found["problem"], "gpus": found["gpus"]})
        return
    for row in seat_rows(found["gpus"]):
        typer.echo("  ".join(row))


def job_rows(jobs: Iterable[Job], gpus: Iterable[Gpu]) -> list[list[str]]:
    """A line for each job; what it has been given or, while it waits, what it asks for."""
    index = {gpu.uuid: str(gpu.index) for gpu in gpus}
    rows = [
        (
            str(job.id),
            one_line(job.tag, 24),
            str(job.state),
            _share(job),
            ",".join(index.get(uuid, uuid) for uuid in job.placement.gpus) or "-"
            if job.placement
            else "-",
            one_line(job.command, 80),
        )
        for job in jobs
    ]
    return table(("ID", "NAME", "STATE", "SHARE", "CARDS", "COMMAND"), rows)


def _share(job: Job) -> str:
    if job.placement is None:
        return "-" if job.request.share is None else format_share(job.request.share)
    if not job.placement.grants:
        return "-"
    grant = job.placement.grants[0]
    compute = WHOLE if grant.whole else grant.compute
    return format_share(compute) if compute else "-"


def seat_rows(gpus: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each GPU of a status: its free part of the compute and memory, and its jobs."""
    return table(
        ("CARD", "GPU", "SEATS-FREE", "MEM-FREE", "JOBS"),
        [
            (
                str(gpu["index"]),
                one_line(gpu["name"], 40),
                *_left(gpu),
                ",".join(str(grant["job"]) for grant in gpu["grants"]) or "-",
            )
            for gpu in gpus
        ],
    )


def _left(gpu: Mapping[str, Any]) -> tuple[str, str]:
    whole = any(grant["whole"] for grant in gpu["grants"])
    compute = 0 if whole else max(0, WHOLE - gpu["compute_promised"])
    if gpu["memory"] is None:
        return format_share(compute), "-"
    memory = 0 if whole else max(0, gpu["memory"] - gpu["memory_promised"] - gpu["outside"])
    return format_share(compute), format_bytes(memory)
