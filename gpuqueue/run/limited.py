"""Running a program for so long and no longer, even where it cannot be killed.

A program that waits inside a driver (state D of ``ps``) takes no signal, and ``subprocess.run``
waits for it without end after its time is over. Standard library only.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

__all__ = ["abandon", "run_limited"]

_LAST = 1.0
"""Seconds that a program which has been killed is waited for."""


def run_limited(
    words: Sequence[str], patience: float, *, said: str | bytes | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program; what became of it.

    Parameters
    ----------
    patience
        Seconds until it is killed.
    said
        What it reads from its standard input; ``stdin`` must be a pipe then.
    options
        Those of ``subprocess.Popen``.

    Raises
    ------
    subprocess.TimeoutExpired
        It took longer. It may live on where it cannot be killed; it is collected when it ends.
    OSError
        It cannot be started.
    """
    process = subprocess.Popen(words, **options)
    try:
        out, err = process.communicate(said, timeout=patience)
    except BaseException:
        abandon(process)
        raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def abandon(process: subprocess.Popen[Any]) -> None:
    """Kill a program, and have it collected whenever it ends."""
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # what it has not read is lost
                stream.close()
    try:
        process.wait(_LAST)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="gpuqueue-abandoned", daemon=True).start()
