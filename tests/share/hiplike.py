"""A program that uses HIP, in a process of its own: ``python -c 'from hiplike import *; ...'``.

``hip`` has its functions, found by dlsym. A call returns HIP's error code.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p

MIB = 1 << 20
OOM = 2

_library = ctypes.CDLL("libamdhip64.so")


def hip(name: str, *values: object) -> int:
    words = [c_uint64(value) if isinstance(value, int) else value for value in values]
    return getattr(_library, name)(*words)


def alloc(size: int, name: str = "hipMalloc", *more: object) -> int:
    """A pointer, or minus the error."""
    pointer = c_void_p()
    result = hip(name, byref(pointer), size, *more)
    return -result if result else pointer.value or 0


def free(pointer: int) -> int:
    return hip("hipFree", c_void_p(pointer))


def info() -> tuple[int, int]:
    """Free and total memory in MiB, as HIP tells."""
    left, total = c_size_t(), c_size_t()
    assert hip("hipMemGetInfo", byref(left), byref(total)) == 0
    return left.value // MIB, total.value // MIB


def size_at(offset: int, name: str, device: int = 0) -> int:
    """A size in what a function tells of a device, in MiB."""
    made = (c_char * 4096)()
    assert hip(name, made, device) == 0
    return c_size_t.from_buffer(made, offset).value // MIB


class Extent(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


class Pitched(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), ("pitch", c_size_t), ("xs", c_size_t), ("ys", c_size_t)]


class Flat(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_int),
                ("channels", ctypes.c_uint)]  # fmt: skip


def on(device: int) -> ctypes.Array[c_int]:
    """How hipMemAllocationProp and hipMemPoolProps begin: type, handles, where."""
    return (c_int * 32)(1, 0, 1, device)


def proc(name: str, version: int = 600) -> ctypes._CFuncPtr:
    """A function as hipGetProcAddress hands it out."""
    found = c_void_p()
    assert hip("hipGetProcAddress", name.encode(), byref(found), version, 0, None) == 0
    return ctypes.CFUNCTYPE(c_int)(found.value)


def say(*words: object) -> None:
    """Tell the test something; it reads one line."""
    print(*words, flush=True)


def heard() -> str:
    """What the test says; waits for it."""
    return sys.stdin.readline().strip()
