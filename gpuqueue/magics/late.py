"""A kernel without a share gets one at its first use of a GPU.

CUDA reads what it may see as it begins in a process, so a share can be put on until then, and not
after. Where a library begins is caught as it is imported: PyTorch at the few functions through
which it comes to CUDA, because notebooks import it for the processor, too; every other library at
its import. So a refusal is an error in the cell.
Where the server has put the memory cap's library into the kernel, that one asks for what is not
caught here, as CUDA itself begins (``share/memcap/src/late.c``); `catch_up` takes that in.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from gpuqueue.run.kernelshare import SHARE, own_share

__all__ = ["arm", "catch_up", "disarm", "is_late"]

_AT_IMPORT = frozenset(
    {
        "cupy", "cupy_backends", "tensorflow", "pycuda.driver", "numba.cuda", "cudf", "rmm",
        "cuda.bindings.driver", "jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13",
        "jax_cuda12_plugin", "jax_cuda13_plugin", "tensorrt", "warp",
    }
)  # fmt: skip
"""Modules that come to CUDA as they are imported, or from then on in ways of their own.

JAX imports its plugin for CUDA when it first looks for devices, not before.
"""


def is_late() -> bool:
    """Whether this kernel waits for its share."""
    return bool(own_share().get("late"))


def arm() -> None:
    """Catch the first use of a GPU in this process."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    torch = sys.modules.get("torch")
    if torch is not None:
        _guard_torch(torch)


def disarm() -> None:
    """Catch nothing any more."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def admit() -> None:
    """Get the share, if it is still to be got.

    Raises
    ------
    NoShare
        There is no room now. The next use tries again.
    """
    if not is_late():
        return
    from gpuqueue.client.local import default_client
    from gpuqueue.client.ownshare import attach_as, notebook_path
    from gpuqueue.client.wishes import remembered

    with _admitting:
        if not is_late():
            return  # another thread was first
        # where the server gets the share, it knows what the notebook asks for
        asks = "ask" in own_share()
        wish = None if asks else remembered(default_client(), notebook_path())
        held = attach_as(wish)
    disarm()
    print(f"gpuqueue: {held}", file=sys.stderr)


def catch_up() -> None:
    """Take in that CUDA has begun without our hook, and has got the share for this process.

    The library sets variables as C does, and Python reads those only as it starts.
    """
    if not is_late():
        return
    note = _in_c(SHARE)
    if note in (None, os.environ.get(SHARE)):
        return
    known = own_share({SHARE: note or ""})
    for name in {*(known.get("was") or {}), *(own_share().get("was") or {}), SHARE}:
        value = _in_c(name)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    disarm()
    from gpuqueue.client.ownshare import held_share

    if held := held_share():
        print(f"gpuqueue: {held}", file=sys.stderr)


def _in_c(name: str) -> str | None:
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    found = getenv(os.fsencode(name))
    return None if found is None else os.fsdecode(found)


_admitting = threading.RLock()


class _Finder(importlib.abc.MetaPathFinder):
    """Stands before all other finders; it finds nothing itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in _AT_IMPORT:
            admit()
            return None
        if name != "torch" or not is_late():
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _guard_after(spec.loader)
                return spec
            if spec is not None:
                return spec
        return None


def _guard_after(loader: Any) -> None:
    """Have a loader guard PyTorch when it has run it; this one loader, not its class."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        _guard_torch(module)

    loader.exec_module = exec_module


def _guard_torch(torch: ModuleType) -> None:
    """Guard the functions through which PyTorch comes to CUDA.

    C++ code that needs CUDA calls `torch.cuda._lazy_init`, which calls `torch._C._cuda_init`; what
    only asks goes through `torch._C._cuda_getDeviceCount` or, with NVML, `torch.cuda.device_count`.
    """
    core, cuda = getattr(torch, "_C", None), getattr(torch, "cuda", None)
    if not hasattr(core, "_cuda_getDeviceCount"):
        return  # built without CUDA
    for place, name in ((core, "_cuda_init"), (cuda, "_lazy_init")):
        _wrap(place, name, _before_use)
    accelerator = getattr(torch, "accelerator", None)
    for place, name, none in (
        (core, "_cuda_getDeviceCount", 0),
        (cuda, "device_count", 0),
        (cuda, "is_available", False),
        (accelerator, "device_count", 0),
        (accelerator, "is_available", False),
    ):
        _wrap(place, name, _before_question(none))


Guard = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def _wrap(place: Any, name: str, guard: Guard) -> None:
    found = getattr(place, name, None)
    if found is None:
        return

    def guarded(*args: Any, **words: Any) -> Any:
        return guard(found, args, words) if is_late() else found(*args, **words)

    guarded.__name__, guarded.__doc__ = name, getattr(found, "__doc__", None)
    guarded.__wrapped__ = found  # type: ignore[attr-defined]
    if hasattr(found, "cache_clear"):
        guarded.cache_clear = found.cache_clear  # type: ignore[attr-defined]
    setattr(place, name, guarded)


def _before_use(found: Callable[..., Any], args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    if not _is_fork():
        admit()
    return found(*args, **words)


def _before_question(none: Any) -> Guard:
    """Whether there is a GPU: there is one for this notebook if it could have a share of it now.

    Libraries ask this as they are imported, so nothing is taken for it, and that there is no room
    is no error here: it is told, and looked at again next time. CUDA must not begin meanwhile: it
    would never see a GPU in this process.
    """

    def guard(found: Callable[..., Any], args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        from gpuqueue.errors import GpuqueueError

        if _is_fork():
            return found(*args, **words)
        try:
            count = _could_have()
        except GpuqueueError as error:
            warnings.warn(f"no GPU for this notebook: {error}", RuntimeWarning, stacklevel=3)
            return none
        return count if type(none) is int else True

    return guard


def _could_have() -> int:
    """How many GPUs this notebook would get a share of now.

    Raises
    ------
    NoShare
        There is no room.
    """
    from gpuqueue.client.local import default_client
    from gpuqueue.client.ownshare import notebook_path
    from gpuqueue.client.shares import check_room
    from gpuqueue.client.wishes import default_wish, remembered

    client = default_client()
    wish = remembered(client, notebook_path()) or default_wish(client.settings)
    check_room(client, wish)
    return wish.gpus or 1


_pid = os.getpid()


def _is_fork() -> bool:
    """Whether this is a process that the kernel has forked: it has no share of its own."""
    return os.getpid() != _pid
