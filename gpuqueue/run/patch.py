"""The part of an array's bytes that a cell has changed, where that is little of it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuqueue.run.pages import address_of

__all__ = ["Patch", "bytes_of", "patch_of", "patched"]

_LEAST = 1 << 20
_MOST = 0.5
"""The part of an array from which on the whole of it is sent."""


class Patch:
    """What to write where, in an array or the storage of tensors that the receiver has.

    Parameters
    ----------
    look
        What kind of array it belongs to, see ``_look``.
    pieces
        Offsets and bytes.
    """

    def __init__(self, look: tuple[Any, ...], pieces: Sequence[tuple[int, Any]]) -> None:
        self._look = look
        self._pieces = pieces

    def __reduce__(self) -> tuple[Callable[..., Patch], tuple[Any, ...]]:
        pieces = [(start, pickle.PickleBuffer(data)) for start, data in self._pieces]
        return Patch, (self._look, pieces)

    def apply(self, value: Any) -> bool:
        """Change an array; False where it is not of the kind or cannot be written to."""
        if _look(value) != self._look:
            return False
        memory = _memory(value)
        if memory is None or memory.readonly:
            return False
        for start, data in self._pieces:
            view = memoryview(data).cast("B")
            memory[start : start + view.nbytes] = view
        return True


def patched(patch: Patch, old: Any, number: int, sent: Mapping[int, Any], *, in_place: bool) -> Any:
    """The changed object: ``old`` itself, or a changed copy of what was sent.

    Parameters
    ----------
    sent
        Copies of what was sent, by number.
    in_place
        Whether ``old`` is still what was sent but for what the patch changes.
    """
    if in_place and patch.apply(old):
        return old
    copy = sent[number]
    return copy if patch.apply(copy) else old


def patch_of(value: Any, buffers: Sequence[memoryview], ranges: list[tuple[int, int]]) -> Any:
    """What has changed in an array, or all of it where that is much or it is no array.

    Parameters
    ----------
    buffers
        What it is sent as.
    ranges
        Where the one buffer is other than the receiver's.
    """
    changed = sum(end - start for start, end in ranges)
    if len(buffers) != 1 or changed > _MOST * buffers[0].nbytes:
        return value
    look = _look(value) if buffers[0].nbytes >= _LEAST else ()
    memory = _memory(value) if look else None
    if memory is None or address_of(memory) != address_of(buffers[0]):
        return value  # what is sent is not, or not only, its own bytes
    return Patch(look, [(start, buffers[0][start:end]) for start, end in ranges])


def _look(value: Any) -> tuple[Any, ...]:
    """All of an array but its bytes; empty for what is no array."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(value) is numpy.ndarray:
        if not value.flags.forc or value.dtype.hasobject:
            return ()
        return value.dtype, value.shape, bool(value.flags.c_contiguous)
    if torch is not None and type(value) is torch.UntypedStorage and value.device.type == "cpu":
        return "storage", value.nbytes()
    return ()


def bytes_of(array: Any) -> pickle.PickleBuffer | None:
    """The bytes of an array in one piece, not copied; None where NumPy does not give them out."""
    if array.dtype.kind in "mM":  # dates have no place in the buffer protocol
        array = array.view("i8")
    try:
        buffer = pickle.PickleBuffer(array)
        buffer.raw()
    except (BufferError, ValueError):
        return None
    return buffer


def _memory(value: Any) -> memoryview | None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.UntypedStorage):
        whole = torch.empty(0, dtype=torch.uint8).set_(value, 0, (value.nbytes(),), (1,))
        value = whole.numpy()
    buffer = bytes_of(value)
    return None if buffer is None else buffer.raw()
