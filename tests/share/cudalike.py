"""A program that uses CUDA, in a process of its own: ``python -c 'from cudalike import *; ...'``.

``cu`` has the driver's functions, found in the way that the variable RESOLVER names. A call returns
the driver's result code.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

MIB = 1 << 20
GIB = 1 << 30
OOM = 2


class Cuda:
    """The driver. RESOLVER: dlsym, dlvsym, or proc1 and proc2 (cuGetProcAddress, either form);
    ``version`` and ``flags`` are what those are asked for."""

    def __init__(self, resolver: str = "", version: int = 12040, flags: int = 0) -> None:
        self._how = resolver or os.environ.get("RESOLVER", "dlsym")
        self._library = ctypes.CDLL("libcuda.so.1")
        self._version, self._flags = version, flags
        self._found: dict[str, object] = {}
        self("cuInit", 0)

    def find(self, name: str):
        """The function: an address made callable."""
        if name not in self._found:
            if self._how in ("dlsym", "dlvsym") or name.startswith("cuGetProcAddress"):
                self._found[name] = self._symbol(name)
            else:
                base = name.removesuffix("_ptsz").removesuffix("_v2")
                self._found[name] = self._proc(base)
        return self._found[name]

    def _symbol(self, name: str):
        if self._how != "dlsym":
            libc = ctypes.CDLL(None)
            find = libc[self._how]  # itself found by dlsym
            find.restype = c_void_p
            words = [name.encode(), b"FAKE"][: 2 if self._how == "dlvsym" else 1]
            address = find(c_void_p(self._library._handle), *words)
            assert address
            return ctypes.CFUNCTYPE(c_int)(address)
        return getattr(self._library, name)

    def _proc(self, base: str):
        second = self._how == "proc2"
        ask = getattr(self._library, "cuGetProcAddress_v2" if second else "cuGetProcAddress")
        address = c_void_p()
        last = (byref(c_int()),) if second else ()
        flags = c_uint64(self._flags)
        assert ask(base.encode(), byref(address), self._version, flags, *last) == 0, base
        return ctypes.CFUNCTYPE(c_int)(address.value)

    def __call__(self, name: str, *values: object) -> int:
        function = ctypes.cast(self.find(name), c_void_p).value
        words = [c_uint64(value) if isinstance(value, int) else value for value in values]
        return ctypes.CFUNCTYPE(c_int)(function)(*words)


cu = Cuda()


def use(device: int = 0) -> c_void_p:
    """Make a device's primary context the current one."""
    context = c_void_p()
    assert cu("cuDevicePrimaryCtxRetain", byref(context), device) == 0
    assert cu("cuCtxSetCurrent", context) == 0
    return context


def alloc(size: int, name: str = "cuMemAlloc_v2") -> int:
    """A pointer, or minus the error."""
    pointer = c_uint64()
    result = cu(name, byref(pointer), size)
    return -result if result else pointer.value


def free(pointer: int) -> int:
    return cu("cuMemFree_v2", pointer)


def info() -> tuple[int, int]:
    """Free and total memory in bytes, as the driver tells."""
    left, total = c_size_t(), c_size_t()
    assert cu("cuMemGetInfo_v2", byref(left), byref(total)) == 0
    return left.value, total.value


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Props(ctypes.Structure):
    """How CUmemAllocationProp and CUmemPoolProps begin; the rest is zero."""

    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("_", c_uint64 * 9)]


class AllocNode(ctypes.Structure):
    _fields_ = [("pool", Props), ("access", c_void_p), ("count", c_size_t), ("size", c_size_t),
                ("pointer", c_uint64)]  # fmt: skip


class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                ("channels", ctypes.c_uint), ("flags", ctypes.c_uint)]  # fmt: skip


class FlatDescriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_int),
                ("channels", ctypes.c_uint)]  # fmt: skip


def on(device: int, kind: int = 1) -> Props:
    return Props(1, 0, Location(kind, device))


def create(size: int, device: int = 0, kind: int = 1) -> int:
    """A handle of physical memory, or minus the error."""
    handle = c_uint64()
    result = cu("cuMemCreate", byref(handle), size, byref(on(device, kind)), 0)
    return -result if result else handle.value


def say(*words: object) -> None:
    """Tell the test something; it reads one line."""
    print(*words, flush=True)


def heard() -> str:
    """What the test says; waits for it."""
    return sys.stdin.readline().strip()


__all__ = [
    "GIB",
    "MIB",
    "OOM",
    "AllocNode",
    "Cuda",
    "Descriptor",
    "FlatDescriptor",
    "Props",
    "alloc",
    "byref",
    "c_int",
    "c_size_t",
    "c_uint64",
    "c_void_p",
    "create",
    "ctypes",
    "cu",
    "free",
    "heard",
    "info",
    "on",
    "os",
    "say",
    "sys",
    "threading",
    "use",
]
