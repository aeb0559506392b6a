"""Processes, known by pid, start time and boot together. Standard library only.

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

from gpuqueue.model import ProcessId

__all__ = [
    "adopt_orphans",
    "alive",
    "boot_id",
    "children_map",
    "descendants",
    "die_with_parent",
    "environment_of",
    "identify",
    "marked",
    "prepare",
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


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent and start time (clock ticks since boot) of a process on Linux."""
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
    return fields[0].decode(), int(fields[1]), int(fields[19])


def identify(pid: int) -> ProcessId | None:
    """The lasting identity of a process that lives now; None if there is none."""
    if _LINUX:
        stat = _stat(pid)
        return None if stat is None else ProcessId(pid, stat[2], boot_id())
    import psutil

    try:
        return ProcessId(pid, int(psutil.Process(pid).create_time() * 100), boot_id())
    except psutil.Error:
        return None


def alive(process: ProcessId) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    if process.boot != boot_id():
        return False
    if _LINUX:
        stat = _stat(process.pid)
        return stat is not None and stat[2] == process.start and stat[0] not in "ZX"
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
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _stat(int(name))
            if stat is not None and stat[0] not in "ZX":
                children.setdefault(stat[1], []).append(int(name))
    return children


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
    boot_id()
    _prctl()


def die_with_parent(*, on: bool = True) -> None:
    """Have this process killed when the one that started it ends, where the system can do that."""
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if on else 0, 0, 0, 0)
