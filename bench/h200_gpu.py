"""A program on the GPU that does as it is told, a JSON line at a time: `bench/h200.py` starts it.

It speaks with the driver alone, so it needs Python and nothing else. Its work is a multiplication
of 16-bit matrices by cuBLAS where that is there, else tensor-core instructions in a loop.
"""

from __future__ import annotations

import ctypes
import glob
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

SIDE = 8192
LOOPS = 400
CHAINS = 4
WARPS = 8
FLOP_OF_MMA = 4096
MULTIPROCESSORS, FREE = 16, 2
BURST = 4


def kernels() -> bytes:
    """The two kernels: one that keeps the tensor cores busy, one that does nothing."""
    chains = range(CHAINS)
    registers = "\n".join(f".reg .f32 %c{i}_<4>;" for i in chains)
    zero = "\n".join(f"mov.f32 %c{i}_{j}, 0f00000000;" for i in chains for j in range(4))
    step = "\n".join(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        f"{{%c{i}_0,%c{i}_1,%c{i}_2,%c{i}_3}}, {{%r4,%r5,%r4,%r5}}, {{%r6,%r7}}, "
        f"{{%c{i}_0,%c{i}_1,%c{i}_2,%c{i}_3}};"
        for i in chains
    )
    total = "\n".join(f"add.f32 %f1, %f1, %c{i}_{j};" for i in chains for j in range(4))
    # the numbers are between 0.5 and 1 and differ by thread, for zeros cost less power; the sum is
    # kept only if it is negative, which the compiler cannot know to be never
    return f"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry tiny() {{ ret; }}
