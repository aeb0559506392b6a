"""How a kernel that holds a share of a GPU and the controller agree. Standard library only.

A kernel has no runner: whoever starts it (its *owner*: a Jupyter server, or the kernel itself) asks
for a job, and then speaks through the files of that job's attempt:

===============  ==============================================================================
``grant.json``   by the controller: what the kernel starts with, its environment (0600)
``claim``        by the owner: it has the grant, and the placement is in use from now on
``log``          locked by the owner for as long as it lives; nothing is written to it
``kernel.json``  by the owner: the kernel's process, named anew after each restart
``busy``         by the kernel: one byte, ``1`` while a cell runs, else ``0``
``lends``        by the controller: others may use its compute while it idles, so the kernel rings
                 the controller as a cell begins
``restarting``   by the owner: the kernel has gone, and is about to start again
``released``     by the owner: nobody needs the share any more
``tidy``         doorbell of the kernel: it is to empty the caches of its libraries
===============  ==============================================================================

The kernel is told by one variable, ``GPUQUEUE_SHARE``: which share it has, and how its environment
was without it, for whatever it starts that is not to be part of the share.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from gpuqueue.model import ProcessId
from gpuqueue.run.files import LOG, hold, is_held, read_json, write_json
from gpuqueue.run.inherit import unheld
from gpuqueue.run.process import alive, is_elsewhere
from gpuqueue.run.wake import ring

if sys.platform != "win32":
    import fcntl

__all__ = [
    "BUSY",
    "SHARE",
    "TIDY",
    "Busy",
    "activity",
    "ask_to_tidy",
    "has_grant",
    "has_let_go",
    "is_busy",
    "is_coming_up",
    "is_lending",
    "is_released",
    "is_restarting",
    "keep_for_restart",
    "keep_lock",
    "lives",
    "mark",
    "mark_lending",
    "name_kernel",
    "own_share",
    "process_in",
    "read_grant",
    "read_kernel",
    "release",
    "set_variables",
    "with_share",
    "without_share",
    "write_grant",
]

SHARE = "GPUQUEUE_SHARE"
"""The variable by which a process knows its share; what it starts inherits it."""
BUSY = "busy"
TIDY = "tidy"
_LENDS = "lends"
_GRANT = "grant.json"
_KERNEL = "kernel.json"
_RELEASED = "released"
_RESTARTING = "restarting"


# -- files -----------------------------------------------------------------------------------------


def write_grant(folder: str | os.PathLike[str], grant: Mapping[str, Any]) -> None:
    """Say what the kernel of an attempt starts with; the owner may read it any number of times."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_json(os.path.join(folder, _GRANT), grant, flush=False)


def read_grant(folder: str | os.PathLike[str]) -> Any:
    """What the kernel of an attempt starts with; None while it was not granted."""
    grant = read_json(os.path.join(folder, _GRANT))
    return {"env": {}, "placement": None, **grant} if isinstance(grant, dict) else None


def has_grant(folder: str | os.PathLike[str]) -> bool:
    """Whether an attempt is a kernel's."""
    return os.path.exists(os.path.join(folder, _GRANT))


def keep_lock(folder: str | os.PathLike[str]) -> int:
    """Lock an attempt's log as its owner; the lock goes with this process, or with its file."""
    handle = os.open(os.path.join(folder, LOG), os.O_CREAT | os.O_RDWR, 0o600)
    hold(handle)
    return handle


def has_let_go(folder: str | os.PathLike[str]) -> bool:
    """Whether no owner has the lock any more, although one may live: it released the share.

    On a full disk this is the only word of it. False where files cannot be locked.
    """
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(os.path.join(folder, LOG), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def name_kernel(folder: str | os.PathLike[str], process: ProcessId) -> None:
    """Say which process the kernel is now."""
    me = {"pid": process.pid, "start": process.start, "boot": process.boot}
    write_json(os.path.join(folder, _KERNEL), me, flush=False)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, _RESTARTING))


def keep_for_restart(folder: str | os.PathLike[str]) -> None:
    """Say that the kernel is about to start again: until it is named, or released.

    What the one before told of its cells says nothing of this one, which may not tell.
    """
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, BUSY))
    with contextlib.suppress(OSError):
        write_json(os.path.join(folder, _RESTARTING), {"at": time.time()}, flush=False)


def is_restarting(folder: str | os.PathLike[str]) -> bool:
    """Whether the owner is about to start the kernel again."""
    return os.path.exists(os.path.join(folder, _RESTARTING))


def read_kernel(folder: str | os.PathLike[str]) -> ProcessId | None:
    """The kernel's process as it was named last; None before it was."""
    return process_in(read_json(os.path.join(folder, _KERNEL)))


