"""The words of gpuqueue as frozen data. No I/O, no clock.

Units everywhere: memory in bytes, compute in thousandths of one GPU, times in seconds since the
epoch, durations in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

__all__ = [
    "ACTIVE",
    "TERMINAL",
    "WHOLE",
    "Event",
    "Gpu",
    "GpuProcess",
    "Grant",
    "Hold",
    "Intent",
    "IntentKind",
    "Job",
    "JobKind",
    "JobState",
    "Loan",
    "Mode",
    "ModeName",
    "Origin",
    "Placement",
    "Preset",
    "ProcessId",
    "Reading",
    "Request",
    "Size",
]

WHOLE = 1000
"""Thousandths in one whole GPU."""


class JobState(StrEnum):
    """Where a job is in its life; see docs/architecture.md for the arrows between them."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"
    EVICTING = "evicting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""States that never change again."""

ACTIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.FROZEN, JobState.EVICTING})
"""States in which a job has processes and holds its placement."""


class JobKind(StrEnum):
    """What a job's payload is."""

    SCRIPT = "script"
    FUNCTION = "function"
    CELL = "cell"
    NOTEBOOK = "notebook"
    KERNEL = "kernel"
    """A notebook's own kernel, which holds a share for as long as it lives; it has no runner."""


class Preset(StrEnum):
    """A named shape of request: how much of the machine, in one word."""

    LIGHT = "light"
    ONE = "one"
    TWO = "two"
    EXCLUSIVE = "exclusive"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for. Immutable from the moment it is submitted.

    Attributes
    ----------
    preset
        The shape; the fields below override what it implies.
    gpus
        Number of GPUs, all at once; None is the preset's number.
    share
        Compute of each GPU in thousandths, 1 to 1000; None is no compute promise.
    memory
        Device memory of each GPU in bytes; None where it is unknown.
    slots
        How many of the machine's slots it takes; None is the preset's number.
    eta
        Expected run time in seconds; None where it is unknown.
    priority
        Higher starts first; 0 is normal.
    after
        Ids of the jobs that must have succeeded before this one starts.
    restartable
        It may be stopped and run again from the beginning.
    preemptible
        It is stopped, and put back into the queue, where a job of higher priority needs its room.
    require
        What of ``compute`` and ``memory`` is to be capped; else it does not start.
    burst
        It may use compute beyond its share while that is idle. Its share is promised as any other.
    resumable
        Its program saves its state and exits with 0 on SIGTERM, and goes on from that when it is
        started again. One that uses ``gpuqueue.checkpoint`` says so itself, as it runs.
    """

    preset: Preset = Preset.ONE
    gpus: int | None = None
    share: int | None = None
    memory: int | None = None
    slots: int | None = None
    eta: float | None = None
    priority: int = 0
    after: tuple[int, ...] = ()
    restartable: bool = False
    preemptible: bool = False
    resumable: bool = False
    require: tuple[str, ...] = ()
    burst: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """What a job was resized to: ``share`` and ``memory`` as in ``Request``, in place of those."""

    share: int | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """How far a start of a job is held to its share, and by what.

    ``compute`` and ``memory`` are words of ``gpuqueue.share.Standing``; ``by`` names the mechanisms
    in force; ``missing`` says of each other one why it is not. ``doubts`` are sentences about what
    was seen to contradict it.
    """

    compute: str = "admitted only"
    memory: str = "admitted only"
    by: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """A job's part of one GPU: what the ledger counts as taken.

    ``compute`` is thousandths and ``memory`` bytes. ``whole`` says that nobody else may be there.
    """

    gpu: str
    compute: int
    memory: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs: its grants (none for a CPU job) and the slots it takes."""

    grants: tuple[Grant, ...] = ()
    slots: int = 1

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of its GPUs, in the order the job sees them."""
        return tuple(grant.gpu for grant in self.grants)


@dataclass(frozen=True, slots=True)
class Loan:
    """How a job's compute is lent, or is itself only lent to it (``gpuqueue.plan.lend``).

    Attributes
    ----------
    borrows
        It runs on compute that notebooks lend while they idle, and stands still where they compute.
    away
        What others have of its compute now, by GPU, in thousandths: of a notebook what it lends, of
        a borrower that stands still all that it has.
    """

    borrows: bool = False
    away: tuple[tuple[str, int], ...] = ()

    def on(self, gpu: str) -> int:
        """What is away on one GPU."""
        return dict(self.away).get(gpu, 0)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for all time: a pid alone may be given to a stranger.

    ``start`` is the kernel's start time in its own ticks since boot, ``boot`` the boot's id.
    """

    pid: int
    start: int
    boot: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from.

    ``kind`` is ``notebook``, ``terminal``, ``python`` or ``rest``; ``path`` is the notebook's or
    script's path where known; ``session`` tells one notebook kernel or terminal from another.
    ``agent`` is the coding agent that asked, such as ``Claude Code``; empty for a person.
    """

    kind: str = "python"
    path: str = ""
    session: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One request with its payload and its life, as the store knows it.

    ``asked`` is ``cancel`` from the moment that a running job has been asked to end; ``evict``
    where it is to make room for another and go back into the queue, ``free`` where it is to do so
    for the person at the machine; ``pause`` where it stands still because a notebook computes that
    had lent it compute.
    ``frozen`` is how many seconds of its latest attempt it was frozen for, up to ``frozen_at``,
    since when it is frozen now (seconds since the epoch; None if it is not).
    ``expected`` and ``latest`` are the scheduler's promise: its start in queue order when it was
    first seen, and the latest that this may become (seconds since the epoch). ``learned`` is the
    run time in seconds that earlier runs of the same command taught when it was submitted without
    one, and ``sound`` says whether such estimates had held.

    Device memory, in bytes on one GPU: ``peak`` is the most that it was seen to hold on any of its
    GPUs, ``learned_memory`` what earlier runs taught where it was submitted without ``memory``,
    ``lacked`` what it had of that when it ran out and was put back, to run once more with all.

    ``resized`` is what it was resized to since it started: its placement has that size, and
    ``request`` what it had asked for until it has to wait again. ``hold`` tells how far its latest
    start is held to its share; None where that is not known. ``loan`` is about compute that
    notebooks lend; None where it neither lends nor borrows any.
    """

    id: int
    kind: JobKind
    state: JobState
    request: Request
    tag: str
    owner: str
    command: str
    cwd: str
    origin: Origin
    submitted: float
    position: int
    attempt: int = 0
    placement: Placement | None = None
    started: float | None = None
    ended: float | None = None
    returncode: int | None = None
    reason: str = ""
    process: ProcessId | None = None
    key: str | None = None
    retry_of: int | None = None
    asked: str = ""
    expected: float | None = None
    latest: float | None = None
    learned: float | None = None
    sound: bool = False
    peak: int | None = None
    learned_memory: int | None = None
    lacked: int | None = None
    frozen: float = 0.0
    frozen_at: float | None = None
    resized: Size | None = None
    hold: Hold | None = None
    loan: Loan | None = None

    @property
    def borrows(self) -> bool:
        """Whether its compute is lent to it."""
        return self.loan is not None and self.loan.borrows

    @property
    def wants(self) -> Request:
        """What it asks for if it starts anew: its request, with the size that it was given since.

        A job that waits asks for just its request.
        """
        if self.resized is None:
            return self.request
        return replace(self.request, share=self.resized.share, memory=self.resized.memory)

    def changed(self, **changes: Any) -> Job:
        """The same job with some facts changed, in a third of the time of ``replace``."""
        if unknown := changes.keys() - _FACTS.keys():
            raise TypeError(f"a job has no {', '.join(sorted(unknown))}")
        after = object.__new__(Job)
        for (name, write), value in zip(_FACTS.items(), _read_facts(self), strict=True):
            write(after, changes.get(name, value))
        return after

    def ran(self, now: float) -> float:
        """Seconds that this attempt has run until ``now`` or its end, those frozen left out."""
        if self.started is None:
            return 0.0
        until = now if self.ended is None else self.ended
        if self.frozen_at is not None:
            until = min(until, self.frozen_at)
        return max(0.0, until - self.started - self.frozen)

    @property
    def uses_gpu(self) -> bool:
        """Whether it holds a part of a GPU now."""
        return self.placement is not None and bool(self.placement.grants)

    @property
    def excess(self) -> int:
        """Bytes by which it was seen to hold more of a GPU's memory than it asked for."""
        asked = self.wants.memory
        return 0 if asked is None or self.peak is None else max(0, self.peak - asked)

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key of the queue: priority, then position, then arrival."""
        return (-self.request.priority, self.position, self.id)


# how each is written although the class is frozen
_FACTS = {each.name: getattr(Job, each.name).__set__ for each in fields(Job)}
_read_facts = attrgetter(*_FACTS)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device.

    Attributes
    ----------
    uuid
        Its lasting name; everything internal refers to a GPU by it.
    index
        Its number in PCI bus order, for showing.
    memory
        Total device memory in bytes; None where the driver does not say (unified memory).
    grain
        The smallest step of compute that can be enforced on it, in thousandths.
    fake
        A pretend GPU: jobs see its index instead of its UUID.
    """

    uuid: str
    index: int
    name: str
    memory: int | None
    vendor: str = "nvidia"
    grain: int = 1
    fake: bool = False


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU; ``memory`` in bytes, None where not told.

    ``utilization`` is the per cent of the GPU's time in which it computed lately; None where not
    told.
    """

    pid: int
    memory: int | None
    utilization: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a GPU says of itself at one moment. None means that the driver does not tell.

    Memory in bytes, utilisation in per cent, temperature in degrees Celsius, power in watts.
    """

    gpu: str
    memory_used: int | None = None
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None
    processes: tuple[GpuProcess, ...] = ()


