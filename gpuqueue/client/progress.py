"""How far a job says it is, by ``gpuqueue.checkpoint.log``, and whether its saves are in time."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.run.files import PROGRESS, SAVED
from gpuqueue.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.client.local import LocalClient
    from gpuqueue.model import Job, Request
    from gpuqueue.settings import Settings

__all__ = ["latest_note", "note_in_words", "notes", "slow_save", "slow_save_before", "thinned"]

_EARLIER = 200
"""Among how many jobs an earlier run is looked for."""

_TAIL = 8192  # a line has at most 4,000 bytes
_OLD = "progress.old.jsonl"


def _note(line: bytes) -> dict[str, Any] | None:
    """One line as it is told; None for one that was cut short, or that somebody else wrote."""
    try:
        found = json.loads(line)
        note = {"at": float(found["time"]), "step": found["step"], "metrics": found["metrics"]}
    except (ValueError, KeyError, TypeError):
        return None
    return note if isinstance(note["metrics"], dict) else None


def latest_note(client: LocalClient, job: Job) -> dict[str, Any] | None:
    """The last thing that a job has noted in its present attempt; None if nothing."""
    path = client.home.attempt(job.id, max(1, job.attempt)) / PROGRESS
    for file in (path, path.with_name(_OLD)):
        try:
            with open(file, "rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                opened.seek(max(0, size - _TAIL))
                lines = opened.read().splitlines(keepends=True)
        except OSError:
            continue
        for line in reversed(lines):
            if line.endswith(b"\n") and (note := _note(line)):
                return note
    return None


def note_in_words(note: dict[str, Any] | None) -> str:
    """A note on one line: the step and the first two numbers; empty if there is none."""
    if note is None:
        return ""
    numbers = [
        f"{name} {value:.4g}"
        for name, value in note["metrics"].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    step = [] if note["step"] is None else [f"step {note['step']}"]
    return ", ".join([*step, *numbers[:2]])


def slow_save(client: LocalClient, job: Job, settings: Settings) -> str:
    """Where a job's last save took longer than it is left when it is asked to stop: a warning.

    Of an attempt that has not saved yet, the one before it tells.
    """
    took = _last_save(client, job)
    short = _too_short(took, job.request, settings)
    return f"its last save took {_seconds(took)}, and {short}" if took and short else ""


def slow_save_before(client: LocalClient, job: Job, settings: Settings) -> str:
    """The same of a job that is yet to start, from the last run of its command that saved."""
    for other in client.store.jobs(owner=job.owner, before=job.id, limit=_EARLIER):
        if (other.kind, other.command, other.cwd) != (job.kind, job.command, job.cwd):
            continue
        if (took := _last_save(client, other)) is not None:
            short = _too_short(took, job.request, settings)
            said = f"the last save of this command took {_seconds(took)} (job {other.id}), and"
            return f"{said} {short}; give it more time, or save less" if short else ""
    return ""


def _last_save(client: LocalClient, job: Job) -> float | None:
    """Seconds; None if it has not saved through ``gpuqueue.checkpoint``."""
    for attempt in range(max(1, job.attempt), 0, -1):
        with contextlib.suppress(OSError, ValueError):
            return float((client.home.attempt(job.id, attempt) / SAVED).read_text())
    return None


def _too_short(took: float | None, request: Request, settings: Settings) -> str:
    """Which of the times that a job is left to save are shorter than its save."""
    limits = [(settings.grace, "a cancel", "grace")]
    if request.preemptible:
        limits.append((settings.save_time, "one that needs its room", "save_time"))
    limits.append((settings.evict_timeout, "free mode", "evict_timeout"))
    return " and ".join(
        f"{who} leaves it {_seconds(limit)} ({name})"
        for limit, who, name in limits
        if took is not None and took > limit
    )


def _seconds(seconds: float) -> str:
    return f"{round(seconds, 1):g}s" if seconds < 60 else format_duration(seconds)


def notes(path: Path) -> list[dict[str, Any]]:
    """All that an attempt has noted and is still there, oldest first."""
    found = []
    for file in (path.with_name(_OLD), path):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        found += [note for line in content.splitlines() if (note := _note(line))]
    return found


def thinned(found: list[dict[str, Any]], points: int) -> list[dict[str, Any]]:
    """At most ``points`` of them, evenly, with the first and the last."""
    if len(found) <= points:
        return found
    last = len(found) - 1
    return [found[round(i * last / (points - 1))] for i in range(points)]
