"""A job's log on this terminal: byte for byte, and with Ctrl-C meaning the job."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gpuqueue.errors import GpuqueueError, NotAllowedNow
from gpuqueue.model import IntentKind

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient

__all__ = ["copy_log", "follow_mine", "print_log"]


def _start_of_last(path: Path, lines: int) -> int:
    """Offset at which the last lines of a file begin; 0 where there is no file yet."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            if not lines:
                return len(text)
            at = len(text) - 1  # the newline that ends the last line begins no new one
            for _ in range(lines):
                at = text.rfind(b"\n", 0, at)
                if at < 0:
                    return 0
            return at + 1
    except (FileNotFoundError, ValueError):  # none yet, or empty
        return 0


def print_log(path: Path, lines: int | None) -> None:
    """Print a log as it is now, or its last lines."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        if lines is not None:
            file.seek(_start_of_last(path, lines))
        shutil.copyfileobj(file, sys.stdout.buffer)


def copy_log(client: LocalClient, job_id: int, *, lines: int | None = None) -> None:
    """Print a log as it comes, from the beginning or its last lines, until the job has ended."""
    from gpuqueue.client.follow import follow_file
    from gpuqueue.run.files import LOG

    sys.stdout.flush()
    skip = 0 if lines is None else _start_of_last(client.log_path(client.job(job_id)), lines)
    for data in follow_file(client, job_id, LOG):
        if data[skip:]:
            sys.stdout.buffer.write(data[skip:])
            sys.stdout.buffer.flush()
        skip = max(0, skip - len(data))


def follow_mine(client: LocalClient, job_id: int) -> bool:
    """Print a job's log as it comes, as if the job ran here; whether it was interrupted.

    The first Ctrl-C interrupts the job, the second ends it, the third leaves it alone and stops
    looking.
    """
    presses = 0
    said = {
        1: (IntentKind.INTERRUPT, "interrupting the job; Ctrl-C again ends it"),
        2: (IntentKind.CANCEL, "ending the job; Ctrl-C again stops looking"),
    }

    def on_press(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses not in said:
            raise KeyboardInterrupt
        kind, words = said[presses]
        os.write(2, f"\ngpuqueue: {words}\n".encode())
        # on a thread, so that the output goes on while the controller is asked
        threading.Thread(target=_ask, args=(client, kind, job_id), daemon=True).start()

    before = signal.signal(signal.SIGINT, on_press)
    try:
        copy_log(client, job_id)
    finally:
        signal.signal(signal.SIGINT, before)
    return presses > 0


def _ask(client: LocalClient, kind: IntentKind, job_id: int) -> None:
    try:
        client.intend(kind, job_id)
    except NotAllowedNow:
        pass  # it has just ended
    except GpuqueueError as error:
        os.write(2, f"gpuqueue: {error}\n".encode())
