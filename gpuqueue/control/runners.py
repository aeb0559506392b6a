"""Runners as the lead sees them: whether they live, and how they are asked for something.

One state directory may be shared by several containers of a machine. A process of another one has
no number here that means anything, so its runner is known by the lock on its attempt's log and
asked through a doorbell in the attempt's directory.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

from gpuqueue.model import ProcessId
from gpuqueue.run.files import ASIDE, ASK, is_held
from gpuqueue.run.freezing import are_frozen, freeze, thaw
from gpuqueue.run.kernelshare import has_grant
from gpuqueue.run.process import alive, is_elsewhere, send_signal
from gpuqueue.run.wake import ring

__all__ = ["are_still", "ask", "ask_aside", "go_on", "keep_still", "lives"]


Attempt = tuple[Path, ProcessId]
"""An attempt's directory and its runner."""


def lives(folder: Path, process: ProcessId) -> bool:
    """Whether the runner of the attempt in ``folder`` is there, in this container or another."""
    return alive(process) or (is_elsewhere(process) and is_held(folder))


def ask(folder: Path, process: ProcessId, number: int) -> bool:
    """Send a runner a signal, or ring with its number; whether it can have noticed."""
    if is_elsewhere(process):
        return ring(folder / ASK, str(int(number)))
    return send_signal(process, number)


def ask_aside(folder: Path) -> bool:
    """Have an attempt's program asked by SIGTERM to save and exit, with nothing to follow.

    Not by a signal to the runner: one of an earlier version would not know it and die of it.
    Returns whether the runner listens.
    """
    return ring(folder / ASK, ASIDE)


def keep_still(attempts: Iterable[Attempt], patience: float | None = None) -> None:
    """Freeze what is below these runners; one in another container does it itself, when asked."""
    here, there = _apart(attempts)
    for folder, _ in there:
        ring(folder / ASK, str(int(signal.SIGSTOP)))
    processes, whole = [process for _, process in here], _kernels(here)
    if patience is None:
        freeze(processes, whole=whole)
    else:
        freeze(processes, patience, whole=whole)


def go_on(attempts: Iterable[Attempt]) -> None:
    """Let what is below these runners go on."""
    here, there = _apart(attempts)
    for folder, _ in there:
        ring(folder / ASK, str(int(signal.SIGCONT)))
    thaw([process for _, process in here], whole=_kernels(here))


def are_still(attempts: Iterable[Attempt]) -> bool:
    """Whether nothing below these runners is seen to run; in another container nothing is seen."""
    here, _ = _apart(attempts)
    return are_frozen([process for _, process in here], whole=_kernels(here))


def _kernels(attempts: Iterable[Attempt]) -> list[ProcessId]:
    """Those that are notebooks' kernels: they have no runner, and so are a part of the job."""
    return [process for folder, process in attempts if has_grant(folder)]


def _apart(attempts: Iterable[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
    here: list[Attempt] = []
    there: list[Attempt] = []
    for attempt in attempts:
        (there if is_elsewhere(attempt[1]) else here).append(attempt)
    return here, there
