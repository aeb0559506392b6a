"""What jobs with a part of a GPU are held to there, and by what: for people, in the four words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuqueue.model import Gpu
from gpuqueue.share.ladder import Ladder
from gpuqueue.share.mechanism import Mechanism, Standing, Subject

__all__ = ["UNCAPPED", "Card", "Line", "Trial", "card_of"]

UNCAPPED = ("memory bandwidth", "L2 cache", "copy engines")
"""What nothing here divides between the jobs on one GPU."""

_APART = "a GPU of one's own, or a MIG instance"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing of a GPU, and how far jobs are held to their share of it.

    Attributes
    ----------
    by
        The mechanism; empty where there is none.
    scope
        What it counts together.
    figure
        What was seen when it was tried; empty where nothing was.
    changes
        From when another share holds for a running job.
    bypass
        What is not held.
    better
        What would make more of it, or why it is no more; empty where it is capped.
    """

    what: str
    standing: Standing
    by: str = ""
    scope: str = ""
    figure: str = ""
    changes: str = ""
    bypass: str = ""
    better: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the trial of one mechanism has shown on a GPU: what was seen, or why it is not used."""

    mechanism: str
    works: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU and its lines: those that matter, and those of what is never divided; and the trials.

    ``trials`` are those of all mechanisms that there are for such a GPU, in force or not.
    """

    gpu: Gpu
    lines: tuple[Line, ...]
    uncapped: tuple[Line, ...]
    trials: tuple[Trial, ...] = ()

    @property
    def kind(self) -> str:
        """``GPU``, ``MIG instance`` or ``pretend GPU``."""
        if self.gpu.fake:
            return "pretend GPU"
        return "MIG instance" if self.gpu.uuid.startswith("MIG-") else "GPU"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "index": self.gpu.index,
            "uuid": self.gpu.uuid,
            "name": self.gpu.name,
            "memory": self.gpu.memory,
            "kind": self.kind,
            "shares": [asdict(line) for line in (*self.lines, *self.uncapped)],
            "mechanisms": [asdict(trial) for trial in self.trials],
        }


def card_of(gpu: Gpu, ladder: Ladder) -> Card:
    """What holds on a GPU, as it was tried; see `Ladder.probes` for how long that takes."""
    probes = ladder.probes()
    by = ladder.on(gpu.uuid)
    reasons = ladder.reasons(gpu.uuid)
    lines = [_line(gpu, subject, ladder, by, reasons) for subject in Subject]
    if lines[-1].standing is not Standing.CAPPED:
        lines += [
            _beside(text, one) for one in by if (text := probes[one.name].on(gpu.uuid).beside)
        ]
    uncapped = [Line(what, Standing.NOT_ISOLATED, better=_APART) for what in UNCAPPED]
    if any(line.by == "MPS" for line in lines):
        # with MPS all programs are in one context of the driver's
        uncapped.append(
            Line(
                "faults",
                Standing.NOT_ISOLATED,
                scope="a program that fails on the GPU ends all that are under MPS there",
                better=_APART,
            )
        )
    trials = [
        Trial(name, probe.usable, probe.figure if probe.usable and probe.figure else probe.reason)
        for name, probe in ((name, probe.on(gpu.uuid)) for name, probe in probes.items())
    ]
    return Card(gpu, tuple(lines), tuple(uncapped), tuple(trials))


def _line(
    gpu: Gpu,
    subject: Subject,
    ladder: Ladder,
    by: Sequence[Mechanism],
    reasons: Mapping[Subject, str],
) -> Line:
    standing = ladder.promises(gpu.uuid)[subject]
    better = "" if standing is Standing.CAPPED else reasons.get(subject) or _nothing(gpu, subject)
    own = [one for one in by if one.subject is subject and one.standing is standing]
    if not own:
        return Line(subject, standing, better=better)
    mechanism = own[0]
    return Line(
        subject,
        standing,
        by=mechanism.name,
        scope=mechanism.scope,
        figure=ladder.probes()[mechanism.name].on(gpu.uuid).figure,
        changes=mechanism.changes,
        bypass=mechanism.bypass,
        better=better,
    )


def _beside(what: str, mechanism: Mechanism) -> Line:
    return Line(
        what,
        Standing.CAPPED,
        by=mechanism.name,
        scope=mechanism.scope,
        figure="a program was refused what was over it",
        changes=mechanism.changes,
        bypass=mechanism.bypass,
    )


def _nothing(gpu: Gpu, subject: Subject) -> str:
    if gpu.fake:
        return "It is a pretend GPU, on which nothing runs."
    makers = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
    maker = makers.get(gpu.vendor, gpu.vendor)
    return f"There is nothing here yet that caps the {subject} of {maker} GPUs."
