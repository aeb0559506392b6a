"""Trying the memory cap on a real driver, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpuqueue.share import memcap

__all__ = ["TRIED", "try_out"]

_CAP = 64 << 20
_FITS = 2 << 20
_SECONDS = 30.0

TRIED = f"{(_CAP + _FITS) >> 20} MiB refused under a cap of {_CAP >> 20} MiB"
"""What is seen where it holds."""

# It stands alone: the cap must hold for programs that know nothing of it.
_CUDA = """
import ctypes, json, sys
said = {"step": "load"}
def call(name, *words):
    said["step"] = name
    return getattr(cuda, name)(*words)
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for name, words in (
        ("cuInit", (0,)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemGetInfo_v2", (ctypes.byref(free), ctypes.byref(total))),
    ):
        if result := call(name, *words):
            said["error"] = f"{name} answered {result}"
            break
    else:
        size = ctypes.c_size_t
        said["total"] = total.value
        said["over"] = call("cuMemAlloc_v2", ctypes.byref(pointer), size(int(sys.argv[1])))
        said["fits"] = call("cuMemAlloc_v2", ctypes.byref(pointer), size(int(sys.argv[2])))
except OSError as error:
    said["error"] = str(error)
print(json.dumps(said))
"""
_HIP = """
import ctypes, json, sys
said = {"step": "load"}
def call(name, *words):
    said["step"] = name
    return getattr(hip, name)(*words)
def load():
    for name in ("", ".7", ".6", ".5"):
        for folder in ("", "/opt/rocm/lib/"):
            try:
                return ctypes.CDLL(f"{folder}libamdhip64.so{name}")
            except OSError as error:
                last = error
    raise last
try:
    hip = load()
    pointer, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    size = ctypes.c_size_t
    for name, words in (
        ("hipSetDevice", (0,)),
        ("hipMemGetInfo", (ctypes.byref(free), ctypes.byref(total))),
    ):
        if result := call(name, *words):
            said["error"] = f"{name} answered {result}"
            break
    else:
        said["total"] = total.value
        said["over"] = call("hipMalloc", ctypes.byref(pointer), size(int(sys.argv[1])))
        said["fits"] = call("hipMalloc", ctypes.byref(pointer), size(int(sys.argv[2])))
except (OSError, AttributeError) as error:
    said["error"] = str(error)
print(json.dumps(said))
"""


_ALONE = {
    "nvidia": lambda gpu: {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu},
    # HIP counts among those that ROCr shows
    "amd": lambda gpu: {"ROCR_VISIBLE_DEVICES": gpu, "HIP_VISIBLE_DEVICES": "0"},
}
"""Variables by which a program sees one GPU alone."""


def _judge(said: Mapping[str, object], folder: Path) -> str:
    """What is wrong; empty if all is as it should be."""
    if "error" in said:
        return f"no GPU could be used: {said['error']}"
    if said["over"] != 2:
        return (
            f"{_CAP + _FITS} bytes under a cap of {_CAP} were not refused (answer {said['over']})"
        )
    if said["fits"] != 0:
        return f"{_FITS} bytes under a cap of {_CAP} were refused (answer {said['fits']})"
    if said["total"] != _CAP:
        return f"a program is told that its GPU has {said['total']} bytes, not {_CAP}"
    (usage,) = memcap.read(folder)
    if usage.peak != _FITS:
        return f"{usage.peak} bytes were counted where {_FITS} were allocated"
    return ""


def try_out(
    library: Path, gpu: str, base: Mapping[str, str] | None = None, vendor: str = "nvidia"
) -> str:
    """Start a program under a cap on a GPU and see what it is refused.

    It makes a context, which takes some hundred MB of the GPU for a moment.

    Parameters
    ----------
    library
        What `gpuqueue.share.memcap.build` has returned.
    gpu
        The GPU's UUID.
    base
        The environment to start from; this process's where it is None.
    vendor
        Its maker: ``nvidia`` (by CUDA's driver) or ``amd`` (by HIP).

    Returns
    -------
    Why it cannot be relied on; empty if it can.
    """
    environment = dict(os.environ if base is None else base)
    with tempfile.TemporaryDirectory(prefix="gpuqueue-canary-") as name:
        folder = Path(name)
        caps = memcap.environment(folder, {gpu: _CAP}, library=library, base=environment)
        environment |= _ALONE[vendor](gpu) | caps
        program = _HIP if vendor == "amd" else _CUDA
        words = [sys.executable, "-I", "-S", "-c", program, str(_CAP + _FITS), str(_FITS)]
        try:
            done = subprocess.run(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"a program under it did not end: {error}"
        if done.stderr:
            return f"a program under it printed: {done.stderr.strip()[:300]}"
        if done.returncode != 0:
            return f"a program under it ended with {done.returncode}"
        return _judge(json.loads(done.stdout), folder)
