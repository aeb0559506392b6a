"""Processes, known by pid, start time, boot and PID namespace. Standard library only.

Linux is read from ``/proc``. Elsewhere psutil answers, imported when it is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from gpuqueue.model import ProcessId

__all__ = [
    "Seen",
    "adopt_orphans",
    "alive",
    "boot_id",
    "children_map",
    "descendants",
    "die_with_parent",
    "environment_of",
    "identify",
    "is_elsewhere",
    "marked",
    "prepare",
    "process_table",
    "same_boot",
    "send_signal",
    "session_of",
    "since_boot",
]

_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@cache
def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    if _LINUX:
        with (
            contextlib.suppress(OSError),
            open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file,
        ):
            return file.read().strip()
    if sys.platform == "darwin":
        import subprocess

        # unlike the boot time, it does not move when the clock is set
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ["sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    import psutil

    return str(int(psutil.boot_time()))


def since_boot() -> float:
    """Seconds on a clock that nobody sets and that counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _LINUX else time.monotonic()


_FIRST_NAMESPACE = 0xEFFFFFFC
"""Number of the PID namespace that the kernel begins with (``PROC_PID_INIT_INO``)."""


@cache
def _here() -> str:
    """What tells this boot and this PID namespace (a container's, mostly) from every other."""
    if _LINUX:
        with contextlib.suppress(OSError, ValueError):
            number = int(os.readlink("/proc/self/ns/pid")[len("pid:[") : -1])
            # short, so that a claim's text fits into the inode of its link
            return f"{boot_id()}:{number - _FIRST_NAMESPACE:x}"
    return boot_id()


def same_boot(process: ProcessId) -> bool:
    """Whether a process was started since the machine was, in whichever container."""
    return process.boot.partition(":")[0] == boot_id()


def is_elsewhere(process: ProcessId) -> bool:
    """Whether a process belongs to another container, where its number means something else.

    One without a namespace was noted by an older gpuqueue, which knew of this one alone.
    """
    return same_boot(process) and process.boot not in (_here(), boot_id())


class Seen(NamedTuple):
    """A process at one moment: its state letter as in ``ps``, its parent, its start in ticks."""

    state: str
    parent: int
    start: int


def _stat(pid: int) -> Seen | None:
    """A process on Linux."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(file, 4096)
        finally:
            os.close(file)
    except OSError:
        return None
    # the name is in parentheses and may hold anything, parentheses too
    fields = text[text.rindex(b")") + 2 :].split()
    return Seen(fields[0].decode(), int(fields[1]), int(fields[19]))


def identify(pid: int) -> ProcessId | None:
    """The lasting identity of a process that lives now; None if there is none."""
    if _LINUX:
        stat = _stat(pid)
        return None if stat is None else ProcessId(pid, stat.start, _here())
    import psutil

    try:
        return ProcessId(pid, int(psutil.Process(pid).create_time() * 100), _here())
    except psutil.Error:
        return None


def alive(process: ProcessId) -> bool:
    """Whether that very process still runs, in this container (a zombie does not)."""
    if process.boot not in (_here(), boot_id()):
        return False
    if _LINUX:
        stat = _stat(process.pid)
        return stat is not None and stat.start == process.start and stat.state not in "ZX"
    found = identify(process.pid)
    return found == process


def send_signal(process: ProcessId, number: int) -> bool:
    """Send a signal to that very process, never to a stranger with its pid; whether it was sent."""
    if not hasattr(os, "pidfd_open"):
        if not alive(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            return True
        return False
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _children_map() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, seen in (process_table() or {}).items():
        if seen.state not in "ZX":
            children.setdefault(seen.parent, []).append(pid)
    return children


def process_table() -> dict[int, Seen] | None:
    """Every process of this machine that can be seen, by pid; None off Linux."""
    if not _LINUX:
        return None
    return {int(pid): seen for pid in _pids() if (seen := _stat(int(pid))) is not None}


def children_map() -> dict[int, list[int]] | None:
    """Living children by parent, for asking for the descendants of many; None off Linux."""
    return _children_map() if _LINUX else None


def descendants(pid: int, children: dict[int, list[int]] | None = None) -> list[int]:
    """Pids of all living descendants of a process, parents before children."""
    if not _LINUX:
        import psutil

        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            return []
    if children is None:
        children = _children_map()
    found: list[int] = []
    queue = list(children.get(pid, ()))
    while queue:
        current = queue.pop(0)
        found.append(current)
        queue += children.get(current, ())
    return found


def session_of(leader: int) -> list[int]:
    """Pids of the living processes in the session that a process leads."""
    if not _LINUX:
        return []
    found = []
    for name in _pids():
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found


def marked(variable: str, value: str) -> list[int]:
    """Pids of processes of this user whose environment at start held ``variable=value``."""
    wanted = os.fsencode(f"{variable}={value}")
    found = []
    for name in _pids():
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def environment_of(pid: int) -> dict[str, str]:
    """A process's environment as it was at its start; empty where that is not told."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return {name: value for name, found, value in (e.partition("=") for e in entries) if found}


def _pids() -> Iterable[str]:
    return (name for name in os.listdir("/proc") if name.isdigit()) if _LINUX else ()


@cache
def _prctl() -> ctypes._NamedFuncPointer | None:
    if not _LINUX:
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None


def adopt_orphans() -> bool:
    """Make orphaned descendants children of this process; whether the system can do that."""
    prctl = _prctl()
    return prctl is not None and prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def prepare() -> None:
    """Look up ahead of a fork what its child would look up otherwise."""
    _here()
    _prctl()


def die_with_parent(*, on: bool = True) -> None:
    """Have this process killed when the one that started it ends, where the system can do that."""
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if on else 0, 0, 0, 0)
