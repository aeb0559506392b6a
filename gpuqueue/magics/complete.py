"""Tab completes the verbs, options, presets and job numbers of ``%gpu`` and ``%%gpu``."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["add_matcher", "candidates", "remove_matcher"]

VERBS = (
    "status", "jobs", "logs", "show", "wait", "cancel", "retry", "priority", "swap", "resize",
    "submit", "pull", "share", "attach", "release",
)  # fmt: skip
_NUMBERED = frozenset(VERBS) - {"status", "jobs", "submit", "share", "attach", "release"}
_LINE = re.compile(r"^\s*(%{1,2})gpu\s(.*)$", re.DOTALL)


def candidates(line: str) -> list[str]:
    """What may come at the end of a line that begins with ``%gpu`` or ``%%gpu``."""
    match = _LINE.match(line)
    if match is None:
        return []
    *before, token = match[2].split(" ")
    before = [word for word in before if word]
    cell = match[1] == "%%"
    if not cell and not before:
        return [verb for verb in VERBS if verb.startswith(token)]
    if cell or before[0] == "submit":
        return _options(before, token, cell=cell)
    if before[0] == "logs" and token.startswith("-"):
        return [flag for flag in ("-f", "-n") if flag.startswith(token)]
    if before[0] == "resize" and len(before) > 1:
        return [flag for flag in ("--mem", "--share") if flag.startswith(token)]
    return _job_numbers(token) if before[0] in _NUMBERED else []


def _options(before: list[str], token: str, *, cell: bool) -> list[str]:
    from gpuqueue.magics.options import CELL_ONLY, COMMAND_ONLY, FLAGS, VALUED
    from gpuqueue.model import Preset

    last = before[-1] if before else ""
    if last == "--preset":
        return [str(preset) for preset in Preset if preset.startswith(token)]
    if last == "--after":
        return _job_numbers(token)
    if last.startswith("--") and last[2:] in (*VALUED, "in", "out"):
        return []
    names = (*FLAGS, *VALUED, "priority", *(CELL_ONLY if cell else COMMAND_ONLY))
    return [f"--{name}" for name in sorted(names) if f"--{name}".startswith(token)]


def _job_numbers(token: str) -> list[str]:
    from gpuqueue.client import default_client
    from gpuqueue.errors import GpuqueueError

    try:
        jobs = default_client().store.jobs(limit=50)
    except GpuqueueError:
        return []
    return [str(job.id) for job in jobs if str(job.id).startswith(token)]


def _matcher() -> Any:
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()  # type: ignore[untyped-decorator]
    def gpuqueue_matcher(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: context.cursor_position]
        found = candidates(line)
        return {
            "completions": [SimpleCompletion(text=word, type="param") for word in found],
            "suppress": bool(found),
        }

    return gpuqueue_matcher


def add_matcher(completer: Any) -> None:
    """Have a completer ask this module too; once."""
    remove_matcher(completer)
    completer.custom_matchers.append(_matcher())


def remove_matcher(completer: Any) -> None:
    """Have it ask no longer."""
    completer.custom_matchers[:] = [
        matcher
        for matcher in completer.custom_matchers
        if getattr(matcher, "__name__", "") != "gpuqueue_matcher"
    ]
