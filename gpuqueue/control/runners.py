"""Runners as the lead sees them: whether they live, and how they are asked for something.

One state directory may be shared by several containers of a machine. A process of another one has
no number here that means anything, so its runner is known by the lock on its attempt's log and
asked through a doorbell in the attempt's directory.
"""

from __future__ import annotations

from pathlib import Path

from gpuqueue.model import ProcessId
from gpuqueue.run.files import ASK, is_held
from gpuqueue.run.process import alive, is_elsewhere, send_signal
from gpuqueue.run.wake import ring

__all__ = ["ask", "lives"]


def lives(folder: Path, process: ProcessId) -> bool:
    """Whether the runner of the attempt in ``folder`` is there, in this container or another."""
    return alive(process) or (is_elsewhere(process) and is_held(folder))


def ask(folder: Path, process: ProcessId, number: int) -> bool:
    """Send a runner a signal, or ring with its number; whether it can have noticed."""
    if is_elsewhere(process):
        return ring(folder / ASK, str(int(number)))
    return send_signal(process, number)