class ModeName(StrEnum):
    """Whether the queue has the GPUs."""

    NORMAL = "normal"
    FREEING = "freeing"
    """The person has taken them back; some jobs are still stepping aside."""
    FREE = "free"
    """The person has them: whatever holds any of their memory is frozen."""


@dataclass(frozen=True, slots=True)
class Mode:
    """Who has the GPUs: the queue, or the person at the machine, and then no job starts.

    Attributes
    ----------
    by
        Who took them: ``person`` or ``automatic``; empty in normal mode.
    soft
        Everything was frozen where it was, and nothing was asked to step aside.
    since
        When they were taken, in seconds since the epoch; None in normal mode.
    program
        The person's program for which it was done automatically, for people.
    latched
        Programs that were there when a person gave the GPUs back by hand: as long as one of them
        is, they are not taken automatically again.
    """

    name: ModeName = ModeName.NORMAL
    by: str = ""
    soft: bool = False
    since: float | None = None
    program: str = ""
    latched: tuple[ProcessId, ...] = ()

    @property
    def normal(self) -> bool:
        """Whether the queue has the GPUs."""
        return self.name is ModeName.NORMAL


class IntentKind(StrEnum):
    """What a client may ask of the controller: about a job that exists, or about all of them."""

    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    PRIORITY = "priority"
    SWAP = "swap"
    MOVE = "move"
    RESIZE = "resize"
    """Another share or memory. Its value is ``{"share": thousandths or None, "memory": bytes or
    None}``; None leaves that as it is."""
    FREE = "free"
    """Take the GPUs back: about no job. Its value is ``{"soft": bool}``."""
    RESUME = "resume"
    """Give them to the queue again: about no job."""
    UNKNOWN = "unknown"
    """What a newer client wrote: refused, not guessed."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A client's wish, written to the store and carried out by the controller."""

    id: int
    kind: IntentKind
    job: int | None
    value: Any = None
    at: float = 0.0
    done: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, in the order it happened. ``seq`` grows by one."""

    seq: int
    at: float
    job: int | None
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
