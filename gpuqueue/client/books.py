"""Who used how much: the usage records of a time, added up by owner, notebook, tag, GPU and so on.

A record is about one job on one GPU from one moment to another, with one size; it is never changed
once it has ended. One that is open counts until now, and each counts as far as it lies in the time
that is asked about.
"""

from __future__ import annotations

import difflib
import html
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuqueue.control.machine import CARDS
from gpuqueue.errors import InvalidRequest
from gpuqueue.model import WHOLE
from gpuqueue.store import Stay
from gpuqueue.units import parse_duration

if TYPE_CHECKING:
    from gpuqueue.client.local import LocalClient

__all__ = [
    "KEYS",
    "Usage",
    "add_up",
    "begin_of",
    "compute_in",
    "key_of",
    "overlap",
    "total_of",
    "usage",
]

KEYS = ("owner", "notebook", "tag", "agent", "gpu", "vendor", "job")
"""What usage may be told by."""
_COLUMNS = ("gpu_hours", "gib_hours", "held_hours", "jobs")
_ALL = "all"
_HOUR = 3600.0
_GIB = 1 << 30


class Usage(list[dict[str, Any]]):
    """Rows of usage, plain dictionaries, the most GPU hours first.

    Each has its key, and ``gpu_hours`` (compute: half of a GPU for an hour is 0.5; none while it
    was frozen), ``gib_hours`` (device memory that was held for it), ``held_hours`` (GPUs that it
    was on, for how long, whatever its share) and ``jobs`` (how many different ones).
    ``pandas.DataFrame(rows)`` makes a table of them.

    Attributes
    ----------
    by
        The key.
    since, until
        The time that they are about, in seconds since the epoch.
    total
        All of them together. A job on two GPUs is one job in it, and in each of their rows.
    """

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        by: str,
        since: float,
        until: float,
        total: Mapping[str, Any],
    ) -> None:
        super().__init__(rows)
        self.by = by
        self.since = since
        self.until = until
        self.total = dict(total)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "by": self.by, "since": self.since, "until": self.until, "rows": list(self),
            "total": self.total,
        }  # fmt: skip

    def table(self) -> list[list[str]]:
        """The rows as text, with a head and, of several, a last line of all; columns padded."""
        named = any("name" in row for row in self)
        head = [self.by.upper(), *(["NAME"] if named else ()), "GPU-H", "GIB-H", "HELD-H", "JOBS"]
        # of one row there is nothing to add up
        total = [{**self.total, self.by: "total"}] if len(self) > 1 else []
        rows = [
            [
                str(row[self.by]) or "-", *([row.get("name", "")] if named else ()),
                *(f"{row[name]:.2f}" for name in _COLUMNS[:3]), str(row["jobs"]),
            ]
            for row in (*self, *total)
        ]  # fmt: skip
        widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
        left = 2 if named else 1
        return [
            [
                text.ljust(width) if number < left else text.rjust(width)
                for number, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            for line in (head, *rows)
        ]

    def __repr__(self) -> str:
        return "\n".join("  ".join(line).rstrip() for line in self.table())

    def _repr_html_(self) -> str:
        head, *rows = self.table()
        cells = "".join(f"<th>{html.escape(text)}</th>" for text in head)
        lines = ["".join(f"<td>{html.escape(text)}</td>" for text in line) for line in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(slots=True)
class _Sum:
    name: str = ""
    gpu: float = 0.0
    memory: float = 0.0
    held: float = 0.0

    def row(self, by: str, key: Any, jobs: int) -> dict[str, Any]:
        named = {"name": self.name} if self.name else {}
        return {
            by: key, **named, "gpu_hours": self.gpu / _HOUR, "gib_hours": self.memory / _HOUR,
            "held_hours": self.held / _HOUR, "jobs": jobs,
        }  # fmt: skip


def key_of(by: str) -> str:
    """A key that usage may be told by.

    Raises
    ------
    InvalidRequest
        It is none; the sentence lists them.
    """
    if by in KEYS:
        return by
    close = difflib.get_close_matches(str(by), KEYS, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InvalidRequest("by", f"{by!r} is not one of them; {hint}there are {', '.join(KEYS)}")


def begin_of(since: str | float, now: float) -> float:
    """When the time begins that is asked about: ``24h`` ago, or ``all`` there is.

    Raises
    ------
    InvalidRequest
        It is neither a duration nor ``all``.
    """
    return 0.0 if since == _ALL else max(0.0, now - parse_duration(since, "since"))


def add_up(
    stays: Sequence[Stay],
    by: str,
    begin: float,
    end: float,
    cards: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of a time, most GPU hours first.

    Parameters
    ----------
    stays
        Usage records; those outside the time count nothing.
    begin, end
        Seconds since the epoch; open records count until ``end``.
    cards
        What is known of GPUs, by UUID: ``index``, ``name``, ``vendor``, ``memory`` in bytes.
    """
    sums: dict[Any, _Sum] = {}
    jobs: dict[Any, set[int]] = {}
    for stay in stays:
        seconds = overlap(stay, begin, end)
        if seconds <= 0:
            continue
        card = cards.get(stay.gpu, {})
        key, name = _named(stay, by, card)
        found = sums.setdefault(key, _Sum(name))
        jobs.setdefault(key, set()).add(stay.job)
        found.gpu += compute_in(stay, seconds, card)
        found.memory += seconds * stay.memory / _GIB
        found.held += seconds
    rows = [found.row(by, key, len(jobs[key])) for key, found in sums.items()]
    return sorted(rows, key=lambda row: (-row["gpu_hours"], -row["held_hours"], str(row[by])))


def total_of(
    stays: Sequence[Stay], begin: float, end: float, cards: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """All of them together, as one row without a key."""
    rows = add_up(stays, "job", begin, end, cards)
    return {name: sum(row[name] for row in rows) for name in _COLUMNS[:3]} | {"jobs": len(rows)}


def overlap(stay: Stay, begin: float, end: float) -> float:
    """Seconds of a record that lie in a time; one that is open lasts until its ``end``."""
    until = end if stay.until is None else stay.until
    return max(0.0, min(end, until) - max(begin, stay.since))


def compute_in(stay: Stay, seconds: float, card: Mapping[str, Any]) -> float:
    """Seconds of a whole GPU in so many of a record: none of one that was frozen.

    One without a share has the part of the GPU that its memory is.
    """
    if stay.frozen:
        return 0.0
    total = card.get("memory")
    if stay.compute or not total:
        return seconds * max(0, stay.compute - stay.lent) / WHOLE
    return seconds * float(min(1.0, stay.memory / total))


def _named(stay: Stay, by: str, card: Mapping[str, Any]) -> tuple[Any, str]:
    if by == "gpu":
        where = f"GPU {card['index']} ({card['name']})" if card else ""
        return stay.gpu, where
    if by == "vendor":
        return card.get("vendor", "unknown"), ""
    if by == "job":
        return stay.job, stay.tag
    return getattr(stay, by), ""


def usage(client: LocalClient, since: str | float = "24h", by: str = "owner") -> Usage:
    """Who used how much of the GPUs.

    Raises
    ------
    InvalidRequest
        ``since`` is no duration, or ``by`` is not one of `KEYS`.
    """
    now = time.time()
    key, begin = key_of(by), begin_of(since, now)
    cards = client.store.fact(CARDS) or {}
    stays = client.store.stays(begin)
    rows = add_up(stays, key, begin, now, cards)
    total = total_of(stays, begin, now, cards)
    return Usage(rows, by=key, since=begin, until=now, total=total)
