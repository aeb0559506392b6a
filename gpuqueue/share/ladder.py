"""Which mechanisms hold a job to its share here: the best that is proven, and all advice."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuqueue.errors import GpuqueueError
from gpuqueue.model import ProcessId
from gpuqueue.share.mechanism import Bound, Effect, Mechanism, Probe, Standing, Subject

__all__ = ["THERE", "Ladder", "Outcome"]

log = logging.getLogger("gpuqueue")

_RETRY, _LONGEST = 300.0, 3600.0
"""Seconds until what did not work is tried again: at first, and at most."""
THERE = "its process was there before its share"
"""Why a kernel that attaches is not held by what is read as a process starts."""

_UNTRIED = Probe(usable=False, reason="It is still being tried here.")

_Works = Callable[[Mechanism, Mapping[str, Probe]], bool]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job starts with and how far it is held.

    Attributes
    ----------
    environment
        Variables to start it with, over its own.
    memory, compute
        How far it is held to its share of either.
    by
        Names of the mechanisms in force.
    missing
        Of each other one, why it is not.
    reasons
        Where memory or compute is not capped, why, as sentences.
    whole
        It has its GPUs to itself, so there is nothing to hold it to.
    """

    environment: Mapping[str, str]
    memory: Standing
    compute: Standing
    by: tuple[str, ...]
    missing: Mapping[str, str]
    reasons: Mapping[Subject, str] = field(default_factory=dict)
    whole: bool = False

    @property
    def standing(self) -> Standing:
        """How far it is held to its share of memory."""
        return self.memory

    @property
    def standings(self) -> Mapping[Subject, Standing]:
        """How far it is held, by what it is held to."""
        return {Subject.COMPUTE: self.compute, Subject.MEMORY: self.memory}


