"""A kernel that holds a share empties the caches of its libraries when somebody needs the GPU.

What a library keeps of GPU memory that no object uses can be given back at any time, and nothing is
lost by it. It is done by a thread that sleeps on a doorbell, and only while no cell runs: giving
memory back makes the GPU wait, and fails where CUDA records a graph.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

from gpuqueue.run.kernelshare import TIDY, is_busy
from gpuqueue.run.wake import Doorbell, ring

__all__ = ["Tidier", "empty_caches"]

_LONG = 3600.0


class Tidier:
    """Listens for as long as the process lives, or until ``close``; one for each ``folder``.

    Raises
    ------
    OSError
        The attempt's directory is gone.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._bell = Doorbell(Path(folder, TIDY))
        self._closed = False
        if self._bell.fileno() >= 0:
            threading.Thread(target=self._listen, name="gpuqueue-tidy", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # its directory is gone
            while not self._closed:
                if self._bell.wait(_LONG) and not self._closed and not is_busy(self.folder):
                    empty_caches()
        self._bell.close(remove=True)

    def close(self) -> None:
        """Listen no longer."""
        self._closed = True
        ring(self._bell.path, "end")


def empty_caches() -> list[str]:
    """Give back what PyTorch and CuPy keep of GPU memory and nothing uses; who has done so."""
    done = []
    for name, empty in _EMPTY.items():
        library = sys.modules.get(name)
        # half imported, of an odd version, a driver in trouble: the memory stays, no more
        with contextlib.suppress(Exception):
            if library is not None and empty(library):
                done.append(name)
    return done


def _torch(torch: Any) -> bool:
    if not torch.cuda.is_initialized():
        return False
    torch.cuda.empty_cache()
    return True


def _cupy(cupy: Any) -> bool:
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            cupy.get_default_memory_pool().free_all_blocks()
    return True


_EMPTY = {"torch": _torch, "cupy": _cupy}
