"""Which bytes of this process's memory are still those of a file that they are mapped from.

A private mapping (``MAP_PRIVATE``) shares a page with the file until it is written to; then the
process gets an anonymous page of its own. Linux tells for each page which of the two it is
(``/proc/self/pagemap``, bits 61 to 63; Documentation/admin-guide/mm/pagemap.rst in its sources) and
for each address of which file it is a mapping (``/proc/self/maps``). So two buffers that are mapped
from the same place of the same file need to be compared only where a page of one was written to.
Where that cannot be told, all is compared. Standard library only.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["PAGE", "Maps", "address_of", "changed_ranges", "same_memory"]

PAGE = mmap.PAGESIZE
_GRAIN = 64 << 10
"""Bytes that are compared at once, and said to be changed together."""
_COPIED = 1 << 18
_WORTH = 1 << 20
"""Bytes from which on looking up where a buffer comes from costs less than comparing it."""

_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20
_IS_OWN = bytes(
    bool(bits & _SWAPPED or (bits & _PRESENT and not bits & _OF_FILE)) for bits in range(256)
)
"""By the highest byte of a page's entry: whether the page is the process's own."""
_OWN = re.compile(rb"\x01+")


def address_of(view: memoryview) -> int | None:
    """Where a buffer's bytes are; None where that cannot be told."""
    if not view.nbytes:
        return None
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None  # ctypes gives out no address of what may not be written to
    return int(numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0])


@functools.cache
def _memcmp() -> Any:
    try:
        compare = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):
        return None
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    compare.restype = ctypes.c_int
    return compare


def _comparer(one: memoryview, other: memoryview) -> Callable[[int, int], bool]:
    """A function that tells whether a range of two buffers is the same."""
    here, there, compare = address_of(one), address_of(other), _memcmp()
    if here is not None and there is not None and compare is not None:
        return lambda start, end: bool(compare(here + start, there + start, end - start) == 0)
    # in steps that stay in the processor's cache: comparing two views goes byte by byte
    return lambda start, end: all(
        bytes(one[at : min(end, at + _COPIED)]) == bytes(other[at : min(end, at + _COPIED)])
        for at in range(start, end, _COPIED)
    )


def same_memory(one: memoryview, other: memoryview) -> bool:
    """Whether two buffers of one length have the same bytes."""
    return _comparer(one, other)(0, one.nbytes)


@dataclass(frozen=True, slots=True)
class _Area:
    start: int
    end: int
    rights: str
    offset: int
    file: str
    """Device and inode."""


class Maps:
    """What this process's memory is mapped from, as it is now."""

    def __init__(self) -> None:
        self._areas: list[_Area] = []
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    area, rights, offset, device, inode, *name = line.split(maxsplit=5)
                    start, _, end = area.partition("-")
                    file = f"{device} {inode}" if inode != "0" else "".join(name).strip()
                    self._areas.append(
                        _Area(int(start, 16), int(end, 16), rights, int(offset, 16), file)
                    )
        except (OSError, ValueError):
            self._areas = []
        self._starts = [area.start for area in self._areas]

    def _over(self, start: int, end: int) -> list[_Area]:
        """The areas that a range lies in, without a gap; none if there is one."""
        found: list[_Area] = []
        index, at = bisect_right(self._starts, start) - 1, start
        while at < end and 0 <= index < len(self._areas):
            area = self._areas[index]
            if not area.start <= at < area.end:
                return []
            found.append(area)
            index, at = index + 1, area.end
        return found if at >= end else []

    def file_at(self, start: int, size: int) -> tuple[str, int] | None:
        """The file of which a range is one private mapping, and the place in it."""
        areas = self._over(start, start + size)
        if not areas or not areas[0].file or areas[0].file[0] in "[/":
            return None
        first = areas[0]
        whole = all(
            area.file == first.file
            and area.rights[3] == "p"
            and area.offset - area.start == first.offset - first.start
            for area in areas
        )
        return (first.file, first.offset + start - first.start) if whole else None

    def is_own(self, start: int, size: int) -> bool:
        """Whether a range is plain memory, that nothing else maps."""
        areas = self._over(start, start + size)
        return bool(areas) and all(
            area.file in ("", "[heap]") and area.rights == "rw-p" for area in areas
        )


def _own_pages(start: int, size: int) -> list[tuple[int, int]] | None:
    """Ranges of addresses, whole pages, that this process has written to; None: unknown."""
    first, last = start // PAGE, (start + size - 1) // PAGE
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(first * 8)
            wanted, parts = (last - first + 1) * 8, []
            while wanted and (part := file.read(wanted)):
                parts.append(part)
                wanted -= len(part)
    except OSError:
        return None
    if wanted:
        return None
    own = b"".join(parts)[7::8].translate(_IS_OWN)
    return [
        ((first + found.start()) * PAGE, (first + found.end()) * PAGE)
        for found in _OWN.finditer(own)
    ]


@functools.cache
def _can_tell() -> bool:
    """Whether the system tells the truth about pages: tried on a file of four pages.

    Systems that only look like Linux may have these files and fill them with zeros.
    """
    if sys.byteorder != "little":
        return False
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 4 * PAGE)
            file.flush()
            with (
                mmap.mmap(file.fileno(), 4 * PAGE, mmap.MAP_PRIVATE) as one,
                mmap.mmap(file.fileno(), 4 * PAGE, mmap.MAP_PRIVATE) as other,
            ):
                one[2 * PAGE] = 0
                one[0], other[0]
                here, there = _address(one), _address(other)
                maps = Maps()
                return (
                    maps.file_at(here, 4 * PAGE) == maps.file_at(there, 4 * PAGE) is not None
                    and _own_pages(here, 4 * PAGE) == [(here + 2 * PAGE, here + 3 * PAGE)]
                    and _own_pages(there, 4 * PAGE) == []
                )
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _address(area: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def _doubtful(one: memoryview, other: memoryview, maps: Maps | None) -> list[tuple[int, int]]:
    """Ranges outside of which two buffers are surely the same."""
    size = one.nbytes
    everything = [(0, size)]
    if maps is None or size < _WORTH or not _can_tell():
        return everything
    here, there = address_of(one), address_of(other)
    if here is None or there is None:
        return everything
    file = maps.file_at(here, size)
    if file is None or file != maps.file_at(there, size):
        return everything
    pages = [_own_pages(here, size), _own_pages(there, size)]
    if pages[0] is None or pages[1] is None:
        return everything
    found = [(start - here, end - here) for start, end in pages[0]]
    found += [(start - there, end - there) for start, end in pages[1]]
    return [(max(0, start), min(size, end)) for start, end in sorted(found)]


def changed_ranges(
    one: memoryview, other: memoryview, maps: Maps | None = None
) -> list[tuple[int, int]]:
    """Where two buffers of one length differ: ranges that hold all differences.

    Parameters
    ----------
    maps
        Taken while both buffers exist. Without it, all is compared.
    """
    found: list[tuple[int, int]] = []
    same = _comparer(one, other)
    for start, end in _doubtful(one, other, maps):
        at = max(start, found[-1][1]) if found else start
        while at < end:
            to = min(end, at + _GRAIN - at % _GRAIN)
            if not same(at, to):
                if found and found[-1][1] == at:
                    found[-1] = (found[-1][0], to)
                else:
                    found.append((at, to))
            at = to
    return found