class Ladder:
    """Mechanisms, of those for one thing (device memory, say) the strongest first.

    Of those that cap one thing, the first that works is used; those that advise are used beside it.
    Each is tried by itself and used as soon as its own trial is over. It may be used from several
    threads.
    """

    def __init__(self, mechanisms: Sequence[Mechanism]) -> None:
        self._mechanisms = tuple(mechanisms)
        self._probes: dict[str, Probe] = {}
        self._again: dict[str, tuple[float, float]] = {}
        self._trials = {mechanism.name: threading.Lock() for mechanism in mechanisms}
        self._begun = False

    # -- trials ------------------------------------------------------------------------------

    def probes(self) -> Mapping[str, Probe]:
        """What each mechanism's trial on this machine has shown; tried once.

        The first call may take seconds: it starts programs on the GPUs. Later ones never wait.
        """
        if not self.complete:
            for thread in self.begin():
                thread.join()
            for trial in self._trials.values():  # of others
                with trial:
                    pass
        return self._seen()

    def _seen(self) -> dict[str, Probe]:
        """What was seen so far, the strongest first."""
        probes = dict(self._probes)
        return {m.name: probes[m.name] for m in self._mechanisms if m.name in probes}

    def begin(self, heard: Callable[[], None] = lambda: None) -> list[threading.Thread]:
        """Begin to try what was not tried, each in a thread of its own.

        ``heard`` is called as each trial is over, in its thread.
        """
        self._begun = True
        threads = [
            threading.Thread(
                target=self._try,
                args=(mechanism, heard),
                name=f"gpuqueue-trial-of-{mechanism.name}",
                daemon=True,
            )
            for mechanism in self._mechanisms
            # taken here, so that nobody who starts a job meanwhile comes to try it himself
            if mechanism.name not in self._probes
            and self._trials[mechanism.name].acquire(blocking=False)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _try(self, mechanism: Mechanism, heard: Callable[[], None] = lambda: None) -> None:
        """Try one whose lock is held, and let go of that."""
        try:
            _, wait = self._again.get(mechanism.name, (0.0, _RETRY))
            probe = _tried(mechanism)
            due = math.inf if probe.usable else time.monotonic() + wait
            self._again[mechanism.name] = due, min(2 * wait, _LONGEST)
            self._probes[mechanism.name] = probe
        finally:
            self._trials[mechanism.name].release()
        heard()

    def _try_again(self) -> None:
        """Try what nobody is trying and did not work and is due: a GPU may have been full.

        That is after minutes, then after longer; at once where it was never tried.
        """
        self._begun = True
        for mechanism in self._mechanisms:
            due, _ = self._again.get(mechanism.name, (0.0, _RETRY))
            if time.monotonic() >= due and self._trials[mechanism.name].acquire(blocking=False):
                self._try(mechanism)

    def _known(self) -> Mapping[str, Probe]:
        """What was seen so far; all there is to see where nobody has begun to look."""
        return self._seen() if self._begun else self.probes()

    @property
    def complete(self) -> bool:
        """Whether all trials are over."""
        return len(self._probes) == len(self._mechanisms)

    @property
    def works(self) -> bool:
        """Whether something was seen to work so far."""
        return any(probe.usable for probe in self._seen().values())

    def tried(self, names: Collection[str]) -> bool:
        """Whether the trials of these are over; one that is not there has none."""
        return all(mechanism.name in self._probes for mechanism in self._named(names))

    def decided(self, subject: Subject) -> bool:
        """Whether no trial that is still to end could say more of whether this is capped."""
        caps = [
            mechanism.name
            for mechanism in self._mechanisms
            if mechanism.subject is subject and mechanism.standing is Standing.CAPPED
        ]
        return self.tried(caps) or any(
            probe.usable for name, probe in self._seen().items() if name in caps
        )

    @property
    def trying(self) -> tuple[str, ...]:
        """Names of those whose trials are not over."""
        return tuple(m.name for m in self._mechanisms if m.name not in self._probes)

    # -- what is used ------------------------------------------------------------------------

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """All of them, whether they work or not."""
        return self._mechanisms

    def picked(self) -> tuple[Mechanism, ...]:
        """The mechanisms that are used here, as far as tried, in the order of their use."""
        return self._best(lambda mechanism, probes: probes[mechanism.name].usable)

    def on(self, gpu: str) -> tuple[Mechanism, ...]:
        """The same for one GPU, by its UUID."""
        return self._best(lambda mechanism, probes: probes[mechanism.name].on(gpu).usable)

    def _best(self, works: _Works) -> tuple[Mechanism, ...]:
        probes = self._known()
        found: list[Mechanism] = []
        capped: set[Subject] = set()
        for mechanism in self._mechanisms:
            caps = mechanism.standing is Standing.CAPPED
            if mechanism.name not in probes:
                continue
            if works(mechanism, probes) and not (caps and mechanism.subject in capped):
                found.append(mechanism)
                if caps:
                    capped.add(mechanism.subject)
        return tuple(found)

    def missing(self, gpu: str | None = None) -> Mapping[str, str]:
        """Why each mechanism that does not work here does not: anywhere, or on one GPU."""
        known = self._known()
        told = {
            mechanism.name: _UNTRIED
            if (probe := known.get(mechanism.name)) is None
            else (probe if gpu is None else probe.on(gpu))
            for mechanism in self._mechanisms
        }
        return {name: probe.reason for name, probe in told.items() if not probe.usable}

    def reasons(self, gpu: str | None = None) -> Mapping[Subject, str]:
        """Where a job with a part of a GPU cannot be capped, why, as sentences."""
        return self._reasons(self.promises(gpu), self.missing(gpu))

    def _reasons(
        self, standings: Mapping[Subject, Standing], missing: Mapping[str, str]
    ) -> Mapping[Subject, str]:
        return {
            subject: " ".join(
                missing[mechanism.name]
                for mechanism in self._mechanisms
                if mechanism.subject is subject
                and mechanism.standing is Standing.CAPPED
                and mechanism.name in missing
            )
            for subject, standing in standings.items()
            if standing is not Standing.CAPPED
        }

    def promises(self, gpu: str | None = None) -> Mapping[Subject, Standing]:
        """How far a job with a part of a GPU can be held here: of any GPU, or of this one."""
        by = self.picked() if gpu is None else self.on(gpu)
        return {subject: _best_of(by, subject) for subject in Subject}

    def start(self, bound: Bound) -> Outcome:
        """The environment of a job that starts now.

        A mechanism that cannot be had for this job is told in ``missing``; what to do about it is
        the caller's to decide. It may take seconds, as what did not work is tried again here after
        a while. What somebody else is trying just then is not waited for.
        """
        self._try_again()
        environment: dict[str, str] = {}
        by: list[Mechanism] = []
        missing = dict(self.missing())
        for mechanism in self.picked():
            if bound.there and mechanism.at_start:
                missing[mechanism.name] = THERE
                continue
            try:
                made = mechanism.environment(bound)
            except GpuqueueError as error:
                missing[mechanism.name] = str(error)
                continue
            except Exception as error:  # the others are to hold the job all the same
                log.exception("gpuqueue: %s has failed for a job", mechanism.name)
                missing[mechanism.name] = _failed(mechanism, error)
                continue
            environment |= made
            by.append(mechanism)
            bound = replace(bound, base={**bound.base, **made})
            if mechanism.reports:  # what comes next counts from what the job is told
                told = {gpu: cap for gpu, cap in bound.caps.items() if cap is not None}
                bound = replace(bound, totals={**bound.totals, **told})
        standings = {
            subject: _best_of(by, subject) if bound.holds(subject) else Standing.ADMITTED_ONLY
            for subject in Subject
        }
        return Outcome(
            environment,
            memory=standings[Subject.MEMORY],
            compute=standings[Subject.COMPUTE],
            by=tuple(mechanism.name for mechanism in by),
            missing=missing,
            reasons=self._reasons(standings, missing),
        )

    def apply(self, bound: Bound, by: Collection[str], process: ProcessId) -> None:
        """What is to be done to a job's first process; ``by`` is that of its `Outcome`."""
        for mechanism in self._named(by):
            mechanism.apply(bound, process)

    def resize(self, bound: Bound, by: Collection[str]) -> Mapping[Subject, Effect]:
        """Hold a running job to other shares, by the mechanisms that it was started with.

        Returns
        -------
        From when they hold, for each thing that something caps; a thing that nothing caps is left
        out, for then the ledger's new number is all that there is to it.

        Raises
        ------
        GpuqueueError
            A mechanism cannot; what it was before holds on.
        """
        effects: dict[Subject, Effect] = {}
        for mechanism in self._named(by):
            effect = mechanism.resize(bound)
            if mechanism.standing is Standing.CAPPED:
                effects[mechanism.subject] = effect
        return effects

    def verify(self, bound: Bound, by: Collection[str], users: Collection[int]) -> tuple[str, ...]:
        """What contradicts what a running job was said to be held by, as sentences.

        ``users`` are the job's processes (pids) that the driver sees on its GPUs.
        """
        return tuple(
            sentence for mechanism in self._named(by) for sentence in mechanism.verify(bound, users)
        )

    def release(self, bound: Bound, by: Collection[str]) -> None:
        """Let go of what was made for a job that has ended. May be called twice; never raises."""
        for mechanism in self._named(by):
            try:
                mechanism.release(bound)
            except (GpuqueueError, OSError) as error:  # the others are to let go all the same
                log.warning("%s could not let go of a job: %s", mechanism.name, error)
            except Exception:
                log.exception("gpuqueue: %s could not let go of a job", mechanism.name)

    def _named(self, names: Collection[str]) -> Iterable[Mechanism]:
        return (mechanism for mechanism in self._mechanisms if mechanism.name in names)


def _tried(mechanism: Mechanism) -> Probe:
    """What its trial has shown; one that breaks off has shown that it cannot be relied on."""
    try:
        return mechanism.probe()
    except Exception as error:  # without an answer the trials would never be over
        log.exception("gpuqueue: the trial of %s has failed", mechanism.name)
        return Probe(usable=False, reason=_failed(mechanism, error))


def _failed(mechanism: Mechanism, error: Exception) -> str:
    return f"{mechanism.name} has failed: {type(error).__name__}: {error}"


def _best_of(by: Sequence[Mechanism], subject: Subject) -> Standing:
    found = {mechanism.standing for mechanism in by if mechanism.subject is subject}
    ranks = (Standing.CAPPED, Standing.ADVISED)
    return next((standing for standing in ranks if standing in found), Standing.ADMITTED_ONLY)
