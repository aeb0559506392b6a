"""Trying whether GPU memory can be moved to the host here, with a process of our own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Any

from gpuqueue.run.devicestate import DeviceTool, NotMoved, bring_back, move_out
from gpuqueue.run.limited import abandon

__all__ = ["Proof", "try_out"]

_SIZE = 64 << 20
_SECONDS = 30.0
_READ = 3.0
"""Seconds that the driver's readings may lag behind."""

# It stands alone. When nobody listens any more it ends without a call of CUDA, which might wait for
# ever by then.
_PROGRAM = """
import ctypes, json, os, sys
size, word = int(sys.argv[1]), 0x5EED1234
def call(name, *words):
    answer = getattr(cuda, name)(*words)
    if answer:
        print(json.dumps({"problem": f"{name} answered {answer}"}), flush=True)
        os._exit(1)
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"problem": f"there is no NVIDIA driver ({error})"}), flush=True)
    os._exit(1)
context, pointer, other = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
call("cuMemsetD32_v2", pointer, ctypes.c_uint(word), ctypes.c_size_t(size // 4))
call("cuCtxSynchronize")
print(json.dumps({"ready": True}), flush=True)
if not sys.stdin.readline():
    os._exit(1)
back = ctypes.create_string_buffer(size)
call("cuMemcpyDtoH_v2", back, pointer, ctypes.c_size_t(size))
call("cuMemAlloc_v2", ctypes.byref(other), ctypes.c_size_t(1 << 20))
same = back.raw == word.to_bytes(4, "little") * (size // 4)
print(json.dumps({"same": same}), flush=True)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of a trial.

    ``problem`` says why it cannot be relied on; empty where it can. ``freed`` is by how many bytes
    the GPU was seen to be emptier, ``out`` and ``back`` are seconds.
    """

    problem: str = ""
    freed: int = 0
    out: float = 0.0
    back: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def try_out(tool: DeviceTool, gpu: str, held: Callable[[int], int]) -> Proof:
    """Move the memory of a process of our own out and back, and see that it was and is.

    It makes a CUDA context, which takes some hundred MB of the GPU for a moment.

    Parameters
    ----------
    gpu
        What the process is told as ``CUDA_VISIBLE_DEVICES``.
    held
        Tells the bytes that a process (by pid) holds of that GPU now.
    """
    env = dict(os.environ) | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu}
    words = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_SIZE)]
    try:
        canary = subprocess.Popen(
            words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        return Proof(f"no process could be tried with: {error}")
    try:
        return _try(tool, canary, held)
    except NotMoved as error:
        return Proof(str(error))
    finally:
        abandon(canary)


def _try(tool: DeviceTool, canary: subprocess.Popen[bytes], held: Callable[[int], int]) -> Proof:
    assert canary.stdin is not None
    assert canary.stdout is not None
    _expect(canary.stdout, "ready")
    before = _read_until(lambda: held(canary.pid), lambda size: size >= _SIZE)
    if before < _SIZE:
        raise NotMoved("the driver does not tell how much memory a process holds")
    began = time.monotonic()
    move_out(tool, canary.pid, _SECONDS)
    out = time.monotonic() - began
    freed = before - _read_until(lambda: held(canary.pid), lambda size: size <= before - _SIZE)
    if freed < _SIZE:
        bring_back(tool, canary.pid, _SECONDS)
        raise NotMoved(f"memory was said to be moved, and the GPU is emptier by {freed} bytes")
    began = time.monotonic()
    bring_back(tool, canary.pid, _SECONDS)
    back = time.monotonic() - began
    canary.stdin.write(b"\n")
    canary.stdin.flush()
    if not _expect(canary.stdout, "same")["same"]:
        raise NotMoved("memory came back changed")
    return Proof("", freed, round(out, 3), round(back, 3))


def _expect(stream: IO[bytes], word: str) -> dict[str, Any]:
    """The next line, which must hold this word."""
    if not select.select([stream], [], [], _SECONDS)[0]:
        raise NotMoved(f"the process that it was tried with was not {word} in {_SECONDS:.0f} s")
    try:
        said: dict[str, Any] = json.loads(stream.readline())
    except ValueError:
        raise NotMoved("the process that it was tried with died") from None
    if word not in said:
        raise NotMoved(f"no GPU could be used: {said.get('problem', said)}")
    return said


def _read_until(read: Callable[[], int], enough: Callable[[int], bool]) -> int:
    deadline = time.monotonic() + _READ
    while not enough(size := read()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return size
