"""Giving back the share of a notebook's kernel from outside; the kernel goes on without it.

CUDA that has begun in a process cannot be taken from it, so what the kernel holds of a GPU stays
until it is restarted or shut down, and counts as used outside the queue until then.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import NoSpace, NotAllowedNow
from gpuqueue.model import TERMINAL, JobKind, JobState
from gpuqueue.run import kernelshare
from gpuqueue.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.client.local import LocalClient
    from gpuqueue.model import Job

__all__ = ["Released", "release"]

_APPLY = 2.0
"""Seconds to wait for a controller to take it in."""


@dataclass(frozen=True, slots=True)
class Released:
    """What came of it.

    Attributes
    ----------
    job
        The job that was the share.
    holds
        Bytes that its processes held of each GPU, by UUID, as the driver told it last; empty where
        it told of none.
    settled
        Whether the share is free; else a controller will see to that.
    """

    job: int
    holds: Mapping[str, int] = field(default_factory=dict)
    settled: bool = True

    @property
    def message(self) -> str:
        """The same for people."""
        done = "is given back" if self.settled else "will be given back as a controller runs"
        words = f"the share of job {self.job} {done}; its kernel goes on"
        if self.holds:  # as the context of CUDA, which only the end of its process ends
            held = format_bytes(sum(self.holds.values()))
            return (
                f"{words}. It holds {held} of GPU memory, which cannot be taken from it: that "
                "counts as used outside the queue until the kernel is restarted or shut down."
            )
        return f"{words}. As far as the driver tells, it holds no GPU memory."

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.job, "holds": dict(self.holds), "settled": self.settled,
            "message": self.message,
        }  # fmt: skip


def release(client: LocalClient, job_id: int) -> Released:
    """Give back what a notebook's kernel holds, without ending the kernel.

    Raises
    ------
    UnknownJob, NotAllowedNow
        There is no such job, it is no kernel, or its kernel does not run.
    NoSpace
        The disk is full, and so its owner could not be told.
    """
    job = client.job(job_id)
    folder = client.home.attempt(job.id, job.attempt)
    if why := _unable(client, job):
        raise NotAllowedNow(f"job {job_id} {why}")
    holds = dict((client.machine().used or {}).get(job_id, {}))
    kernelshare.release(folder, detached=True)
    if not kernelshare.is_released(folder):
        where = f"the share of job {job_id} stays, for {folder} cannot be written to"
        raise NoSpace(errno.ENOSPC, where)
    with client.watch() as watch:
        deadline = time.monotonic() + _APPLY
        client.wake(f"kernel {job_id}")
        while client.job(job_id).state not in TERMINAL and time.monotonic() < deadline:
            watch.wait(0.1)
    return Released(job_id, holds, client.job(job_id).state in TERMINAL)


def _unable(client: LocalClient, job: Job) -> str:
    """Why a job cannot be released; empty where it can."""
    if job.state in TERMINAL:
        return f"has {job.state}, and holds nothing"
    if job.kind is not JobKind.KERNEL:
        return f"is a {job.kind}, not a notebook's kernel: cancel it, or let it end"
    if job.state is JobState.FROZEN:
        return "is frozen: it can be released when it goes on (resume)"
    if job.state is not JobState.RUNNING:
        return "is about to start; cancel it, or release it when it runs"
    if kernelshare.is_restarting(client.home.attempt(job.id, job.attempt)):
        return "is about to start again; release it when it runs"
    return ""
