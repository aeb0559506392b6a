"""How much memory there is, and how much a process has for itself. Linux only."""

from __future__ import annotations

import contextlib
import os

__all__ = ["free_memory", "own_memory"]


def _fields(path: str) -> dict[str, int]:
    """The sizes in a file of lines such as ``MemAvailable: 123 kB``, in bytes."""
    found = {}
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            words = rest.split()
            if len(words) == 2 and words[1] == "kB":
                found[name] = int(words[0]) << 10
    return found


def own_memory() -> int:
    """Bytes that this process holds for itself: what is mapped from files does not count."""
    fields = _fields("/proc/self/status")
    return fields.get("RssAnon", 0) + fields.get("RssShmem", 0)


def free_memory() -> int:
    """Bytes that programs may still take, within this process's control group as well."""
    free = _fields("/proc/meminfo").get("MemAvailable", 0)
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            here = next(line[3:].strip() for line in file if line.startswith("0::"))
        folder = os.path.normpath(f"/sys/fs/cgroup/{here}")
        while folder.startswith("/sys/fs/cgroup/"):
            free = min(free, _room_in(folder, free))
            folder = os.path.dirname(folder)
    return free


def _room_in(folder: str, most: int) -> int:
    """What a control group (version 2) has left of its limit; ``most`` if it has none."""
    sizes = []
    for name in ("memory.max", "memory.current"):
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                sizes.append(int(file.read()))
        except (OSError, ValueError):  # no such group, or "max"
            return most
    return sizes[0] - sizes[1]