.visible .entry burn(.param .u64 out, .param .u32 loops) {{
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %d<2>; .reg .f32 %f<2>;
{registers}
ld.param.u64 %d1, [out];
ld.param.u32 %r1, [loops];
mov.u32 %r2, %tid.x;
mad.lo.u32 %r3, %r2, 1103515245, 12345;
and.b32 %r4, %r3, 0x03ff03ff; or.b32 %r4, %r4, 0x38003800;
shr.u32 %r3, %r3, 3;
and.b32 %r5, %r3, 0x03ff03ff; or.b32 %r5, %r5, 0x38003800;
shr.u32 %r3, %r3, 3;
and.b32 %r6, %r3, 0x03ff03ff; or.b32 %r6, %r6, 0x38003800;
xor.b32 %r7, %r5, 0x01550155;
{zero}
LOOP:
{step}
sub.u32 %r1, %r1, 1;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra LOOP;
mov.f32 %f1, 0f00000000;
{total}
setp.lt.f32 %p2, %f1, 0f00000000;
@%p2 st.global.f32 [%d1], %f1;
ret;
}}
""".encode()


class Failed(Exception):
    """A call of the driver was answered with an error."""


class Gpu:
    """The first GPU that this process sees."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = c_int(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.device, self.context = device, context
        self.held: list[tuple[str, int, int]] = []
        self.functions: dict[str, c_void_p] = {}
        self.work: tuple[str, float, Callable[[], None]] | None = None

    def call(self, name: str, *words: Any) -> None:
        if result := getattr(self.cuda, name)(*words):
            raise Failed(f"{name} answered {result}")

    def attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    def about(self) -> dict[str, Any]:
        uuid = (ctypes.c_ubyte * 16)()
        free, total = c_size_t(), c_size_t()
        self.call("cuDeviceGetUuid", uuid, self.device)
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        text = bytes(uuid).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return {
            "pid": os.getpid(),
            "uuid": "GPU-" + "-".join(parts),
            "multiprocessors": self.attribute(MULTIPROCESSORS),
            "free": free.value,
            "total": total.value,
        }

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, size: int, how: str = "cuMemAlloc") -> int:
        """The driver's answer; what was had is held."""
        at = c_uint64()
        if how == "cuMemCreate":
            # CUmemAllocationProp: pinned, no handle type, on a device; the rest is zero
            props = (c_uint * 16)(1, 0, 1, self.device.value)
            result = int(self.cuda.cuMemCreate(byref(at), c_size_t(size), props, c_uint64(0)))
        elif how == "cuMemAllocAsync":
            result = int(self.cuda.cuMemAllocAsync(byref(at), c_size_t(size), None))
        else:
            result = int(self.cuda.cuMemAlloc_v2(byref(at), c_size_t(size)))
        if result == 0:
            self.held.append((how, at.value, size))
        return result

    def release(self) -> None:
        names = {"cuMemCreate": "cuMemRelease", "cuMemAllocAsync": "cuMemFreeAsync"}
        while self.held:
            how, at, _ = self.held.pop()
            more = (None,) if how == "cuMemAllocAsync" else ()
            self.call(names.get(how, "cuMemFree_v2"), c_uint64(at), *more)
        self.call("cuCtxSynchronize")

    def fill(self, value: int) -> None:
        for _, at, size in self.held:
            self.call("cuMemsetD32_v2", c_uint64(at), c_uint(value), c_size_t(size // 4))
        self.call("cuCtxSynchronize")

    def same(self, value: int) -> bool:
        """Whether samples of what is held are as they were filled."""
        for _, at, size in self.held:
            for part in range(64):
                word = c_uint()
                place = at + part * (size // 64) // 4 * 4
                self.call("cuMemcpyDtoH_v2", byref(word), c_uint64(place), c_size_t(4))
                if word.value != value:
                    return False
        return True

    # -- work -------------------------------------------------------------------------------------

    def function(self, name: str) -> c_void_p:
        if name not in self.functions:
            module, function = c_void_p(), c_void_p()
            self.call("cuModuleLoadData", byref(module), kernels())
            self.call("cuModuleGetFunction", byref(function), module, name.encode())
            self.functions[name] = function
        return self.functions[name]

    def launch(self, name: str, blocks: int, threads: int, *words: Any) -> None:
        pointers = (c_void_p * max(1, len(words)))(
            *(ctypes.cast(byref(word), c_void_p) for word in words)
        )
        grid = (blocks, 1, 1, threads, 1, 1, 0)
        self.call("cuLaunchKernel", self.function(name), *grid, None, pointers, None)

    def prepare(self) -> tuple[str, float, Callable[[], None]]:
        """What one unit of work is: its name, its floating-point operations, and how to do it."""
        if self.work is None:
            self.work = self._matrices() or self._loop()
        return self.work

    def _loop(self) -> tuple[str, float, Callable[[], None]]:
        if self.allocate(4096):
            raise Failed("no room for the result")
        out, loops = c_uint64(self.held.pop()[1]), c_uint(LOOPS)
        # as many whatever the share, so that a unit is the same for all; and enough rounds of them
        # that the last one, which may be half empty, is little
        blocks = int(os.environ.get("H200_BLOCKS", "16896"))
        flop = float(blocks) * WARPS * CHAINS * LOOPS * FLOP_OF_MMA
        return "mma loop", flop, lambda: self.launch("burn", blocks, WARPS * 32, out, loops)

    def _matrices(self) -> tuple[str, float, Callable[[], None]] | None:
        library = _cublas()
        if library is None:
            return None
        size = SIDE * SIDE * 2
        if any(self.allocate(size) for _ in range(3)):
            return None
        (_, a, _), (_, b, _), (_, c, _) = (self.held.pop() for _ in range(3))
        for at in (a, b):
            self._randomise(at, size)
        handle = c_void_p()
        if library.cublasCreate_v2(byref(handle)):
            return None
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        half, in_32 = 2, 68  # CUDA_R_16F, CUBLAS_COMPUTE_32F

        def multiply() -> None:
            result = library.cublasGemmEx(
                handle, 0, 0, SIDE, SIDE, SIDE, byref(one), c_uint64(a), half, SIDE, c_uint64(b),
                half, SIDE, byref(zero), c_uint64(c), half, SIDE, in_32, -1,
            )  # fmt: skip
            if result:
                raise Failed(f"cublasGemmEx answered {result}")

        multiply()
        self.call("cuCtxSynchronize")
        return "cuBLAS 8192x8192 fp16", 2.0 * SIDE**3, multiply

    def _randomise(self, at: int, size: int) -> None:
        noise = bytearray(os.urandom(1 << 24))
        # between 1/8 and 1, of either sign: zeros cost less power
        high = bytes(0x30 | (value & 0x8B) for value in range(256))
        noise[1::2] = noise[1::2].translate(high)
        piece = (ctypes.c_char * len(noise)).from_buffer(noise)
        for start in range(0, size, len(noise)):
            length = min(len(noise), size - start)
            self.call("cuMemcpyHtoD_v2", c_uint64(at + start), piece, c_size_t(length))

    def burn(self, start: float, warm: float, seconds: float) -> dict[str, Any]:
        """Work until ``seconds`` after ``start`` (of the machine's steady clock) plus ``warm``.

        The rate is taken between the first and the last unit's end in that window, so that no part
        of a unit counts.
        """
        name, flop, unit = self.prepare()
        _sleep_until(start)
        first, last = start + warm, start + warm + seconds
        ends: list[float] = []
        while (now := time.monotonic()) < last:
            for _ in range(BURST):
                unit()
            self.call("cuCtxSynchronize")
            now = time.monotonic()
            if first <= now <= last:
                ends.append(now)
        if len(ends) < 2:
            raise Failed("fewer than two units ended in the time that was measured")
        rate = (len(ends) - 1) * BURST / (ends[-1] - ends[0])
        return {"work": name, "units": len(ends) * BURST, "tflops": rate * flop / 1e12}

    def latency(self, start: float, seconds: float) -> dict[str, Any]:
        """Microseconds from a small kernel's launch to its end: the median, the 99th per cent."""
        _sleep_until(start)
        found = []
        while time.monotonic() < start + seconds:
            before = time.perf_counter()
            self.launch("tiny", 1, 32)
            self.call("cuCtxSynchronize")
            found.append((time.perf_counter() - before) * 1e6)
        if not found:
            raise Failed("no kernel ended in the time that was measured")
        found.sort()
        return {
            "n": len(found),
            "p50_us": round(found[len(found) // 2], 1),
            "p99_us": round(found[len(found) * 99 // 100], 1),
        }

    def pairs(self, how: str, size: int, threads: int, seconds: float) -> dict[str, Any]:
        """Allocations and their frees a second, all threads together; or empty launches."""
        counts = [0] * threads
        stop = time.monotonic() + seconds

        def one(number: int) -> None:
            self.call("cuCtxSetCurrent", self.context)
            at = c_uint64()
            props = (c_uint * 16)(1, 0, 1, self.device.value)
            for turn in itertools.count():
                if turn % 16 == 0 and time.monotonic() > stop:
                    break
                if how == "launch":
                    self.launch("tiny", 1, 32)
                elif how == "cuMemCreate":
                    self.call("cuMemCreate", byref(at), c_size_t(size), props, c_uint64(0))
                    self.call("cuMemRelease", at)
                else:
                    self.call("cuMemAlloc_v2", byref(at), c_size_t(size))
                    self.call("cuMemFree_v2", at)
                counts[number] += 1

        began = time.monotonic()
        started = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        self.call("cuCtxSynchronize")
        return {"per_s": sum(counts) / (time.monotonic() - began)}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _cublas() -> ctypes.CDLL | None:
    if os.environ.get("H200_WORK") == "loop":
        return None
    wheels = (f"{path}/nvidia/cublas/lib" for path in sys.path)
    folders = [*sys.path, *wheels, "/usr/local/cuda/lib64"]
    found = [match for folder in folders for match in glob.glob(f"{folder}/libcublas.so.1[0-9]")]
    for name in ("libcublas.so.13", "libcublas.so.12", *found):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def checkpoint(what: str, pid: int) -> dict[str, Any]:
    """Ask the driver to take a process off the GPU, or to bring it back."""
    cuda = ctypes.CDLL("libcuda.so.1")
    names = {
        "suspend": ("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint"),
        "resume": ("cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"),
    }[what]
    if not hasattr(cuda, names[0]):
        return {"unsupported": f"the driver has no {names[0]}"}
    cuda.cuInit(0)
    for name in names:
        if result := getattr(cuda, name)(c_int(pid), None):
            return {"unsupported": f"{name} answered {result}"}
    return {}


def obey(gpu: Gpu, asked: dict[str, Any]) -> dict[str, Any]:
    what = asked.pop("do")
    if what == "about":
        return gpu.about()
    if what == "allocate":
        return {"result": gpu.allocate(**asked)}
    if what == "same":
        return {"same": gpu.same(**asked)}
    if what == "work":
        return {"work": gpu.prepare()[0]}
    if what in ("release", "fill", "burn", "latency", "pairs"):
        return getattr(gpu, what)(**asked) or {}
    raise Failed(f"{what} is not known")


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(checkpoint(sys.argv[1], int(sys.argv[2]))), flush=True)
        return
    gpu = None
    for line in sys.stdin:
        try:
            gpu = gpu or Gpu()
            said = obey(gpu, json.loads(line))
        except (Failed, OSError, AttributeError) as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
