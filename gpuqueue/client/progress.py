"""How far a job says it is: the lines that ``gpuqueue.checkpoint.log`` has written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.run.files import PROGRESS

if TYPE_CHECKING:
    from gpuqueue.client.local import LocalClient
    from gpuqueue.model import Job

__all__ = ["latest_note", "notes", "thinned"]

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
