"""Workloads: the CSV of the trace files, the Standard Workload Format, and own history.

Times are in seconds. Whatever a file holds that is not understood is an error that names the line.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from gpuqueue.errors import InvalidRequest
from gpuqueue.model import WHOLE, Job, JobKind, Request

__all__ = ["TraceJob", "from_history", "load_of", "preempting", "read_trace", "scaled_to_load"]

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a workload.

    Attributes
    ----------
    submit, run
        When it was submitted, and how long it truly ran. The scheduler sees the latter only where
        estimates are exact.
    request
        What it asks for; its ``eta`` is the user's own estimate, None where there is none.
    work
        GPUs' worth of compute that it holds while it runs.
    peak
        Device memory that it truly used on each GPU, in bytes; 0 where not recorded.
    """

    id: int
    submit: float
    run: float
    request: Request
    work: float
    owner: str = ""
    command: str = ""
    kind: str = ""
    peak: int = 0


def read_trace(path: Path, gpus: int) -> list[TraceJob]:
    """Read a workload by the form of its file: ``.swf`` is the Standard Workload Format, else CSV.

    Either may be compressed (``.gz``). ``gpus`` is the size of the machine: an SWF's processors
    are spread over so many GPUs.

    Raises
    ------
    InvalidRequest
        The file cannot be read, or a line of it makes no sense.
    """
    name = path.name.removesuffix(".gz")
    try:
        with _opened(path) as file:
            jobs = list(_from_swf(file, gpus) if name.endswith(".swf") else _from_csv(file))
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InvalidRequest(str(path), f"cannot be read ({error})") from error
    if not jobs:
        raise InvalidRequest(str(path), "holds no jobs")
    ids = {job.id for job in jobs}
    if len(ids) < len(jobs):
        raise InvalidRequest(str(path), "uses the same id for more than one job")
    return sorted(jobs, key=lambda job: (job.submit, job.id))


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _from_csv(file: IO[str]) -> Iterator[TraceJob]:
    rows = csv.DictReader(line for line in file if not line.startswith("#"))
    needed = ("id", "submit", "run", "gpus", "milli")
    missing = [name for name in needed if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidRequest("trace", f"has no column {', '.join(missing)}")
    for number, row in enumerate(rows, 1):
        try:
            yield _csv_job(row)
        except (TypeError, ValueError) as error:
            raise InvalidRequest("trace", f"job {number} cannot be read: {error}") from error


def _csv_job(row: Mapping[str, str | None]) -> TraceJob:
    def number(name: str) -> int:
        return int(row.get(name) or 0)

    gpus, milli, run = number("gpus"), number("milli"), number("run")
    if gpus < 0 or not 0 < milli <= WHOLE or run < 0:
        raise ValueError(f"gpus {gpus}, milli {milli}, run {run}")
    # where the source has no estimate of the user's, the column repeats the run time
    est = number("est")
    request = Request(
        gpus=gpus, share=milli, memory=number("mem") * _MIB, slots=1, eta=est if est else None
    )
    return TraceJob(
        id=number("id"),
        submit=number("submit"),
        run=run,
        request=request,
        work=gpus * milli / WHOLE,
        owner=row.get("user") or "",
        command=row.get("cmd") or "",
        kind=row.get("klass") or "",
        peak=number("peak") * _MIB,
    )


def _from_swf(file: IO[str], gpus: int) -> Iterator[TraceJob]:
    """The Standard Workload Format (Feitelson), version 2: 18 numbers a line, -1 for unknown.

    A GPU stands for the log's processors divided by ``gpus``; what is less than one becomes a
    share, what is more becomes whole GPUs.
    """
    lines = list(file)
    limits = [
        int(line.split(":")[1].split()[0])
        for line in lines
        if line.startswith(";") and line[1:].strip().startswith(("MaxProcs:", "MaxNodes:"))
    ]
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(";"):
            continue
        fields = line.split()
        try:
            rows.append([float(field) for field in fields[:18]])
        except ValueError as error:
            raise InvalidRequest("trace", f"line {number} cannot be read: {error}") from error
        if len(fields) < 13:
            raise InvalidRequest("trace", f"line {number} has {len(fields)} fields, not 18")
    most = max([*limits, *(int(max(row[4], row[7])) for row in rows)], default=1)
    each = max(1, -(-most // gpus))
    for row in rows:
        wide, run = int(row[4] if row[4] > 0 else row[7]), row[3]
        if wide <= 0 or run < 0:
            continue  # cancelled before it started
        cards = max(1, -(-wide // each))
        share = WHOLE if cards > 1 or wide == each else max(1, wide * WHOLE // each)
        asked = row[8] if row[8] > 0 else None
        yield TraceJob(
            id=int(row[0]),
            submit=row[1],
            run=run,
            request=Request(gpus=cards, share=share, memory=0, slots=1, eta=asked),
            work=cards * share / WHOLE,
            owner=str(int(row[11])),
            command=str(int(row[13])) if len(row) > 13 else "",
        )


def from_history(jobs: Iterable[Job], *, since: float = 0.0) -> list[TraceJob]:
    """The jobs that this machine ran, as a workload; ``since`` in seconds since the epoch."""
    found = []
    for job in jobs:
        if job.started is None or job.ended is None or job.submitted < since:
            continue
        if job.kind is JobKind.KERNEL:
            continue  # a notebook is there for as long as somebody sits at it, and is never queued
        grants = job.placement.grants if job.placement else ()
        found.append(
            TraceJob(
                id=job.id,
                submit=job.submitted,
                run=max(0.0, job.ended - job.started),
                request=job.request,
                work=sum(grant.compute for grant in grants) / WHOLE,
                owner=job.owner,
                command=job.command,
                peak=job.peak or 0,
            )
        )
    return sorted(found, key=lambda job: (job.submit, job.id))


def load_of(jobs: Sequence[TraceJob], gpus: int) -> float:
    """Offered load: work submitted over the capacity of the time in which it was."""
    span = max(job.submit for job in jobs) - min(job.submit for job in jobs)
    if not span or not gpus:
        return 0.0
    return sum(job.work * job.run for job in jobs) / (gpus * span)


def scaled_to_load(jobs: Sequence[TraceJob], gpus: int, load: float) -> list[TraceJob]:
    """Stretch or squeeze the gaps between submissions until the offered load is ``load``."""
    first = min(job.submit for job in jobs)
    factor = load_of(jobs, gpus) / load
    if not factor:
        raise InvalidRequest("load", "the jobs of this trace do no work: nothing to scale")
    moved = [replace(job, submit=float(round((job.submit - first) * factor))) for job in jobs]
    return sorted(moved, key=lambda job: (job.submit, job.id))


def preempting(jobs: Sequence[TraceJob], kind: str) -> list[TraceJob]:
    """The jobs, those of one class preemptible and of lower priority than the others.

    Raises
    ------
    InvalidRequest
        No job is of that class.
    """
    if all(job.kind != kind for job in jobs):
        known = ", ".join(sorted({job.kind for job in jobs if job.kind})) or "none"
        raise InvalidRequest(
            "preemptible", f"no job is of class {kind!r}; the classes are: {known}"
        )
    changed = []
    for job in jobs:
        request = job.request
        if job.kind == kind:
            request = replace(
                request, preemptible=True, restartable=True, priority=request.priority - 1
            )
        changed.append(replace(job, request=request))
    return changed
