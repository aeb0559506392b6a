"""What is known of the code that a job ran. Frozen data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from gpuqueue.model import Event

__all__ = ["EVENT", "Code", "code_from"]

EVENT = "code"
"""The kind of the event that holds it."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of one attempt, as it was at the moment ``at``, just after the attempt began.

    Attributes
    ----------
    version
        16 hex digits of the SHA-256 of the code itself: a script's bytes, a cell's or function's
        source, a notebook's code cells. The same code has the same version, wherever and whenever.
        None for a program or a line for the shell.
    what
        What ``version`` is of: a path, or ``cell``, ``function``, ``notebook``.
    commit, branch
        Of the git repository around the script, or the working directory; None outside of one.
    dirty
        Whether a tracked file differed from the commit, or the script is not in it.
    note
        Why something is None; empty where nothing more is to be said.
    """

    at: float
    version: str | None = None
    what: str = ""
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in fields(Code))


def code_from(events: Iterable[Event]) -> Code | None:
    """The code of a job's last attempt that it is known of; None if it was not recorded."""
    found = [event for event in events if event.kind == EVENT]
    if not found:
        return None
    # a newer gpuqueue may have noted more
    return Code(**{name: value for name, value in found[-1].data.items() if name in _FIELDS})
