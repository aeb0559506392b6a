"""The file format of named values. Standard library only.

The container, version 2: a magic line, the header's length (8 bytes, little endian), a JSON
header, then blobs, each at a multiple of 64 bytes. The header says for each name where its pickle
and its out-of-band buffers (pickle protocol 5) are::

    {"names": {"x": {"pickle": [offset, size], "buffers": [[offset, size, readonly], ...]}},
     "problems": {"fh": "why it is not in here"}}

A large buffer may be in a file of its own in the same folder, ``[offset, size, readonly, file]``
(``large.py``). Version 1 had no such files.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from gpuqueue.run.large import LARGE, Large, map_large

__all__ = ["MAPPED", "Reader", "assemble"]

_MAGIC = b"gpuqueue values 2\n"
_OLDER = (b"gpuqueue values 1\n",)
_ALIGN = 64
MAPPED = 1 << 20
"""Bytes of a buffer from which on it is mapped from the file instead of read."""


def assemble(
    done: Mapping[str, tuple[bytes, list[pickle.PickleBuffer]]],
    problems: Mapping[str, Exception],
    beside: str = "",
) -> tuple[list[Any], dict[str, Large]]:
    """A container, in pieces that are not copied, and the files beside it by name.

    Parameters
    ----------
    done
        Pickles and buffers by name.
    problems
        What is not there, and why.
    beside
        What the names of files beside it begin with; empty: there are to be none.
    """
    blobs: list[Any] = []
    large: dict[str, Large] = {}
    size = 0

    def place(blob: Any) -> list[int]:
        nonlocal size
        start, length = size, memoryview(blob).nbytes
        blobs.append(blob)
        size += length
        if gap := -size % _ALIGN:
            blobs.append(bytes(gap))
            size += gap
        return [start, length]

    def place_buffer(raw: memoryview) -> list[Any]:
        if not beside or raw.nbytes < LARGE:
            return [*place(raw), raw.readonly]
        name = f"{beside}.{len(large)}"
        large[name] = file = Large(raw)
        return [file.start, file.size, raw.readonly, name]

    names = {
        name: {
            "pickle": place(text),
            "buffers": [place_buffer(buffer.raw()) for buffer in buffers],
        }
        for name, (text, buffers) in done.items()
    }
    header = json.dumps(
        {"names": names, "problems": {name: str(error) for name, error in problems.items()}}
    ).encode()
    head = _MAGIC + len(header).to_bytes(8, "little") + header
    return [head, bytes(-len(head) % _ALIGN), *blobs], large


class Reader:
    """The parts of one container.

    Raises
    ------
    ValueError
        It is none, or of a version that is not known here.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        if file.read(len(_MAGIC)) not in (_MAGIC, *_OLDER):
            raise ValueError("this is not a file of gpuqueue values, or of another version")
        length = int.from_bytes(file.read(8), "little")
        self.header = json.loads(file.read(length))
        head = len(_MAGIC) + 8 + length
        self._base = head + (-head % _ALIGN)
        self._map: Any = None

    def _mapped(self, start: int, size: int) -> Any:
        """A part of the file in memory: it can be written to, and the file stays as it is."""
        if self._map is None:
            try:
                length = os.fstat(self._file.fileno()).st_size
                self._map = memoryview(mmap.mmap(self._file.fileno(), length, mmap.MAP_PRIVATE))
            except (OSError, ValueError, AttributeError):
                self._map = memoryview(b"")  # it is no file
        view = self._map[self._base + start : self._base + start + size]
        return view if len(view) == size else None

    def _blob(self, start: int, size: int) -> Any:
        if size >= MAPPED and (view := self._mapped(start, size)) is not None:
            return view
        # a bytearray, because an array over it can be written to
        blob = bytearray(size)
        self._file.seek(self._base + start)
        view = memoryview(blob)
        while view:
            count = self._file.readinto(view)
            if not count:
                raise EOFError("the file of values is cut short")
            view = view[count:]
        return blob

    def _buffer(self, start: int, size: int, readonly: bool, file: str = "") -> Any:
        if file:
            folder = os.path.dirname(os.path.abspath(self._file.name))
            found: Any = map_large(os.path.join(folder, os.path.basename(file)), start, size)
        else:
            found = self._blob(start, size)
        return memoryview(found).toreadonly() if readonly else found

    def size(self, name: str) -> int:
        """Bytes of a name's pickle and buffers."""
        entry = self.header["names"][name]
        return int(entry["pickle"][1] + sum(place[1] for place in entry["buffers"]))

    def pickle(self, name: str) -> Any:
        """A name's pickle."""
        return self._blob(*self.header["names"][name]["pickle"])

    def buffers(self, name: str) -> Iterator[Any]:
        """A name's buffers, in order."""
        for place in self.header["names"][name]["buffers"]:
            yield self._buffer(*place)
