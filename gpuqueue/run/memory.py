"""How much memory there is, and how much a process has for itself. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os

__all__ = ["free_memory", "into_large_pages", "own_memory"]

_LARGE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1, which ctypes and mmap have no name for


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


def into_large_pages() -> None:
    """Put what this process has allocated into pages of 2 MB, where the system can (Linux 6.1).

    A fork then copies, and the end of that fork takes down, a table of hundreds of entries instead
    of tens of thousands. What it changes is copied by 4 KB as ever. Where it cannot be, nothing
    happens.
    """
    try:
        advise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file]
    for area, rights, _, _, inode, *name in lines:
        # private memory of no file; stacks and what belongs to the system are left alone
        if inode != "0" or rights[1:4:2] != "wp" or name not in ([], ["[heap]"]):
            continue
        first, end = (int(word, 16) for word in area.split("-"))
        first, end = -(-first // _LARGE) * _LARGE, end // _LARGE * _LARGE
        if first < end:
            advise(first, end - first, _COLLAPSE)


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
