"""What a job's log says of a program that was asked to end, did not, and was killed."""

from __future__ import annotations

import contextlib
import signal

__all__ = ["ignores", "killed_note"]


def ignores(pid: int, number: int) -> bool | None:
    """Whether a process ignores a signal; None where the system does not tell (off Linux)."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return None


def killed_note(pid: int, grace: float, below: int) -> bytes:
    """A line for the log, in the moment before the processes are killed.

    Parameters
    ----------
    pid
        The job's own program, which SIGTERM has asked to end.
    grace
        Seconds that it had.
    below
        How many processes there are besides it.
    """
    heard = "which it ignores" if ignores(pid, signal.SIGTERM) else "and has not"
    others = f", and {below} it had started" if below else ""
    return (
        f"\n[gpuqueue: the program was asked to end by SIGTERM, {heard}; after {grace:g} s "
        f"(the setting grace) it was killed by SIGKILL{others}]\n"
    ).encode()
