"""Queue a copy of a job: the same work, surroundings and request."""

from __future__ import annotations

from dataclasses import replace

from gpuqueue.client.local import LocalClient
from gpuqueue.client.payload import Payload
from gpuqueue.client.request import Options
from gpuqueue.errors import NotAllowedNow, PayloadError
from gpuqueue.model import TERMINAL, Job, JobKind, JobState
from gpuqueue.run.large import Linked

__all__ = ["payload_again", "resubmit"]

_KNOWN = {"kind", "program", "argv", "cwd", "env"}


def resubmit(client: LocalClient, job: Job, *, priority: bool = False) -> Job:
    """Queue the work of a job again.

    Raises
    ------
    NotAllowedNow
        The job has not ended.
    PayloadError
        What was submitted is gone.
    """
    if job.state not in TERMINAL:
        raise NotAllowedNow(f"job {job.id} is {job.state}; cancel it first, or wait for its end")
    if job.kind is JobKind.KERNEL:
        raise NotAllowedNow(
            f"job {job.id} was a notebook's kernel; start the notebook to ask for a share again"
        )
    payload = payload_again(client, job)
    # what it came after has ended by now, one way or the other
    request = replace(job.wants, after=(), priority=0 if priority else job.request.priority)
    # a job that succeeded keeps its key: what has it is done
    key = None if job.state is JobState.SUCCEEDED else job.key
    options = Options(request, tag=job.tag, key=key, to_front=priority)
    return client.submit([(payload, options)], origin=job.origin, owner=job.owner, retry_of=job.id)[
        0
    ]


def payload_again(client: LocalClient, job: Job) -> Payload:
    """What was submitted as a job, ready to be submitted again.

    Raises
    ------
    PayloadError
        It is gone.
    """
    folder = client.home.job(job.id)
    spec = client.spec(job.id)
    if spec is None:
        raise PayloadError("job", f"what was submitted as job {job.id} is gone; submit it anew")
    files = {}
    for name in ("payload", "surroundings"):
        if (folder / name).exists():
            files[name] = (folder / name).read_bytes()
    return Payload(
        kind=job.kind,
        program=spec["program"],
        argv=tuple(spec["argv"]),
        command=job.command,
        tag=job.tag,
        cwd=spec["cwd"],
        env=spec["env"],
        extra={name: value for name, value in spec.items() if name not in _KNOWN},
        files=files,
        large={path.name: Linked(path) for path in folder.glob("payload.*")},
    )
