"""What a job can tell of the device memory that it used. Standard library only.

A driver is asked once a second and knows nothing of what happened in between; the allocator of
PyTorch knows its peak to the byte. What both hold against a job is the larger.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

__all__ = ["is_out_of_memory", "log_tells_out_of_memory", "peak_of_torch", "tells_out_of_memory"]

_WORDS = re.compile(
    r"CUDA out of memory"  # PyTorch
    r"|CUDA error: out of memory"  # PyTorch, where CUDA itself refuses
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"  # the driver's and the runtime's names
    r"|RESOURCE_EXHAUSTED: Out of memory"  # XLA: JAX and TensorFlow
    r"|OOM when allocating tensor"  # TensorFlow
    r"|cupy\.cuda\.memory\.OutOfMemoryError"
)
_CLASSES = {
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "cupy.cuda.memory.OutOfMemoryError",
}
_LINES = 64
"""How far from its end a log is read: XLA writes what it had allocated after what went wrong."""
_BYTES = 32 * 1024
_DEPTH = 10


def peak_of_torch() -> int | None:
    """The most that PyTorch's allocator has held on one GPU in this process, in bytes.

    None where PyTorch is not imported or has not used a GPU. It leaves out the CUDA context, some
    hundred MB, which only the driver sees.
    """
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        peaks = [torch.cuda.max_memory_reserved(n) for n in range(torch.cuda.device_count())]
        return max(map(int, peaks), default=None)
    except Exception:  # noqa: BLE001 - half a PyTorch, or a device that has failed
        return None


def tells_out_of_memory(text: str) -> bool:
    """Whether a text has the words of a library that ran out of device memory."""
    return _WORDS.search(text) is not None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception, or one that it was raised from, says that device memory ran out."""
    for _ in range(_DEPTH):
        if error is None:
            return False
        names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}
        try:
            if names & _CLASSES or tells_out_of_memory(f"{type(error).__name__}: {error}"):
                return True
        except Exception:  # noqa: BLE001 - the text is made by the user's code
            return False
        error = error.__cause__
    return False


def log_tells_out_of_memory(path: str) -> bool:
    """Whether the last lines of a log say that device memory ran out."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return False
    return tells_out_of_memory("\n".join(lines[-_LINES:]))
