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

__all__ = ["Bound", "Effect", "Mechanism", "Probe", "Standing", "Subject", "bound_of"]


class Subject(StrEnum):
    """What a job is given a share of."""

    COMPUTE = "compute"
    MEMORY = "memory"


class Standing(StrEnum):
    """How far a job is held to its share of something."""

    CAPPED = "capped"
    """What is over is refused; that was seen to happen on this machine."""
    ADVISED = "advised"
    """Frameworks or the driver are told; that they keep to it was not seen."""
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
    """Whether a mechanism works on this machine; ``reason`` is one sentence, for either answer.

    ``each`` has the answers for single GPUs, by UUID, of a mechanism that is tried on each;
    ``figure`` is what the trial saw, ``beside`` what else it was seen to hold, in a few words.
    """

    usable: bool
    reason: str
    figure: str = ""
    beside: str = ""
    each: Mapping[str, Probe] = field(default_factory=dict)

    def on(self, gpu: str) -> Probe:
        """The answer for one GPU."""
        return self.each.get(gpu, self)


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
    compute
        Thousandths of each GPU's compute by its UUID, in the same order; None: no cap.
    there
        Its process is there already, and CUDA has not begun in it: a kernel that attaches.
    """

    folder: Path
    caps: Mapping[str, int | None]
    totals: Mapping[str, int | None] = field(default_factory=dict)
    base: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    compute: Mapping[str, int | None] = field(default_factory=dict)
    there: bool = False

    def holds(self, subject: Subject) -> bool:
        """Whether there is a cap on anything of it."""
        of = self.compute if subject is Subject.COMPUTE else self.caps
        return any(cap is not None for cap in of.values())


def bound_of(
    placement: Placement,
    folder: Path,
    *,
    totals: Mapping[str, int | None],
    base: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
    there: bool = False,
) -> Bound:
    """What a placement holds a job to. Whole GPUs, and what was not granted, have no cap."""
    shared = [(grant, not grant.whole) for grant in placement.grants]
    caps = {grant.gpu: grant.memory or None if part else None for grant, part in shared}
    compute = {grant.gpu: grant.compute or None if part else None for grant, part in shared}
    return Bound(folder, caps, dict(totals), dict(base), dict(versions or {}), compute, there)


class Mechanism(Protocol):
    """One way to hold a job to a share."""

    @property
    def name(self) -> str:
        """What it is called where people see it."""
        ...

    @property
    def subject(self) -> Subject:
        """What it holds a job's share of."""
        ...

    @property
    def standing(self) -> Standing:
        """What a job gets by it, where it works."""
        ...

    @property
    def reports(self) -> bool:
        """Whether the job is told its cap as the size of the GPU, so that a fraction is of that."""
        ...

    @property
    def at_start(self) -> bool:
        """Whether it is read only as a process starts, so that one that is there is not held."""
        ...

    @property
    def scope(self) -> str:
        """What is counted together, for people: ``each process of a job``."""
        ...

    @property
    def changes(self) -> Effect:
        """From when a changed share holds, at best."""
        ...

    @property
    def bypass(self) -> str:
        """What is not held by it, for people."""
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
