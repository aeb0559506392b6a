"""Shares of a GPU for notebook kernels: how one comes to hold it, and who looks after it.

What happens with a kernel after that is in ``control/kernels.py``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuqueue.client.local import LocalClient
from gpuqueue.client.payload import Payload
from gpuqueue.client.request import Options
from gpuqueue.client.watch import Watch
from gpuqueue.client.wishes import Wish, kernel_request
from gpuqueue.errors import DoesNotFit, NoShare
from gpuqueue.model import TERMINAL, IntentKind, Job, JobKind, JobState, Origin, ProcessId
from gpuqueue.run.files import VOID, take_claim
from gpuqueue.run.kernelshare import (
    is_released,
    keep_for_restart,
    keep_lock,
    mark,
    name_kernel,
    read_grant,
    release,
    with_share,
    without_share,
)
from gpuqueue.run.process import identify
from gpuqueue.run.wake import ring
from gpuqueue.store import plain

__all__ = ["Lease", "acquire", "check_room"]

_LOOK = 1.0
"""Seconds after which the store is looked at although no bell has rung."""
_SILENT = (
    "No controller has answered within {:g} s, so this kernel gets no share of a GPU and was not "
    "started. `jupyter gpuqueue doctor` says what is wrong."
)


class Lease:
    """A share that this process looks after, for a kernel or for itself."""

    def __init__(self, client: LocalClient, job: Job, wish: Wish) -> None:
        self._home = client.home
        self.job = job.id
        self.wish = wish
        self.folder = client.home.attempt(job.id, job.attempt)
        self.late = False
        """It was got at the first use of a GPU, not asked for at the start."""
        self._lock = -1

    def take(self) -> bool:
        """Take what was granted; False where it was taken back meanwhile."""
        me = identify(os.getpid())
        assert me is not None
        self._lock = keep_lock(self.folder)  # before the claim: then it is never seen without
        taken = take_claim(str(self.folder), me)
        if not taken:
            self._let_go()
        return taken

    def is_over(self, client: LocalClient) -> bool:
        """Whether it was given back or has ended, though a controller may not know that yet."""
        return bool(is_released(self.folder)) or client.job(self.job).state in TERMINAL

    def environment(self, env: Mapping[str, str], **told: Any) -> dict[str, str]:
        """An environment with the share over it, as it was granted last; ``told`` is noted with it.

        Raises
        ------
        NoShare
            The grant is gone, with the job's directory.
        """
        grant = read_grant(self.folder)
        if grant is None:
            raise NoShare(f"what was granted as job {self.job} is gone; start the kernel again")
        return with_share(env, grant["env"], {**mark(self.job, self.folder), **told})

    def hold_on(self) -> None:
        """Say that the kernel is about to start again, however long that takes."""
        keep_for_restart(self.folder)
        self._tell()

    def await_grant(self, client: LocalClient) -> None:
        """Wait until what was granted is of the size that the share has now; bounded.

        Raises
        ------
        NoShare
            It has not come.
        """
        patience = client.settings.kernel_wait
        deadline = time.monotonic() + patience
        with client.watch() as watch:
            while (read_grant(self.folder) or {}).get("placement") != plain(
                client.job(self.job).placement
            ):
                if time.monotonic() > deadline:
                    raise NoShare(_SILENT.format(patience))
                self._tell()
                watch.wait(_LOOK / 5)

    def name(self, kernel: ProcessId) -> None:
        """Say which process the kernel is now, and have the controller look."""
        name_kernel(self.folder, kernel)
        self._tell()

    def release(self, *, detached: bool = False, died: bool = False) -> None:
        """Give the share back. Doing it twice does no harm."""
        release(self.folder, detached=detached, died=died)
        self._let_go()
        self._tell()

    def _let_go(self) -> None:
        handle, self._lock = self._lock, -1
        if handle >= 0:
            with contextlib.suppress(OSError):
                os.close(handle)

    def _tell(self) -> None:
        ring(self._home.wake, f"kernel {self.job}")


def acquire(
    client: LocalClient,
    wish: Wish,
    *,
    path: str = "",
    tag: str = "",
    session: str = "",
    env: Mapping[str, str] | None = None,
    program: str = "",
    there: bool = False,
    given_up: threading.Event | None = None,
) -> Lease:
    """Get a share for a kernel that is to start, or for this process; takes ten seconds at most.

    ``path`` is the notebook's where it is known; ``env`` is the environment that its kernel starts
    with, ``program`` its Python; ``there`` says that its process is there already, and has nothing
    that must be read as it starts; ``given_up`` says that nobody waits any more.

    Raises
    ------
    NoShare
        There is no room now, or there can be none: in plain sentences.
    """
    settings = client.settings
    work = (
        _payload(path, tag, env, program, there=there),
        Options(kernel_request(wish, settings), wait=False),
    )
    deadline = time.monotonic() + settings.kernel_wait
    try:
        with client.watch() as watch:
            job = _submit(client, work, Origin("notebook", path, session), watch, deadline)
            while True:
                lease = _granted(client, job.id, wish)
                if lease is not None:
                    return lease
                left = deadline - time.monotonic()
                if left <= 0 or (given_up is not None and given_up.is_set()):
                    break
                watch.wait(min(_LOOK, left))
    except DoesNotFit as error:
        raise NoShare(_sentence(error)) from error
    _give_up(client, job.id)
    raise NoShare(_SILENT.format(settings.kernel_wait))


def check_room(client: LocalClient, wish: Wish) -> None:
    """See whether a share could be had now, without taking it.

    Raises
    ------
    NoShare
        It could not: in plain sentences.
    """
    options = Options(kernel_request(wish, client.settings), wait=False)
    try:
        client.check_fit(options, kind=JobKind.KERNEL)
    except DoesNotFit as error:
        raise NoShare(_sentence(error)) from error


def _submit(
    client: LocalClient,
    work: tuple[Payload, Options],
    origin: Origin,
    watch: Watch,
    deadline: float,
) -> Job:
    """Ask for the share; where another kernel is about to leave, once more when it has."""
    while True:
        try:
            return client.submit([work], origin=origin, flush=False)[0]
        except DoesNotFit:
            if time.monotonic() > deadline or not _some_leave(client):
                raise
            client.wake("intent")
            watch.wait(_LOOK / 5)


def _some_leave(client: LocalClient) -> bool:
    """Whether the controller has yet to take in that some kernel has ended."""
    return any(
        job.kind is JobKind.KERNEL and is_released(client.home.attempt(job.id, job.attempt))
        for job in client.store.live()
    )


def _granted(client: LocalClient, job_id: int, wish: Wish) -> Lease | None:
    job = client.job(job_id)
    if job.state in TERMINAL:
        raise NoShare(job.reason or f"job {job_id} was {job.state}")
    if job.state is not JobState.STARTING:
        return None
    lease = Lease(client, job, wish)
    if read_grant(lease.folder) is None:
        return None
    if not lease.take():
        raise NoShare(f"The share was taken back as the kernel started (job {job_id}); try again.")
    return lease


def _give_up(client: LocalClient, job_id: int) -> None:
    """See that a share which nobody will take is not kept for them."""
    job = client.job(job_id)
    if job.state is JobState.STARTING:
        folder = client.home.attempt(job_id, job.attempt)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        take_claim(str(folder), VOID)
    client.store.intend(IntentKind.CANCEL, [job_id], None)
    client.wake("intent")


def _sentence(error: DoesNotFit) -> str:
    if error.field == "request":
        return f"A notebook's kernel {error.problem.replace('; use --cpu', '')}."
    return error.problem


_OF_MECHANISMS = ("LD_PRELOAD", "CUDA_", "PYTORCH_", "TF_", "XLA_", "JAX_")
"""How variables begin in which what holds a share looks for what the user has set."""


def _payload(
    path: str, tag: str, env: Mapping[str, str] | None, program: str, *, there: bool
) -> Payload:
    """A kernel's job: nothing is run for it, but who has asked must be known."""
    me = identify(os.getpid())
    assert me is not None
    folder = str(Path(path).parent) if path else os.getcwd()
    return Payload(
        JobKind.KERNEL, program, (), command=f"notebook {path}" if path else "kernel",
        tag=tag or Path(path).name or "kernel", cwd=folder,
        env={n: v for n, v in without_share(env or {}).items() if n.startswith(_OF_MECHANISMS)},
        extra={
            "owner": {"pid": me.pid, "start": me.start, "boot": me.boot},
            "attached": there,
        },
    )  # fmt: skip
