"""What all commands share: how they speak, and what their exit codes mean."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuqueue.model import Job, JobState

__all__ = [
    "CANCELLED",
    "TIMEOUT",
    "UNKNOWN",
    "JobId",
    "LiveJobId",
    "all_jobs",
    "exit_code",
    "live_jobs",
    "paint",
    "program",
    "say_json",
    "tell",
]

TIMEOUT = 124
"""As of timeout(1)."""

UNKNOWN = 125
"""Nobody can tell how the job ended; as docker says that the failure is its own."""

CANCELLED = 130
"""Cancelled without an exit code of its own; as after Ctrl-C."""


def exit_code(job: Job) -> int:
    """The exit code that mirrors an ended job, as a shell would show it."""
    code = job.returncode
    if job.state is JobState.CANCELLED and not code:
        return CANCELLED
    if code is None:
        return UNKNOWN
    if job.state is not JobState.SUCCEEDED and code == 0:
        return UNKNOWN
    return 128 - code if code < 0 else code & 0xFF


def program() -> str:
    """What people typed to get here, for use in hints."""
    name = Path(sys.argv[0]).name
    return "jupyter gpuqueue" if name.startswith("jupyter-") else "gpuqueue"


def tell(sentence: str) -> None:
    """One line for people, beside the output proper."""
    print(f"gpuqueue: {sentence}", file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Print data for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def paint(text: str, colour: str) -> str:
    """Colour for a terminal that wants it, else the plain text."""
    plain = (
        not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    )
    return text if plain else typer.style(text, fg=colour)


def _jobs(incomplete: str, *, ended: bool) -> list[tuple[str, str]]:
    try:
        from gpuqueue.client.local import default_client

        store = default_client().store
        found = store.jobs(limit=100) if ended else store.live()
    except Exception:  # noqa: BLE001 - Tab must never print a traceback into somebody's line
        return []
    return [
        (str(job.id), f"{job.tag} ({job.state})")
        for job in found
        if str(job.id).startswith(incomplete)
    ]


def all_jobs(incomplete: str) -> list[tuple[str, str]]:
    """For Tab: the newest jobs, with what they are."""
    return _jobs(incomplete, ended=True)


def live_jobs(incomplete: str) -> list[tuple[str, str]]:
    """For Tab: the jobs that have not ended."""
    return _jobs(incomplete, ended=False)


JobId = Annotated[
    int, typer.Argument(metavar="ID", help="Number of a job.", autocompletion=all_jobs)
]
LiveJobId = Annotated[
    int,
    typer.Argument(metavar="ID", help="Number of a job that waits.", autocompletion=live_jobs),
]
