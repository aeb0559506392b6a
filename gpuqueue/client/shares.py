"""Shares of a GPU for notebook kernels: what one asks for, and how it comes to hold it.

What happens with a kernel after that is in ``control/kernels.py``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuqueue.client.local import LocalClient
from gpuqueue.client.payload import Payload
from gpuqueue.client.request import Options
from gpuqueue.client.watch import Watch
from gpuqueue.errors import DoesNotFit, InvalidRequest, NoShare
from gpuqueue.model import TERMINAL, IntentKind, Job, JobKind, JobState, Origin, ProcessId, Request
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
)
from gpuqueue.run.process import identify
from gpuqueue.run.wake import ring
from gpuqueue.settings import Settings
from gpuqueue.units import format_bytes, format_share, parse_bytes, parse_share

__all__ = [
    "Lease",
    "Wish",
    "acquire",
    "default_wish",
    "kernel_request",
    "remember",
    "remembered",
    "wish_from",
    "wish_of_words",
]

_FACT = "kernel share "
_NAMES = ("share", "mem", "gpus")
_LOOK = 1.0
"""Seconds after which the store is looked at although no bell has rung."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a kernel asks for: thousandths and bytes of each of so many GPUs.

    None is left to the settings, or for memory to the share's part of the GPU.
    """

    share: int | None = None
    memory: int | None = None
    gpus: int | None = None

    def __str__(self) -> str:
        parts = [] if self.share is None else [format_share(self.share)]
        if self.memory is not None:
            parts.append(format_bytes(self.memory))
        if self.gpus not in (None, 1):
            parts.append(f"of each of {self.gpus} GPUs")
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``wish_from`` reads it."""
        told: dict[str, Any] = {}
        if self.share is not None:
            told["share"] = format_share(self.share)
        if self.memory is not None:
            told["mem"] = f"{self.memory}B"
        if self.gpus is not None:
            told["gpus"] = self.gpus
        return told


def wish_from(values: Any, where: str) -> Wish | None:
    """A wish from what a person has written; ``where`` names the place in an error.

    None where nothing is asked for.

    Raises
    ------
    InvalidRequest
        There is no such entry, or its value is not allowed.
    """
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise InvalidRequest(where, 'write for example {"share": "0.25", "mem": "20G"}')
    values = {name: value for name, value in values.items() if value not in (None, "")}
    for name in values:
        if name not in _NAMES:
            raise InvalidRequest(f"{where}.{name}", f"there is no such entry, but {_NAMES}")
    if not values:
        return None
    gpus = values.get("gpus")
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1):
        raise InvalidRequest(f"{where}.gpus", f"{gpus!r} is not a number of GPUs")
    return Wish(
        parse_share(values["share"], f"{where}.share") if "share" in values else None,
        parse_bytes(values["mem"], f"{where}.mem") if "mem" in values else None,
        gpus,
    )


def wish_of_words(words: Sequence[str], where: str) -> Wish:
    """A wish as typed: ``0.5``, ``0.5 20G``.

    Raises
    ------
    InvalidRequest
        It is anything else.
    """
    if not words or len(words) > 2:
        raise InvalidRequest(where, f"write for example %gpu {where} 0.5 20G")
    memory = parse_bytes(words[1], f"{where} memory") if len(words) > 1 else None
    return Wish(parse_share(words[0], where), memory)


def default_wish(settings: Settings) -> Wish:
    """What a kernel gets that does not say how much."""
    memory = settings.kernel_memory
    return Wish(
        parse_share(settings.kernel_share, "kernel_share"),
        parse_bytes(memory, "kernel_memory") if memory else None,
        1,
    )


def kernel_request(wish: Wish, settings: Settings) -> Request:
    """The request that a wish comes to; what it leaves open comes from the settings."""
    default = default_wish(settings)
    named = wish.share is not None or wish.memory is not None
    return Request(
        gpus=wish.gpus or default.gpus,
        share=default.share if wish.share is None else wish.share,
        memory=wish.memory if named else default.memory,
    )


# -- what a notebook was given for its next start --------------------------------------------------


def remembered(client: LocalClient, path: str) -> Wish | None:
    """What was chosen for a notebook, by its path; None where nothing was."""
    found = client.store.fact(f"{_FACT}{path}") if path else None
    return wish_from(found, "share")


def remember(client: LocalClient, path: str, wish: Wish | None) -> None:
    """Keep what a notebook's kernels get from their next start on; None forgets it."""
    client.store.set_fact(f"{_FACT}{path}", None if wish is None else wish.to_dict())


# -- holding a share -------------------------------------------------------------------------------


class Lease:
    """A share that this process looks after, for a kernel or for itself."""

    def __init__(self, client: LocalClient, job: Job, wish: Wish) -> None:
        self._home = client.home
        self.job = job.id
        self.wish = wish
        self.folder = client.home.attempt(job.id, job.attempt)
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

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment with the share over it, as it was granted last.

        Raises
        ------
        NoShare
            The grant is gone, with the job's directory.
        """
        grant = read_grant(self.folder)
        if grant is None:
            raise NoShare(f"what was granted as job {self.job} is gone; start the kernel again")
        return with_share(env, grant["env"], mark(self.job, self.folder))

    def hold_on(self) -> None:
        """Say that the kernel is about to start again, however long that takes."""
        keep_for_restart(self.folder)

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
    given_up: threading.Event | None = None,
) -> Lease:
    """Get a share for a kernel that is to start, or for this process; takes ten seconds at most.

    ``path`` is the notebook's where it is known, ``given_up`` says that nobody waits any more.

    Raises
    ------
    NoShare
        There is no room now, or there can be none: in plain sentences.
    """
    settings = client.settings
    work = (_payload(path, tag), Options(kernel_request(wish, settings), wait=False))
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
    raise NoShare(
        f"No controller has answered within {settings.kernel_wait:g} s, so this kernel gets no "
        "share of a GPU and was not started. `jupyter gpuqueue doctor` says what is wrong."
    )


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


def _payload(path: str, tag: str) -> Payload:
    """A kernel's job: nothing is run for it, but who has asked must be known."""
    me = identify(os.getpid())
    assert me is not None
    folder = str(Path(path).parent) if path else os.getcwd()
    return Payload(
        JobKind.KERNEL, "", (), command=f"notebook {path}" if path else "kernel",
        tag=tag or Path(path).name or "kernel", cwd=folder, env={},
        extra={"owner": {"pid": me.pid, "start": me.start, "boot": me.boot}},
    )  # fmt: skip
