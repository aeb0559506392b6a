"""Large buffers of values, each in a file of its own beside the container. Standard library only.

A file of its own can be linked: a buffer whose bytes are in a file already, because an earlier
cell was sent them or has returned them, is not written again. That is never taken for granted:
either the memory is a private mapping of that file which has not been written to (``pages.py``), or
the two are compared, which takes half the time of a copy and no memory.

The bytes begin in the file where they begin in their page of memory, so that memory that has been
written can become a mapping of the file (``let_go``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
from collections import OrderedDict
from typing import Any

from gpuqueue.run.pages import PAGE, Maps, address_of, changed_ranges, same_memory

__all__ = ["LARGE", "Large", "Linked", "flush_gently", "map_large"]

LARGE = 16 << 20
"""Bytes of a buffer from which on it has a file of its own."""

_CHUNK = 1 << 20
_PIECE = 64 << 20
_HUGE = 2 << 20
_MOST_KNOWN = 1000
_RESIDENT = 0.9
"""The part of a file that must be in memory for a look at it to be cheaper than writing it anew."""
_SAMPLES = 16

_known: OrderedDict[tuple[int, int], str] = OrderedDict()
"""Files that had, at some time, what is at an address, by address and size. Only ever a hint."""


def _note(address: int | None, size: int, path: str) -> None:
    if address is not None:
        _known[address, size] = path
        _known.move_to_end((address, size))
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)


class Large:
    """One large buffer, or a file that has one.

    Attributes
    ----------
    start
        Where in its file the bytes begin.
    size
        How many there are.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._address = address_of(data)
        self.start = (self._address or 0) % PAGE
        self.size = data.nbytes

    def store(self, path: str, *, flush: bool, let_go: bool = False) -> None:
        """Have the bytes in a new file; of mode 0600 if it is written.

        Parameters
        ----------
        flush
            Whether they reach the disk before this returns.
        let_go
            Have this process's memory become a mapping of the file, where that can be. Its content
            stays; the memory is free for what is stored next.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # never written into: it may have other names
        source = self._source()
        if source is None or not _link(source, path):
            _write(path, self._data, self.start, self._address if let_go else None)
        if flush:
            _flush(path)

    def note(self, path: str) -> None:
        """Say where the bytes have been stored, for the next time."""
        _note(self._address, self.size, path)

    def _source(self) -> str | None:
        """A file that has just these bytes, at the same place."""
        path = _known.get((self._address or 0, self.size))
        if path is None:
            return None
        with contextlib.suppress(OSError, ValueError, EOFError):
            # not told that it is mapped: nothing here is to write to it
            other = _map(path, self.start, self.size)
            if _same(self._data, other):
                return path
        return None


class Linked:
    """A file that a new job takes over from another one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.size = os.stat(path).st_size

    def store(self, path: str, *, flush: bool, let_go: bool = False) -> None:  # noqa: ARG002
        """Have it under another name too, or else a copy of it."""
        if not _link(self._path, path):
            with open(self._path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                whole = memoryview(mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE))
            _write(path, whole, 0, None)
        if flush:
            _flush(path)

    def note(self, path: str) -> None:
        """As ``Large.note``; there is nothing to remember."""


def _same(data: memoryview, other: memoryview) -> bool:
    """Whether a file has what a buffer has, if that is soon told."""
    maps = Maps()
    here, there = address_of(data), address_of(other)
    if here is None or there is None:
        return False
    file = maps.file_at(here, data.nbytes)
    if file is not None and file == maps.file_at(there, data.nbytes):
        return not changed_ranges(data, other, maps)
    if not _is_resident(there, other.nbytes):
        return False
    step = max(PAGE, data.nbytes // _SAMPLES)
    samples = (slice(at, at + 64) for at in range(0, data.nbytes, step))
    return all(data[part] == other[part] for part in samples) and same_memory(data, other)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_uint]
    return libc


def _is_resident(address: int, size: int) -> bool:
    first = address // PAGE * PAGE
    count = (address + size - first + PAGE - 1) // PAGE
    pages = ctypes.create_string_buffer(count)
    try:
        if _libc().mincore(first, address + size - first, pages) != 0:
            return False
    except (AttributeError, OSError, TypeError):
        return False
    return pages.raw.count(b"\0") <= count * (1 - _RESIDENT)


def _link(source: str, path: str) -> bool:
    """Have a file under a second name; False where that cannot be (another disk, too many)."""
    try:
        os.link(source, path)
    except OSError:
        return False
    return True


def _write(path: str, data: memoryview, start: int, let_go: int | None) -> None:
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _reserve(handle, start + data.nbytes)
        forget = let_go is not None and _is_ours(let_go, data.nbytes)
        at = 0
        while at < data.nbytes:
            # up to where a large page of memory ends, so that none is torn
            end = min(data.nbytes, at + _PIECE)
            if let_go is not None and end < data.nbytes:
                end -= (let_go + end) % _HUGE
            _write_range(handle, data, start, at, end)
            if forget and let_go is not None:
                _become_mapping(handle, let_go, start, at, end)
            at = end
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(handle)


def _is_ours(address: int, size: int) -> bool:
    """Whether memory is this process's alone, and may be replaced by a mapping of its content."""
    maps = Maps()
    mapped = (address, size) in _known and maps.file_at(address, size) is not None
    return mapped or maps.is_own(address, size)


def _write_range(handle: int, data: memoryview, start: int, at: int, end: int) -> None:
    while at < end:
        # larger writes are no faster, and smaller ones are
        stop = min(end, at + _CHUNK - (start + at) % _CHUNK)
        at += os.pwrite(handle, data[at:stop], start + at)


def _reserve(handle: int, size: int) -> None:
    """Have room for a file, so that a full disk is told at once and writing is quicker."""
    with contextlib.suppress(AttributeError, TypeError):
        # not posix_fallocate, which writes to every block where the file system cannot
        if _libc().fallocate(handle, 0, 0, size) == 0:
            return
        if (number := ctypes.get_errno()) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(number, os.strerror(number))


def _become_mapping(handle: int, address: int, start: int, at: int, end: int) -> None:
    """Replace whole pages of memory by what has just been written of them."""
    first = -(-(address + at) // PAGE) * PAGE
    last = (address + end) // PAGE * PAGE
    if last <= first:
        return
    place = first - address + start
    rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    # on failure the memory is as it was
    _libc().mmap(first, last - first, rights, flags, handle, place)


_MAP_FIXED = 0x10
_SYNC_FILE_RANGE = 1 | 2 | 4  # wait for what is being written, write, wait for that


def _flush(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_gently(path: str, step: int = 16 << 20) -> None:
    """Have a large file reach the disk, a part at a time, so that small writes are not held up."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(AttributeError, TypeError):
            for at in range(0, os.fstat(handle).st_size, step):
                _libc().sync_file_range(handle, at, step, _SYNC_FILE_RANGE)
        os.fsync(handle)
    finally:
        os.close(handle)


def _map(path: str, start: int, size: int) -> memoryview:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_size < start + size:
            raise EOFError("the file of values is cut short")
        whole = memoryview(mmap.mmap(handle, start + size, mmap.MAP_PRIVATE))
    finally:
        os.close(handle)
    return whole[start : start + size]


def map_large(path: str, start: int, size: int) -> memoryview:
    """A stored buffer in memory: it can be written to, and the file stays as it is.

    Raises
    ------
    OSError, EOFError
        There is no such file, or it is cut short.
    """
    view = _map(path, start, size)
    _note(address_of(view), size, path)
    return view
