"""Which mechanisms hold a job to its share here: the best that is proven, and all advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuqueue.errors import GpuqueueError
from gpuqueue.share.mechanism import Bound, Mechanism, Probe, Standing

__all__ = ["Ladder", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job starts with and how far it is held.

    ``by`` names the mechanisms in force; ``missing`` says of each other one why it is not.
    """

    environment: Mapping[str, str]
    standing: Standing
    by: tuple[str, ...]
    missing: Mapping[str, str]


class Ladder:
    """Mechanisms for one thing, device memory say, the strongest first.

    Of those that cap, the first that works is used; those that advise are used beside it.
    """

    def __init__(self, mechanisms: Sequence[Mechanism]) -> None:
        self._mechanisms = tuple(mechanisms)
        self._probes: dict[str, Probe] = {}

    def probes(self) -> Mapping[str, Probe]:
        """What each mechanism's trial on this machine has shown; tried once."""
        for mechanism in self._mechanisms:
            if mechanism.name not in self._probes:
                self._probes[mechanism.name] = mechanism.probe()
        return dict(self._probes)

    def picked(self) -> tuple[Mechanism, ...]:
        """The mechanisms that are used here, in the order in which they are applied."""
        probes = self.probes()
        found: list[Mechanism] = []
        for mechanism in self._mechanisms:
            capped = any(other.standing is Standing.CAPPED for other in found)
            if probes[mechanism.name].usable and not (
                capped and mechanism.standing is Standing.CAPPED
            ):
                found.append(mechanism)
        return tuple(found)

    def start(self, bound: Bound) -> Outcome:
        """The environment of a job that starts now.

        A mechanism that cannot be had for this job is told in ``missing``; what to do about it is
        the caller's to decide.
        """
        environment: dict[str, str] = {}
        by: list[Mechanism] = []
        missing = {name: probe.reason for name, probe in self.probes().items() if not probe.usable}
        for mechanism in self.picked():
            try:
                made = mechanism.environment(bound)
            except GpuqueueError as error:
                missing[mechanism.name] = str(error)
                continue
            environment |= made
            by.append(mechanism)
            bound = replace(bound, base={**bound.base, **made})
            if mechanism.reports:  # what comes next counts from what the job is told
                told = {gpu: cap for gpu, cap in bound.caps.items() if cap is not None}
                bound = replace(bound, totals={**bound.totals, **told})
        return Outcome(environment, self._standing(bound, by), tuple(m.name for m in by), missing)

    @staticmethod
    def _standing(bound: Bound, by: Sequence[Mechanism]) -> Standing:
        if all(cap is None for cap in bound.caps.values()):
            return Standing.ADMITTED_ONLY
        for standing in (Standing.CAPPED, Standing.ADVISED):
            if any(mechanism.standing is standing for mechanism in by):
                return standing
        return Standing.ADMITTED_ONLY