def process_in(found: Any) -> ProcessId | None:
    """A process that was written down, by this version or another; None where it cannot be told."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return ProcessId(int(found["pid"]), int(found["start"]), str(found["boot"]))
    return None


def release(folder: str | os.PathLike[str], *, detached: bool = False, died: bool = False) -> None:
    """Say that the share is needed no more.

    ``detached`` says that its kernel goes on without it, ``died`` that the kernel was lost. Where
    the disk is full, the owner's lock tells it: it is let go after this.
    """
    with contextlib.suppress(OSError):
        told = {"detached": detached, "died": died, "at": time.time()}
        write_json(os.path.join(folder, _RELEASED), told, flush=False)


def is_released(folder: str | os.PathLike[str]) -> Any:
    """What the owner said as it released the share; None before."""
    told = read_json(os.path.join(folder, _RELEASED))
    return {"detached": False, "died": False, **told} if isinstance(told, dict) else None


def lives(folder: str | os.PathLike[str], process: ProcessId) -> bool:
    """Whether an owner or a kernel is there, in this container or another.

    Of another container only the owner's lock is seen, which goes with it.
    """
    return alive(process) or (is_elsewhere(process) and is_held(folder))


# -- busy or idle ----------------------------------------------------------------------------------


class Busy:
    """The kernel's end of ``busy``: one write a cell.

    Raises
    ------
    OSError
        The attempt's directory is gone.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._over = os.path.join(folder, _RELEASED)
        path = os.path.join(folder, BUSY)
        self._folder = os.path.abspath(folder)
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)

    def tell(self, *, busy: bool) -> None:
        """Say whether a cell runs; ring where others use the compute meanwhile."""
        with contextlib.suppress(OSError):
            os.pwrite(self._file, b"1" if busy else b"0", 0)
        # in this order: who lends is marked first and looked at then
        if busy and is_lending(self._folder):
            from gpuqueue.run.wake import ring

            job = os.path.dirname(self._folder)
            root = os.path.dirname(os.path.dirname(job))
            ring(os.path.join(root, "wake"), f"busy {os.path.basename(job)}")

    def is_over(self) -> bool:
        """Whether the share was given back; one look at a name."""
        return os.path.exists(self._over)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def mark_lending(folder: str | os.PathLike[str], *, lends: bool) -> None:
    """Have the kernel ring as its next cell begins, or no longer."""
    path = os.path.join(folder, _LENDS)
    with contextlib.suppress(OSError):
        if lends:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        else:
            os.unlink(path)


def is_lending(folder: str | os.PathLike[str]) -> bool:
    """Whether others may use the kernel's compute while it idles."""
    return os.path.exists(os.path.join(folder, _LENDS))


def is_busy(folder: str | os.PathLike[str]) -> bool:
    """Whether a cell runs in the kernel; one that does not tell counts as busy."""
    try:
        with open(os.path.join(folder, BUSY), "rb") as file:
            return file.read(1) != b"0"
    except OSError:
        return True


def activity(folder: str | os.PathLike[str]) -> tuple[bool | None, float | None]:
    """Whether a cell runs in the kernel, and if not, since when: seconds since the epoch.

    Both are None of a kernel that does not tell, as one of another language.
    """
    try:
        with open(os.path.join(folder, BUSY), "rb") as file:
            state, written = file.read(1), os.fstat(file.fileno()).st_mtime
    except OSError:
        return None, None
    if state not in (b"0", b"1"):
        return None, None
    return state == b"1", written if state == b"0" else None


def is_coming_up(folder: str | os.PathLike[str], started: float | None, patience: float) -> bool:
    """Whether a kernel has been started again, or is about to be, and cannot have told yet.

    ``started`` is when the first kernel of this share was there; ``patience`` is in seconds.
    """
    if os.path.exists(os.path.join(folder, BUSY)):
        return False
    if is_restarting(folder):
        return True
    try:
        named = os.stat(os.path.join(folder, _KERNEL)).st_mtime
    except OSError:
        return False
    return started is not None and named > started and 0 <= time.time() - named < patience


def ask_to_tidy(folder: str | os.PathLike[str]) -> bool:
    """Have a kernel empty the caches of its libraries as soon as no cell runs; whether it hears."""
    return ring(os.path.join(folder, TIDY), "caches")


# -- the environment -------------------------------------------------------------------------------


def mark(job: int, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What ``GPUQUEUE_SHARE`` says of a share, besides how the environment was without it."""
    return {"job": job, "folder": str(folder)}


def with_share(
    env: Mapping[str, str], changes: Mapping[str, str], told: Mapping[str, Any]
) -> dict[str, str]:
    """An environment with that of a share over it, and the note by which that can be undone."""
    base = without_share(env)
    was = {name: base.get(name) for name in changes}
    return {**base, **changes, SHARE: json.dumps({**told, "was": was}, separators=(",", ":"))}


def without_share(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it was before a share was put over it; a copy of it where there is none.

    What a job's share has added goes, too.
    """
    left = dict(env)
    for name, value in (_told(left.pop(SHARE, "")).get("was") or {}).items():
        if value is None:
            left.pop(name, None)
        else:
            left[name] = value
    return unheld(left)


def own_share(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``GPUQUEUE_SHARE`` says here; empty where there is none."""
    return _told((os.environ if env is None else env).get(SHARE, ""))


def set_variables(wanted: Mapping[str, str]) -> None:
    """Make this process's environment the wanted one."""
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _told(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
