"""What to say of a job that has ended: in a line, and what a failed one wrote last."""

from __future__ import annotations

import os
import re
from typing import Any

from gpuqueue.model import Job, JobState
from gpuqueue.paths import Home
from gpuqueue.run.files import LOG
from gpuqueue.units import format_duration

__all__ = ["end_words", "failure_of", "failure_told"]

_TAIL = 16_384
_LONGEST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# a traceback as Python writes it; IPython's has the line's number behind the name and a colon
_FRAME = re.compile(
    r'^ *File "(?P<path>[^"]+)", line (?P<number>\d+)(?:, in .*)?\n(?P<code>.*)', re.M
)
_FOREIGN = re.compile(r"(^<)|/(site|dist)-packages/|/lib/python3|/gpuqueue/run/|ipykernel_")


def failure_told(text: str) -> dict[str, str | None] | None:
    """The last words of a log; ``line`` is None where no traceback of Python is there.

    Of the traceback's frames the last one counts that is neither of Python's own nor of an
    installed package.
    """
    text = _COLOUR.sub("", text)
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    if not lines:
        return None
    line = None
    start = text.rfind("Traceback (most recent call last)")
    if start >= 0:
        frames = [
            frame for frame in _FRAME.finditer(text, start) if not _FOREIGN.search(frame["path"])
        ]
        if frames:
            last = frames[-1]
            name = os.path.basename(last["path"])
            line = f"{name}, line {last['number']}: {last['code'].strip()}"[:_LONGEST]
    return {"error": lines[-1][:_LONGEST], "line": line}


def failure_of(home: Home, job: Job) -> dict[str, Any] | None:
    """Read it from a job's log; None of a job that has not failed, or has written nothing."""
    if job.state is not JobState.FAILED or not job.attempt:
        return None
    try:
        with open(home.attempt(job.id, job.attempt) / LOG, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            return failure_told(file.read().decode(errors="replace"))
    except OSError:
        return None


def end_words(home: Home, job: Job) -> str:
    """One line, such as ``job 14 (train) failed: exit code 2 after 3m: KeyError: 'x'``."""
    ran = (job.ended or 0.0) - (job.started or job.ended or 0.0) - job.frozen
    took = format_duration(max(0.0, ran)) if job.started else ""
    head = f"job {job.id} ({job.tag})"
    if job.state is JobState.SUCCEEDED:
        return f"{head} succeeded in {took}"
    if job.state is JobState.CANCELLED:
        return f"{head} was cancelled" + (f" after {took}" if took else "")
    reason = job.reason.partition("\n")[0]
    words = f"{head} failed: {reason}" + (f" after {took}" if took else "")
    error = (failure_of(home, job) or {}).get("error")
    return f"{words}: {error}" if error and error not in reason else words
