"""What holds a job to its share is not for the jobs that it submits itself.

A job's environment is all that its share has added to what its user has set, and a job takes the
environment of its submitter along. So one variable says what was added, and what was there before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

__all__ = ["ADDED", "added", "unheld"]

ADDED = "GPUQUEUE_ADDED"
"""JSON: by name, the value that was given to a job and the one that its user had set, or null."""
_PRELOAD = "LD_PRELOAD"


def added(made: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """``made``, with the variable that tells of it; ``base`` is the environment before it."""
    if not made:
        return {}
    told = {name: [value, base.get(name)] for name, value in made.items()}
    return {**made, ADDED: json.dumps(told, separators=(",", ":"))}


def unheld(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it is without what a job's share has added to it.

    What the job's own program has changed since stays as that has set it; of a preload list only
    the entries of ours go.
    """
    values = dict(env)
    try:
        told = json.loads(values.pop(ADDED, "{}"))
        pairs = [(name, ours, theirs) for name, (ours, theirs) in told.items()]
    except (ValueError, TypeError, AttributeError):
        return values
    for name, ours, theirs in pairs:
        if name not in values:
            continue
        if values[name] == ours:
            kept = theirs
        elif name == _PRELOAD:
            kept = _without(values[name], str(ours), str(theirs or ""))
        else:
            continue
        if kept is None or (name == _PRELOAD and not kept):
            del values[name]
        else:
            values[name] = kept
    return values


def _without(now: str, ours: str, theirs: str) -> str:
    """A preload list without the entries of ours that its user had not set."""
    mine = set(_entries(ours)) - set(_entries(theirs))
    return os.pathsep.join(entry for entry in _entries(now) if entry not in mine)


def _entries(text: str) -> list[str]:
    # blanks and colons both separate there
    return text.replace(":", " ").split()
