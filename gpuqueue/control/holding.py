"""Holds jobs to their shares, by what was seen to work on this machine.

The trials take seconds, and so may every call of a mechanism: all of it happens in threads of its
own, one for each GPU, and what has come of it is taken in by a later turn. What hangs on one GPU
keeps no job of another waiting. Each mechanism is used from the end of its own trial on. Starts
wait a moment for the trials, which are short where an earlier lead has kept what they showed. After
that, a job starts with what was seen to work by then, unless it requires more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuqueue.control.errands import Errands, Lines
from gpuqueue.errors import GpuqueueError
from gpuqueue.model import WHOLE, Gpu, Hold, Job, Placement, Request
from gpuqueue.paths import Home
from gpuqueue.run.files import MPS, read_json
from gpuqueue.run.wake import ring
from gpuqueue.share import (
    Bound,
    Ladder,
    Outcome,
    Standing,
    Subject,
    bound_of,
    environment,
    ladder_for,
    refusal,
)
from gpuqueue.share.installed import versions_in

__all__ = [
    "FACT",
    "Holder",
    "Told",
    "asked_of",
    "hold_of",
    "lacks",
    "ladder_of",
    "nothing",
]

log = logging.getLogger("gpuqueue")

FACT = "holding"
"""Name of the fact: what jobs can be held by here, for whoever asks for a job that requires it."""
_FOLDER = "memcap"
_PATIENCE = 2.0
"""Seconds that the end of a lead waits for what is being tried or let go of."""
_MOMENT = 0.5
"""Seconds from the beginning of the trials in which starts wait for them: what was tried before is
read again in less, and what a lead was started for would else be held by nothing."""
_OWED = 1000
"""Most releases that wait for GPUs to let go of something on; the next lead finds the others."""
_TRYING = "what holds jobs here is still being tried"
_NOTHING = "nothing that is known here holds a job to its share of such a GPU"


def ladder_of(home: Home, gpus: Sequence[Gpu]) -> Ladder | None:
    """What can hold jobs on these GPUs; None where there is nothing to try, as on pretend GPUs."""
    # a pretend GPU with a name that a driver could have given is tried as a real one
    able = [gpu if _is_pretend(gpu) else replace(gpu, fake=False) for gpu in gpus]
    able = [gpu for gpu in able if not gpu.fake and gpu.vendor == _maker(gpus)]
    return ladder_for(able, home.root / _FOLDER) if able else None


def _maker(gpus: Sequence[Gpu]) -> str:
    """Whose GPUs jobs are held on: a machine with those of several makers is not known yet."""
    return next((gpu.vendor for gpu in gpus if not _is_pretend(gpu)), "")


def _is_pretend(gpu: Gpu) -> bool:
    return gpu.fake and not gpu.uuid.startswith("GPU-")


@dataclass(frozen=True, slots=True)
class Told:
    """What came of a call: ``kind`` is ``start``, ``resize`` or ``verify``.

    ``key`` is what it was asked with: a job's attempt, or a wish.
    """

    kind: str
    job: int
    key: int
    value: Any = None
    error: str = ""


@dataclass(slots=True)
class Holder:
    """The controller's way to `gpuqueue.share`. Its methods never wait for a mechanism.

    Parameters
    ----------
    home
        The state directory, whose doorbell is rung when something has come of a call.
    make
        Makes the ladder for the GPUs that there are.
    """

    home: Home
    make: Callable[[Home, Sequence[Gpu]], Ladder | None] = ladder_of
    _lines: Lines = field(default_factory=lambda: Lines("gpuqueue-hold"))
    _line_of: dict[Path, str] = field(default_factory=dict)
    _told: deque[Told] = field(default_factory=deque)
    _owed: deque[Path] = field(default_factory=lambda: deque(maxlen=_OWED))
    _begun: bool = False
    _gpus: tuple[Gpu, ...] = ()
    _ladder: Ladder | None = None
    _since: float = 0.0
    _waiting: dict[int, tuple[Job, Path, str | None]] = field(default_factory=dict)
    """Starts that wait for trials, by the job's number."""
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _fact: dict[str, Any] | None = None
    _published: dict[str, Any] | None = None

    # -- what there is -----------------------------------------------------------------------

    def know(self, gpus: Sequence[Gpu]) -> None:
        """Try what holds jobs on these GPUs, unless that is known; cheap to call often."""
        found = tuple(gpus)
        if found == self._gpus and self._begun:
            return
        self._begun = True
        self._gpus = found
        self._since = time.monotonic()
        ladder = self._ladder = self.make(self.home, found)
        if ladder is not None:
            ladder.begin(lambda: self._heard(ladder))
            while self._owed:
                self.release(self._owed.popleft())
        self._tell(ladder)

    def _heard(self, ladder: Ladder) -> None:
        """One more trial is over."""
        if ladder is self._ladder:  # else there are other GPUs by now
            self._tell(ladder)
            self._ring()

    def _tell(self, ladder: Ladder | None) -> None:
        with self._telling:  # of two trials that end at once the second knows of both
            self._fact = _fact_of(ladder)

    def fact(self) -> dict[str, Any] | None:
        """What is to be published of it and has not been; None where there is nothing new."""
        if self._fact is None or self._fact == self._published:
            return None
        self._published = self._fact
        return self._fact

    @property
    def trying(self) -> bool:
        """Whether trials are still under way."""
        return self._ladder is not None and not self._ladder.complete

    @property
    def preload(self) -> str:
        """The library of a memory cap that holds here, for processes there before their job."""
        return _library_of(self._ladder) if self._ladder else ""

    # -- starting ----------------------------------------------------------------------------

    def must_ask(self, job: Job) -> bool:
        """Whether something is to be done before this job can be ordered."""
        if not _has_part(job.placement) or self._ladder is None:
            return False
        maker, vendors = _maker(self._gpus), {gpu.uuid: gpu.vendor for gpu in self._gpus}
        gpus = job.placement.gpus if job.placement else ()
        if maker and any(vendors.get(uuid) != maker for uuid in gpus):
            return False
        # one whose start an earlier lead has made ready is not let go with less by this one
        held = job.hold is not None and bool(job.hold.by)
        known = self._ladder.complete or self._ladder.works
        return known or bool(job.request.require) or held or self._soon

    @property
    def _soon(self) -> bool:
        """Whether the trials have only just begun."""
        return time.monotonic() - self._since < _MOMENT

    def first(self, placement: Placement) -> Hold | None:
        """How far a job there is held as far as that is known before anything is asked."""
        if not _has_part(placement):
            return None
        return Hold(missing={"all": _TRYING if self._ladder else _NOTHING})

    def start(self, job: Job, folder: Path, spec: str | None) -> None:
        """Make ready what a job is to start with, as soon as `press` may; `take` tells of it."""
        self._waiting[job.id] = job, folder, spec
        self.press()

    def press(self) -> None:
        """Go on with the starts that need wait for no trial any more."""
        ladder = self._ladder
        if ladder is None:
            return
        ready = [job for job, _, _ in self._waiting.values() if self._is_ready(ladder, job)]
        for job in ready:
            self._make_ready(ladder, *self._waiting.pop(job.id))

    def drop(self, job: Job) -> None:
        """What waits of its start waits no longer: it is not wanted any more."""
        self._waiting.pop(job.id, None)

    def _is_ready(self, ladder: Ladder, job: Job) -> bool:
        """Whether what could be had by waiting for more trials is not waited for."""
        if ladder.complete:
            return True
        by = job.hold.by if job.hold is not None else ()
        if job.request.require or by:
            subjects = [Subject(name) for name in job.request.require]
            return ladder.tried(by) and all(ladder.decided(subject) for subject in subjects)
        return not self._soon and ladder.works

    def _make_ready(self, ladder: Ladder, job: Job, folder: Path, spec: str | None) -> None:
        gpus = self._gpus
        placement = _enforced(job, job.placement or Placement())

        def work() -> Outcome:
            told = json.loads(spec) if spec else {}
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = environment(
                placement, folder, ladder=ladder, totals=_totals(gpus), base=told.get("env") or {},
                versions=versions_in(told.get("program") or ""), there=bool(told.get("attached")),
            )  # fmt: skip
            if ladder is self._ladder:  # a start may have tried again what did not work
                self._tell(ladder)
            return made

        self._line(folder, job).put(self._told_of("start", job.id, job.attempt, work))

    # -- while it runs -----------------------------------------------------------------------

    def holds(self, job: Job) -> bool:
        """Whether something holds a job that runs."""
        return job.hold is not None and bool(job.hold.by) and self._ladder is not None

    def resize(self, job: Job, placement: Placement, folder: Path, wish: int) -> None:
        """Hold a job that runs to another placement; `take` tells the effects by `Subject`."""
        ladder, by = self._ladder, job.hold.by if job.hold else ()
        bound = self._bound(_enforced(job, placement), folder)
        assert ladder is not None
        line = self._line(folder, job)
        line.hasten(folder)
        line.put(self._told_of("resize", job.id, wish, lambda: ladder.resize(bound, by)))

    def verify(self, job: Job, folder: Path, users: Collection[int]) -> None:
        """See whether these processes of a job are held; `take` tells what contradicts it.

        What people wait for goes first. Where the last look is still to be done, only this one is.
        """
        ladder, by = self._ladder, job.hold.by if job.hold else ()
        bound = self._bound(_enforced(job, job.placement or Placement()), folder)
        assert ladder is not None
        work = self._told_of("verify", job.id, job.attempt, lambda: ladder.verify(bound, by, users))
        self._line(folder, job).look(folder, work)

    def release(self, folder: Path, by: Collection[str] | None = None) -> None:
        """Let go of what was made for an attempt that is over; harmless where that was done.

        All of it where ``by`` is None, for what is on record of an attempt may be less than it had:
        a lead may have been killed before it could take in what its thread had made.
        """
        ladder = self._ladder
        if ladder is None:
            self._owed.append(folder)
            return
        names = [one.name for one in ladder.mechanisms] if by is None else by
        line = self._line(folder)
        self._line_of.pop(folder, None)
        line.drop(folder)
        line.put(lambda: ladder.release(Bound(folder, {}), names))

    def _line(self, folder: Path, job: Job | None = None) -> Errands:
        """The line of an attempt, which is that of its GPUs: what is asked of it keeps its order.

        Of one that this lead has asked nothing of, the note of its MPS daemon tells which may hang.
        """
        if folder not in self._line_of:
            if job is not None:
                self._line_of[folder] = " ".join(job.placement.gpus) if job.placement else ""
            else:
                note = read_json(folder / MPS)
                return self._lines.at(str(note.get("gpu", "")) if isinstance(note, dict) else "")
        return self._lines.at(self._line_of[folder])

    def _bound(self, placement: Placement, folder: Path) -> Bound:
        return bound_of(placement, folder, totals=_totals(self._gpus), base={})

    # -- the threads -------------------------------------------------------------------------

    def take(self) -> list[Told]:
        """What has come of calls since the last time."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._told.popleft())
        return found

    def close(self) -> None:
        """End the threads after what they have to do; what holds jobs stays."""
        self._lines.close(_PATIENCE)

    def _told_of(
        self, kind: str, job: int, key: int, work: Callable[[], Any]
    ) -> Callable[[], None]:
        """The same work, of which `take` tells."""

        def do() -> None:
            try:
                told = Told(kind, job, key, work())
            except (GpuqueueError, OSError) as error:
                told = Told(kind, job, key, error=str(error))
            except Exception as error:  # the job waits for an answer, whatever has failed
                log.exception("gpuqueue: the %s of job %d has failed", kind, job)
                told = Told(kind, job, key, error=f"{type(error).__name__}: {error}")
            self._told.append(told)
            self._ring()

        return do

    def _ring(self) -> None:
        ring(self.home.wake, "hold")


def asked_of(request: Request) -> tuple[Subject, ...]:
    """What a request asks for a part of. A share has its part of the memory, named or not."""
    if request.share is not None:
        return (Subject.COMPUTE, Subject.MEMORY)
    return () if request.memory is None else (Subject.MEMORY,)


def lacks(job: Job, outcome: Outcome) -> str:
    """Why a job that requires more than it got does not start; empty where it does."""
    request = job.wants
    return refusal(
        [Subject(name) for name in request.require], outcome.standings, outcome.reasons,
        asked=asked_of(request), whole=outcome.whole,
    )  # fmt: skip


def hold_of(job: Job, outcome: Outcome) -> Hold:
    """What is recorded of a start."""
    # one that bursts is under the same mechanism as its neighbours, with all of the GPU as its cap
    compute = Standing.ADMITTED_ONLY if job.request.burst else outcome.compute
    return Hold(str(compute), str(outcome.memory), outcome.by, dict(outcome.missing))


def nothing() -> Outcome:
    """What a start gets where there is nothing to hold it."""
    words = dict.fromkeys(Subject, _sentence(_NOTHING))
    return Outcome({}, Standing.ADMITTED_ONLY, Standing.ADMITTED_ONLY, (), {}, words)


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def _enforced(job: Job, placement: Placement) -> Placement:
    """What is enforced of a placement: a job that bursts may use all compute that is idle."""
    if not job.request.burst:
        return placement
    return replace(
        placement,
        grants=tuple(replace(grant, compute=WHOLE) for grant in placement.grants if grant.compute),
    )


def _has_part(placement: Placement | None) -> bool:
    return placement is not None and any(not grant.whole for grant in placement.grants)


def _totals(gpus: Sequence[Gpu]) -> dict[str, int | None]:
    return {gpu.uuid: gpu.memory for gpu in gpus}


def _fact_of(ladder: Ladder | None) -> dict[str, Any]:
    """What can be had here, in words, and the library for processes there before their share."""
    if ladder is None:
        words: Mapping[Subject, Standing] = dict.fromkeys(Subject, Standing.ADMITTED_ONLY)
        reasons: Mapping[Subject, str] = dict.fromkeys(Subject, _sentence(_NOTHING))
        return {"standings": _plain(words), "reasons": _plain(reasons)}
    words, reasons, library = ladder.promises(), ladder.reasons(), _library_of(ladder)
    if trying := ladder.trying:
        capped = [str(name) for name, word in words.items() if word is Standing.CAPPED]
        return {"trying": list(trying), "capped": capped, "library": library}
    return {"standings": _plain(words), "reasons": _plain(reasons), "library": library}


def _library_of(ladder: Ladder) -> str:
    """The library of a memory cap that holds here; empty where there is none."""
    libraries = (getattr(mechanism, "library", None) for mechanism in ladder.picked())
    return next((str(library) for library in libraries if library), "")


def _plain(values: Mapping[Subject, str]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}
