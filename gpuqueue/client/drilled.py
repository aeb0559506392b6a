"""What a drill has found: whether the second run went on from where the first one saved. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

__all__ = ["Drill", "Point", "judge", "points_of", "remarks", "saved_point", "told_apart"]

_FURTHER = 4
"""A loss is one of the start where it is so many times nearer to that than to its own step's."""


@dataclass(frozen=True, slots=True)
class Point:
    """One report of a run. ``at`` is in seconds since 1970; what was not reported is None."""

    at: float
    step: int
    epoch: float | None = None
    loss: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"step": self.step, "epoch": self.epoch, "loss": self.loss, "at": self.at}


@dataclass(frozen=True, slots=True)
class Drill:
    """How a job took being stopped in the middle and run again.

    Attributes
    ----------
    jobs
        Numbers of the two jobs that were its runs; where it was asked to step aside, one twice.
    first, saved, stopped
        Of the first run: its first report, the last one before its newest checkpoint was
        written (None: it had none), and its last one.
    resumed
        The first report of the second run; None if it made none.
    problems
        Why it failed; empty where it passed.
    remarks
        What is worth knowing beside that.
    """

    jobs: tuple[int, int]
    first: Point
    saved: Point | None
    stopped: Point
    resumed: Point | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the second run went on from the checkpoint."""
        return not self.problems

    @property
    def message(self) -> str:
        """The verdict as sentences, one on each line."""
        if self.problems:
            return "\n".join([f"failed: {self.problems[0]}", *self.problems[1:], *self.remarks])
        at = self.resumed.step if self.resumed else 0
        said = f"passed: stopped at step {self.stopped.step}, it went on at step {at}"
        return "\n".join([said, *self.remarks])

    def rows(self) -> list[tuple[str, Point]]:
        """What to show of the two runs, with the word for each."""
        named = (
            ("began", self.first), ("saved", self.saved), ("stopped", self.stopped),
            ("resumed", self.resumed),
        )  # fmt: skip
        return [(word, point) for word, point in named if point is not None]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "passed": self.passed,
            "jobs": list(self.jobs),
            **{
                word: point and point.to_dict()
                for word, point in (
                    ("began", self.first), ("saved", self.saved), ("stopped", self.stopped),
                    ("resumed", self.resumed),
                )
            },
            "problems": list(self.problems),
            "remarks": list(self.remarks),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Drill of jobs {self.jobs[0]} and {self.jobs[1]}: {self.message}>"


def points_of(notes: Iterable[Mapping[str, Any]]) -> list[Point]:
    """What a run noted with ``checkpoint.log``, where that says how far it is.

    Without a step, an ``epoch`` among the metrics counts as one.
    """
    found = []
    for note in notes:
        metrics = note["metrics"]
        epoch = _number(metrics.get("epoch"))
        step = note["step"] if note["step"] is not None else epoch
        if isinstance(step, int | float):
            found.append(Point(note["at"], int(step), epoch, _loss(metrics)))
    return found


def _number(value: Any) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return value if plain and math.isfinite(value) else None


def _loss(metrics: Mapping[str, Any]) -> float | None:
    names = ["loss", *(name for name in metrics if name.endswith("loss"))]
    return next(
        (found for name in names if (found := _number(metrics.get(name))) is not None), None
    )


def _stride(points: Sequence[Point]) -> int:
    """The most steps between two reports; 1 at least. What is between them cannot be told."""
    gaps = (later.step - one.step for one, later in pairwise(points))
    return max([1, *gaps])


def saved_point(points: Sequence[Point], written: float) -> Point | None:
    """The last report before a checkpoint was written."""
    return max((point for point in points if point.at <= written), key=lambda p: p.at, default=None)


def told_apart(points: Sequence[Point], saved: Point) -> bool:
    """Whether going on from a checkpoint would look different from starting anew."""
    return saved.step - _stride(points) > points[0].step


def judge(first: Sequence[Point], saved: Point | None, second: Sequence[Point]) -> list[str]:
    """Why the second run did not go on from where the first one saved; empty where it did.

    Its first step may be off by what lies between two reports of the first run: a script may save
    before it reports or after.
    """
    began, killed, resumed = first[0], first[-1], second[0]
    slack = _stride(first)
    least = began.step + 1 if saved is None else max(began.step + 1, saved.step - slack)
    went = f"step went {killed.step} -> {resumed.step}"
    if resumed.step <= began.step + slack and resumed.step < least:
        return [f"{went}: it starts anew{_of(saved)}"]
    if resumed.step < least:
        return [f"{went}: that is before its checkpoint of step {saved.step if saved else '?'}"]
    if resumed.step > killed.step + slack:
        return [f"{went}: it leaves out steps that were never done"]
    return [said for said in (_epoch(first, resumed), _restarted_loss(first, second)) if said]


def _of(saved: Point | None) -> str:
    if saved is None:
        return ", and has saved no checkpoint in checkpoint_dir() from which it could go on"
    return f", though it had saved a checkpoint at step {saved.step}"


def _epoch(first: Sequence[Point], resumed: Point) -> str:
    """Where the epoch is behind that of the same step in the first run."""
    before = [p.epoch for p in first if p.step <= resumed.step and p.epoch is not None]
    if not before or resumed.epoch is None or resumed.epoch >= before[-1] - 0.01:  # as rounded
        return ""
    return f"epoch went {before[-1]:g} -> {resumed.epoch:g} at step {resumed.step}"


def _restarted_loss(first: Sequence[Point], second: Sequence[Point]) -> str:
    """Where the loss is that of the start again: the step was loaded and the weights were not.

    Only where the loss had fallen clearly, so that chance is no reason.
    """
    began = first[0].loss
    same = _pairs(first, second)
    if began is None or not same:
        return ""
    step, before, after = same[0]
    known = [point.loss for point in first if point.loss is not None]
    noise = median([abs(b - a) for a, b in pairwise(known)] or [0.0])
    clear = abs(began - before) > _FURTHER * noise
    if clear and abs(after - before) > _FURTHER * abs(after - began):
        return (
            f"loss went {before:.4g} -> {after:.4g} at step {step}, as at the start "
            f"({began:.4g}): were the weights loaded?"
        )
    return ""


def _pairs(first: Sequence[Point], second: Sequence[Point]) -> list[tuple[int, float, float]]:
    """Steps that both runs have done, with the loss of each."""
    before = {point.step: point.loss for point in first if point.loss is not None}
    return [
        (point.step, before[point.step], point.loss)
        for point in second
        if point.loss is not None and point.step in before
    ]


def remarks(first: Sequence[Point], second: Sequence[Point]) -> list[str]:
    """What is to be said of a run that went on: whether it computes the same."""
    same = _pairs(first, second)
    if not same:
        return []
    for step, before, after in same:
        if before != after:
            return [
                f"loss at step {step} was {before:.6g} and is {after:.6g} now: not all of the "
                "state came back (optimizer, random states, the place in the data?)"
            ]
    return [f"loss is equal at {len(same)} {'step' if len(same) == 1 else 'steps'} of both runs"]
