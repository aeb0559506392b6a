"""Before a job's processes are killed, MPS is told to let go of them. Standard library only.

A process that is killed with work on the GPU can take the MPS server along, and with it every other
job there. How it is done right is known by `gpuqueue.share.mps`, far above a runner; so a program
of its own does it. It kills them itself, and is given some seconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpuqueue.model import ProcessId
from gpuqueue.run.files import MPS
from gpuqueue.run.process import alive, identify

__all__ = ["FAULT", "LIMIT", "Farewell", "fault_of"]

FAULT = "MPS on its GPU was in fault"
"""How the sentence of `fault_of` begins."""

LIMIT = 30.0
"""Seconds after which nobody waits for it any longer."""

_ROOT = str(Path(__file__).resolve().parents[2])
_ASKING = 8.0
"""Seconds that the end of a failed job may be late by, to know whether it was its own fault."""


def _program(name: str) -> list[str]:
    """A program of `gpuqueue.share.mps`, for the standard library alone."""
    code = (
        f"import sys; sys.path.insert(0, {_ROOT!r}); "
        f"from gpuqueue.share.mps.{name} import main; sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-I", "-S", "-c", code]


def fault_of(folder: str) -> str:
    """Why a job under MPS that has failed may not be to blame; empty where there is no sign of it.

    Its processes have ended; the server stays in fault until those of all others have.
    """
    if not os.path.exists(os.path.join(folder, MPS)):
        return ""
    import subprocess  # what a runner does not need no fork copies

    words = [*_program("blame"), folder]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASKING, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if not done.stdout.strip():
        return ""
    return f"{FAULT}: a program there had failed, this one or another, which ends all under MPS"


class Farewell:
    """For one attempt, whose directory says whether it is under MPS."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._process: ProcessId | None = None
        self._until = 0.0

    def said(self, pids: Sequence[int]) -> bool:
        """Whether the job's processes may be killed now; the first call begins what comes before.

        To be called until it is true.
        """
        if self._until == 0.0:
            self._until = time.monotonic()
            if pids and os.path.exists(os.path.join(self._folder, MPS)):
                # where none can be started, as with no process left to be had, they are just killed
                with contextlib.suppress(OSError):
                    self._process = identify(self._start(pids))
                self._until += LIMIT
        if self._process is not None and time.monotonic() < self._until and alive(self._process):
            return False
        if self._process is not None:
            with contextlib.suppress(ChildProcessError):  # a runner collects all of its children
                os.waitpid(self._process.pid, os.WNOHANG)
        return True

    def collect(self) -> None:
        """Have its process collected as it ends, where the job was gone first; does not wait."""
        if self._process is not None:
            import threading  # what a runner does not need no fork copies

            threading.Thread(target=_collect, args=(self._process.pid,), daemon=True).start()

    def _start(self, pids: Sequence[int]) -> int:
        words = [*_program("ending"), self._folder, *map(str, pids)]
        # a job's output is what the job prints and nothing else
        nowhere = [(os.POSIX_SPAWN_OPEN, handle, os.devnull, os.O_RDWR, 0) for handle in range(3)]
        return os.posix_spawn(
            words[0], words, os.environ, file_actions=nowhere, setpgroup=0, setsigmask=[]
        )


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
