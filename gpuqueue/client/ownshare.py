"""The share of a GPU that a process holds for itself: attaching, showing, releasing.

A kernel whose provisioner has given it a share has one from the start. Any other process (a kernel
of VS Code, IPython in a terminal) gets one by ``attach``. What CUDA may use is read when CUDA
begins in a process, so that is the last moment at which a share can be put on.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuqueue.client.local import LocalClient, default_client
from gpuqueue.client.shares import Lease, acquire
from gpuqueue.client.wishes import Wish, default_wish, wish_from
from gpuqueue.control.machine import managed_gpus, policy_of
from gpuqueue.errors import GpuqueueError, NoShare
from gpuqueue.model import TERMINAL, WHOLE, Job, Request
from gpuqueue.plan import never_fits
from gpuqueue.run import kernelshare
from gpuqueue.run.door import ask, take_on
from gpuqueue.run.kernelshare import own_share, set_variables, with_share, without_share
from gpuqueue.run.process import identify
from gpuqueue.run.wake import ring
from gpuqueue.settings import in_job
from gpuqueue.units import format_bytes, format_share

__all__ = [
    "Held",
    "attach",
    "attach_as",
    "beside_own",
    "forget_share",
    "held_share",
    "notebook_path",
    "release",
    "release_share",
]

_lock = threading.Lock()
_own: tuple[int, Lease] | None = None
"""The share that this very process has attached itself, and its pid: a fork has none."""


@dataclass(frozen=True, slots=True)
class Held:
    """The share that this process holds.

    ``gpus`` are indices; ``compute`` is thousandths and ``memory`` bytes, of each; ``held`` says
    how far the process is held to either, where that is known.
    """

    job: int
    gpus: tuple[int, ...]
    compute: int
    memory: int
    held: str = ""

    def __str__(self) -> str:
        named = ", ".join(map(str, self.gpus))
        where = f"GPU {named}" if len(self.gpus) == 1 else f"each of the GPUs {named}"
        amount = f"{format_share(self.compute)} of the compute and {format_bytes(self.memory)}"
        words = f": {self.held}" if self.held else ""
        return f"job {self.job} holds {amount} of {where} for this notebook{words}"

    def __repr__(self) -> str:
        return str(self)


def attach(
    share: str | float | None = None, mem: str | int | None = None, *, gpus: int | None = None
) -> Held:
    """Get a share of a GPU for this process, for as long as it lives or until ``release``.

    Parameters
    ----------
    share, mem
        Part of the compute (``0.25``) and memory (``"20G"``) of each GPU; what is left out comes
        from the settings.
    gpus
        Number of GPUs.

    Raises
    ------
    NoShare
        There is no room, or CUDA has begun in this process already.
    InvalidRequest
        A value is not allowed.
    """
    wish = wish_from({"share": share, "mem": mem, "gpus": gpus}, "")
    return attach_as(wish)


def attach_as(wish: Wish | None) -> Held:
    """``attach``, for a wish that was read already; None is what the settings say."""
    global _own  # noqa: PLW0603 - a process has one share
    with _lock:
        if in_job():
            raise NoShare("This runs inside a job, which has its GPUs already.")
        client = default_client()
        held = held_share(client)
        if held is not None:
            if wish is None:
                return held
            raise NoShare(
                f"This process has a share already ({held}); %gpu share or "
                "gpuqueue.release() first."
            )
        if where := _begun():
            raise NoShare(
                f"CUDA has begun in this process already ({where}), and what it may use can be "
                "set only before that. Restart the kernel and attach first."
            )
        if door := own_share().get("ask"):
            # whoever started this kernel gets the share and looks after it
            take_on(ask(door, None if wish is None else wish.to_dict()))
        else:
            lease = _acquire(client, wish)
            if _own is None:
                atexit.register(_at_exit)
            _own = (os.getpid(), lease)
        found = held_share(client)
    if found is None:
        raise NoShare("The share was taken back at once; try again.")
    return found


def _acquire(client: LocalClient, wish: Wish | None) -> Lease:
    """Get a share that this process looks after itself, and take it on."""
    path = notebook_path()
    lease = acquire(
        client, default_wish(client.settings) if wish is None else wish, there=True,
        path=path, tag=os.path.basename(path) or _what(), session=f"kernel-{os.getpid()}",
        env=os.environ, program=sys.executable,
    )  # fmt: skip
    try:
        set_variables(lease.environment(os.environ))
        me = identify(os.getpid())
        assert me is not None
        lease.name(me)
    except BaseException:
        lease.release(detached=True)
        raise
    return lease


def release() -> None:
    """Give this process's share of a GPU back; it sees no GPU until it attaches again.

    Raises
    ------
    NoShare
        It has none.
    """
    release_share()


def release_share() -> str:
    """Give this process's share back; what came of it, for people.

    Raises
    ------
    NoShare
        It has none.
    """
    with _lock:
        client = default_client()
        held = held_share(client)
        if held is None:
            raise NoShare("This notebook holds no share of a GPU.")
        used = _begun()
        _empty_cache()
        told = own_share()
        if _own is None or _own[0] != os.getpid():
            kernelshare.release(told["folder"], detached=True)
            ring(client.home.wake, f"kernel {told['job']}")
        _let_go(told)
    words = f"the share of job {held.job} is given back"
    if used:
        return (
            f"{words}. CUDA has begun in this process ({used}): what it still holds counts as used "
            "outside the queue until the kernel is restarted."
        )
    return f"{words}; this process sees no GPU until it attaches again."


def forget_share() -> str:
    """Take in that this process's share was given back from outside; what is to be said of it.

    It sees no GPU from then on, unless CUDA has begun. Empty where the share is still its own.
    """
    with _lock:
        told = own_share()
        if "job" not in told or not kernelshare.is_released(told["folder"]):
            return ""
        _let_go(told)
        words = f"the share of job {told['job']} was given back from outside this notebook"
        if used := _begun():
            return (
                f"{words}. CUDA has begun here ({used}): restart the kernel to have a share again."
            )
        return f"{words}; it sees no GPU until %gpu attach"


def _let_go(told: Mapping[str, Any]) -> None:
    """See no GPU, and look after no share any more; ``told`` is what was known of it."""
    global _own  # noqa: PLW0603
    if _own is not None and _own[0] == os.getpid():
        _own[1].release(detached=True)
    _own = None
    left, hidden = without_share(os.environ), {"CUDA_VISIBLE_DEVICES": ""}
    door = told.get("ask")
    # it may get one again where it got this one
    set_variables(with_share(left, hidden, {"ask": door}) if door else {**left, **hidden})


def held_share(client: LocalClient | None = None) -> Held | None:
    """The share that this process holds now; None where it has none."""
    told = own_share()
    if "job" not in told:
        return None
    client = client or default_client()
    try:
        job = client.job(told["job"])
    except LookupError:
        return None
    if job.state in TERMINAL or job.placement is None or not _is_ours(client, job, told):
        return None
    index = {gpu.uuid: gpu.index for gpu in client.machine().gpus}
    grants = job.placement.grants
    return Held(
        job.id,
        tuple(index.get(grant.gpu, -1) for grant in grants),
        grants[0].compute if grants else 0,
        grants[0].memory if grants else 0,
        _held_words(job),
    )


def _held_words(job: Job) -> str:
    """``capped``, ``compute capped, memory advised``."""
    if job.hold is None:
        return ""
    if job.hold.compute == job.hold.memory:
        return job.hold.compute
    return f"compute {job.hold.compute}, memory {job.hold.memory}"


def beside_own(client: LocalClient, request: Request) -> Request | None:
    """What a cell asks for that names no size and could only wait for its own notebook.

    On the only GPU that is what the notebook's own share leaves of it; None where it need not be.
    """
    plain = replace(request, eta=None, priority=0, after=(), restartable=False, preemptible=False)
    held = held_share(client) if plain in (Request(), Request(gpus=1)) else None
    machine = client.machine()
    gpus = managed_gpus(client.settings, machine.gpus)
    if held is None or len(gpus) != 1 or held.gpus != (gpus[0].index,):
        return None
    only = gpus[0]
    outside = (machine.outside or {}).get(only.uuid, (0, ()))[0]
    share = (WHOLE - held.compute) // only.grain * only.grain
    memory = ((only.memory or 0) - held.memory - outside) >> 20 << 20
    if share <= 0 or memory <= 0:
        return None
    asked = replace(request, share=share, memory=memory)
    policy = policy_of(client.settings, machine.gpus)
    return None if never_fits(asked, gpus, policy) else asked


def _is_ours(client: LocalClient, job: Job, told: dict[str, Any]) -> bool:
    """A note that was inherited over a change of the state directory is about another queue."""
    return str(client.home.attempt(job.id, job.attempt)) == told.get("folder")


def notebook_path() -> str:
    """The path of the notebook whose kernel this is, where that is known."""
    if path := os.environ.get("JPY_SESSION_NAME"):
        return path
    main = sys.modules.get("__main__")
    return str(getattr(main, "__vsc_ipynb_file__", "") or "")


def _what() -> str:
    if "ipykernel" in sys.modules:
        return "kernel"
    return "ipython" if "IPython" in sys.modules else "python"


def _begun() -> str:
    """Which library has begun with CUDA in this process, as far as that can be told."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized():
            return "torch"
    except Exception:  # noqa: BLE001 - a library that is half imported answers nothing
        return ""
    for name in ("cupy_backends.cuda.api.runtime", "pycuda.autoinit"):
        if name in sys.modules:
            return name.partition("_")[0].partition(".")[0]
    return ""


def _empty_cache() -> None:
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    except Exception:  # noqa: BLE001 - it is a help, no more
        return


def _at_exit() -> None:
    if _own is not None and _own[0] == os.getpid():
        try:
            _own[1].release()
        except (GpuqueueError, OSError):
            return  # that this process has ended is seen, too
