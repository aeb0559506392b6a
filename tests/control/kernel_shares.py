"""Pretend kernels for tests of their shares: real processes, owned by the test or by a program."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from conftest import until

from gpuqueue.client import LocalClient
from gpuqueue.client.shares import Lease, acquire
from gpuqueue.client.wishes import Wish
from gpuqueue.model import ACTIVE, WHOLE, Job, JobState
from gpuqueue.run.process import identify

QUARTER = Wish(250)

OWNER = """
import os, subprocess, sys
from gpuqueue.client import LocalClient
from gpuqueue.client.shares import acquire
from gpuqueue.client.wishes import Wish
from gpuqueue.run.process import identify

step = sys.argv[1]
lease = acquire(LocalClient(), Wish(250), path="/books/owned.ipynb")
print(lease.job, flush=True)
if step != "granted":
    program = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    kernel = subprocess.Popen(
        program, env=lease.environment(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )
    kernel.stdout.readline()
    if step == "named":
        lease.name(identify(kernel.pid))
    print(kernel.pid, flush=True)
sys.stdin.read()
"""
"""A server that stops at one step of starting a kernel, which ends when it does (as ipykernel)."""


@dataclass
class Kernel:
    """A kernel of this process's own."""

    lease: Lease
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    @property
    def job(self) -> int:
        return self.lease.job

    def start(self) -> None:
        env = self.lease.environment(os.environ)
        self.process = subprocess.Popen(["sleep", "600"], env=env)
        process = identify(self.process.pid)
        assert process is not None
        self.lease.name(process)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.kill()
        self.lease.release()


def kernel(client: LocalClient, wish: Wish = QUARTER, path: str = "/books/a.ipynb") -> Kernel:
    """A kernel that runs in its share."""
    made = Kernel(acquire(client, wish, path=path))
    until_state(client, made.job, JobState.RUNNING)
    return made


def owner(step: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A server of its own that has come to a step; the numbers that it told."""
    made = subprocess.Popen(
        [sys.executable, "-c", OWNER, step], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert made.stdout is not None
    lines = 1 if step == "granted" else 2
    return made, [int(made.stdout.readline()) for _ in range(lines)]


def until_state(client: LocalClient, job: int, *states: JobState) -> Job:
    """The job, once it is in one of these states."""
    until(lambda: client.job(job).state in states, what=f"job {job} is {states}")
    return client.job(job)


def check_books(client: LocalClient) -> None:
    """No GPU is promised beyond what it has, and the usage records are those of who lives."""
    compute: dict[str, int] = {}
    memory: dict[str, int] = {}
    live = {job.id: job for job in client.store.live()}
    for job in live.values():
        for grant in job.placement.grants if job.placement and job.state in ACTIVE else ():
            used = grant.compute - (job.loan.on(grant.gpu) if job.loan else 0)
            compute[grant.gpu] = compute.get(grant.gpu, 0) + used
            memory[grant.gpu] = memory.get(grant.gpu, 0) + grant.memory
    for gpu in client.machine().gpus:
        assert compute.get(gpu.uuid, 0) <= WHOLE
        assert memory.get(gpu.uuid, 0) <= (gpu.memory or 0)
    held = {row[0] for row in client.store.occupied(0, 1000) if row[6] is None}
    assert held == {job.id for job in live.values() if job.uses_gpu}


def held_folder(client: LocalClient, job: int) -> Path:
    """The directory of a job's attempt."""
    return client.home.attempt(job, client.job(job).attempt)
