"""How NumPy's arrays are pickled: as views of one another, of their own class, with their flags.

A memory map is the same file in both processes: what one writes to it the other sees.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from gpuqueue.run.making import (
    OF_MAPS,
    fill_array,
    make_array,
    make_array_over,
    make_memmap,
    make_reconstructed,
    make_row,
    make_view,
)
from gpuqueue.run.patch import bytes_of

__all__ = ["is_array", "is_over_tensor", "is_row", "owner_of", "reduce_array", "reduce_row"]

_BESIDE = 4096
"""Bytes of an array from which on they travel beside the pickle; a few are quicker in it."""
_WAYS = ("__reduce__", "__reduce_ex__", "__setstate__")


def is_array(value: Any) -> bool:
    """Whether something is an array that is pickled in the way of NumPy's own."""
    numpy = sys.modules.get("numpy")
    kinds: Any = getattr(numpy, "ndarray", ())  # it may just be imported
    kind = type(value)
    if kind is kinds:
        return True
    return isinstance(value, kinds) and all(getattr(kind, w) is getattr(kinds, w) for w in _WAYS)


def is_row(value: Any) -> bool:
    """Whether something is a row of a structured array, or may be one."""
    return isinstance(value, getattr(sys.modules.get("numpy"), "void", ()))


def owner_of(value: Any) -> Any:
    """The array whose memory an array is a view of, in one piece; itself if there is none."""
    above = value
    while is_array(above := above.base):
        if above.flags.forc and above.size and not above.dtype.hasobject:
            return above
    return value


def is_over_tensor(value: Any) -> bool:
    """Whether an array is what ``numpy()`` of a tensor has given."""
    base: Any = value.base
    tensors: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    return (
        type(value) is sys.modules["numpy"].ndarray
        and isinstance(base, tensors)
        and bool(value.flags.writeable)
        and base.data_ptr() == value.__array_interface__["data"][0]
        and tuple(base.shape) == value.shape
        and tuple(n * base.element_size() for n in base.stride()) == value.strides
        and base.numpy().dtype == value.dtype
    )


def reduce_row(value: Any, worth: Callable[[Any, int, int], bool]) -> Any:
    """How a row of a structured array is made again; None where it is by itself."""
    if not is_array(value.base) or value.dtype.hasobject:
        return None
    array = owner_of(value.base)
    if not array.flags.forc or not worth(array, value.nbytes, array.nbytes):
        return None
    offset = value.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    return make_row, (array, offset, type(value), value.dtype)


def reduce_array(value: Any, *, whole: bool, worth: Callable[[Any, int, int], bool]) -> Any:
    """How an array is made again; None for NumPy's own way.

    Parameters
    ----------
    whole
        Whether it is to be no view.
    worth
        Whether an array of some bytes is to take along the one behind it, of so many.
    """
    numpy: Any = sys.modules["numpy"]
    kind, plain = type(value), numpy.ndarray
    if not whole and is_over_tensor(value):
        return make_array_over, (value.base,)
    if issubclass(kind, numpy.memmap) and (mapped := _memmap(value)):
        return mapped
    args = _args(value, whole, worth)
    own = None if kind is plain else _attributes(numpy, value)
    if args is None:
        if not own:
            return None
        return make_reconstructed, value.__reduce__(), own, None, None, fill_array
    make, words = args
    if kind is plain:
        return make, words
    if own is None:
        return make, (*words, kind)
    return make, (*words, kind), own, None, None, fill_array


def _attributes(numpy: Any, value: Any) -> dict[str, Any] | None:
    if not hasattr(value, "__dict__"):
        return None
    # a view has those of the map
    kept = OF_MAPS if isinstance(value, numpy.memmap) else ()
    return {name: part for name, part in vars(value).items() if name not in kept}


def _args(value: Any, whole: bool, worth: Callable[[Any, int, int], bool]) -> Any:
    """The function that makes it and its arguments but for the class."""
    flags = value.flags
    if value.dtype.hasobject or not value.size:
        return None
    base = value if whole else owner_of(value)
    if base is not value and worth(base, value.nbytes, base.nbytes):
        offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return make_view, (
            base, offset, value.dtype, value.shape, value.strides, bool(flags.writeable),
        )  # fmt: skip
    if not flags.forc:
        return None
    order = "C" if flags.c_contiguous else "F"
    if value.nbytes < _BESIDE:
        text = value.tobytes(order)
        # an array over a bytearray can be written to
        data: Any = bytearray(text) if flags.writeable else text
    elif (data := bytes_of(value)) is None:
        return None
    return make_array, (data, value.dtype, value.shape, order)


def _memmap(value: Any) -> Any:
    """A memory map as its file; None for a view of one, or if the file is gone."""
    path = value.filename
    if is_array(value.base) or value._mmap is None or not isinstance(path, str | os.PathLike):  # noqa: SLF001
        return None
    try:
        if os.stat(path).st_size < value.offset + value.nbytes:
            return None
    except OSError:
        return None
    order = "C" if value.flags.c_contiguous else "F"
    # what is written to a private map is in no file
    data = value.tobytes(order) if value.mode == "c" else None
    form = value.dtype, value.offset, value.shape, order
    return make_memmap, (type(value), os.fspath(path), value.mode, *form, data)
