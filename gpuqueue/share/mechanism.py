"""What every mechanism that holds a job to its share has in common: the words, and one protocol.

A mechanism claims nothing that was not tried on this machine. `Mechanism.probe` tries it, in a
process of its own; what a job got is one of the words of `Standing`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from gpuqueue.model import Placement, ProcessId

__all__ = ["Bound", "Effect", "Mechanism", "Probe", "Standing", "bound_of"]


class Standing(StrEnum):
    """How far a job is held to its share of something."""

    CAPPED = "capped"
    """What is over is refused; that was seen to happen on this machine."""
    ADVISED = "advised"
    """Frameworks are told; a program that does not ask them is not held."""
    ADMITTED_ONLY = "admitted only"
    """Counted when it is placed, and not held to it."""
    NOT_ISOLATED = "not isolated"
    """Neither."""


class Effect(StrEnum):
    """From when a changed share holds."""

    NOW = "now"
    NEXT_START = "at its next start"


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a mechanism works on this machine; ``reason`` is one sentence, for either answer."""

    usable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Bound:
    """What one start of a job is held to.

    Attributes
    ----------
    folder
        Directory of this start, on a local disk.
    caps
        Bytes of device memory by the GPU's UUID, in the order in which the job sees them; None
        where there is no cap.
    totals
        Bytes that each GPU has, as the job's processes are told it; None or absent: unknown.
    base
        The job's environment so far: what its user has set.
    versions
        Versions of frameworks in the job's own Python where known: ``{"torch": "2.13.0"}``.
    """

    folder: Path
    caps: Mapping[str, int | None]
    totals: Mapping[str, int | None] = field(default_factory=dict)
    base: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def bound_of(
    placement: Placement,
    folder: Path,
    *,
    totals: Mapping[str, int | None],
    base: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
) -> Bound:
    """What a placement holds a job to. Whole GPUs, and grants without memory, have no cap."""
    caps = {
        grant.gpu: None if grant.whole or not grant.memory else grant.memory
        for grant in placement.grants
    }
    return Bound(folder, caps, dict(totals), dict(base), dict(versions or {}))


class Mechanism(Protocol):
    """One way to hold a job to a share."""

    @property
    def name(self) -> str:
        """What it is called where people see it."""
        ...

    @property
    def standing(self) -> Standing:
        """What a job gets by it, where it works."""
        ...

    @property
    def reports(self) -> bool:
        """Whether the job is told its cap as the size of the GPU, so that a fraction is of that."""
        ...

    def probe(self) -> Probe:
        """Try it on this machine, within seconds. Never raises."""
        ...

    def environment(self, bound: Bound) -> Mapping[str, str]:
        """Variables to start the job with, over those of ``bound.base``.

        Raises
        ------
        GpuqueueError
            It cannot be done for this job.
        """
        ...

    def apply(self, bound: Bound, process: ProcessId) -> None:
        """What is to be done to the job's first process once it runs."""
        ...

    def resize(self, bound: Bound) -> Effect:
        """Hold a running job to other caps; from when they do."""
        ...

    def verify(self, bound: Bound, users: Collection[int]) -> tuple[str, ...]:
        """What contradicts it for a running job, as sentences.

        ``users`` are the job's processes (pids) that the driver sees on its GPUs.
        """
        ...

    def release(self, bound: Bound) -> None:
        """Let go of what it made for a job that has ended. May be called twice."""
        ...
