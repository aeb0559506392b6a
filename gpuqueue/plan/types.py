"""What the scheduler is told and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuqueue.model import WHOLE, Gpu, Job, JobState, Mode, Placement

__all__ = [
    "Card",
    "Drop",
    "Estimate",
    "Evict",
    "Need",
    "Policy",
    "Promise",
    "Snapshot",
    "Start",
    "Wait",
    "WaitReason",
]


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of this machine.

    Attributes
    ----------
    slots
        The machine's budget of concurrent work.
    shared_gpu
        UUID of the GPU on which light jobs sit together; None where there is no GPU.
    packing
        Whether jobs of known need may share a GPU.
    gpu_free_perc
        A GPU that no job holds counts as free only if at least this per cent of its memory is
        free of programs outside the queue.
    reorder_slack
        Seconds that short work may put off a job past its start in queue order, or half its run
        time where that is more; 0 keeps the queue's order.
    drained
        UUIDs of GPUs that take no new jobs; those that run there may end.
    fair_share
        Whether, within equal priority, whoever has had the least of the GPUs comes first.
    backfill
        Whether a job may start before one ahead of it where it delays nothing.
    starvation_guard
        Whether a waiting job holds back what it needs from those behind it. Without that, whatever
        fits starts, nobody is promised anything, and wide work may wait for ever.
    checkpoint
        Seconds between the points from which a preemptible job can go on; 0: it begins anew.
    lend
        To whom idle notebooks lend their compute: ``all``, ``preemptible`` jobs, or nobody
        (``off``). Who has borrowed already is not affected.
    lend_after, lend_again
        Seconds that a notebook must have computed nothing until it lends, and until those go on
        that had borrowed before.
    lend_patience
        Seconds that a borrower stands still until it may be put back to start elsewhere.
    overcommit
        Up to how many thousandths of each GPU notebooks may hold, if need be as borrowers.
    """

    slots: int
    shared_gpu: str | None = None
    packing: bool = True
    gpu_free_perc: int = 75
    reorder_slack: float = 3600.0
    backfill: bool = True
    drained: frozenset[str] = frozenset()
    fair_share: bool = False
    starvation_guard: bool = True
    checkpoint: float = 0.0
    lend: str = "all"
    lend_after: float = 60.0
    lend_again: float = 5.0
    overcommit: int = WHOLE
    lend_patience: float = 300.0


@dataclass(frozen=True, slots=True)
class Card:
    """One managed GPU and what is on it that the queue does not know.

    ``outside`` is bytes used by programs outside the queue; ``holders`` names them for people
    (``pid 4711 (alice, 3G)``).
    """

    gpu: Gpu
    outside: int = 0
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job is believed to take: run time in seconds, device memory in bytes per GPU.

    ``learned`` says that it comes from earlier runs, ``sound`` that such estimates have held; a
    job moves ahead of its turn only on a sound one. ``memory`` counts for a job that shares a GPU
    and has named none; for others it is only told.
    """

    run_time: float | None = None
    memory: int | None = None
    learned: bool = False
    sound: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision depends on, at one moment.

    Attributes
    ----------
    cards
        The managed GPUs, by index.
    waiting
        The queued jobs, in any order.
    running
        The jobs that hold a placement.
    parents
        The state of every job that a waiting job comes after; missing means gone.
    estimates
        By job id; a job that is missing here has only what its request says.
    latest
        Promises given earlier: by job id, the latest start in seconds since the epoch.
    usage
        GPU seconds that each owner had in the last 24 hours; only looked at for ``fair_share``.
    mode
        Who has the GPUs; while it is not the queue, nothing starts.
    idle
        The notebooks' kernels that compute nothing, and since when (seconds since the epoch).
    saves
        Ids of the running jobs that save when they are to make room: nothing of them is lost.
    """

    cards: tuple[Card, ...]
    waiting: tuple[Job, ...]
    running: tuple[Job, ...]
    policy: Policy
    parents: Mapping[int, JobState] = field(default_factory=dict)
    estimates: Mapping[int, Estimate] = field(default_factory=dict)
    latest: Mapping[int, float] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    mode: Mode = field(default_factory=Mode)
    idle: Mapping[int, float] = field(default_factory=dict)
    saves: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Need:
    """A request in this machine's own terms.

    Attributes
    ----------
    gpus
        Number of GPUs, 0 for CPU work.
    compute
        Thousandths of each GPU that are promised, rounded up to the GPUs' grain; 0 is no promise.
    memory
        Bytes of each GPU; None is unknown.
    whole
        Nobody else may be on its GPUs.
    light
        It sits on the shared GPU, among light jobs only.
    slots
        Slots it takes.
    exclusive
        It runs alone on the machine.
    """

    gpus: int
    compute: int
    memory: int | None
    whole: bool
    light: bool
    slots: int
    exclusive: bool


@dataclass(frozen=True, slots=True)
class Start:
    """Start this job now, here; ``borrows``: on compute that notebooks lend."""

    job: int
    placement: Placement
    borrows: bool = False


@dataclass(frozen=True, slots=True)
class Promise:
    """A waiting job's start in queue order when it was first seen, and the latest it may become.

    Both in seconds since the epoch. It is to be kept and given back in ``Snapshot.latest``.
    """

    job: int
    expected: float
    latest: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Cancel this waiting job, for this reason: it can never start."""

    job: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Ask this running job to stop, so that one of higher priority can start in its place."""

    job: int
    for_job: int


class WaitReason(StrEnum):
    """Why a job waits, for machines."""

    STARTING = "starting"
    GPU = "gpu"
    MEMORY = "memory"
    SLOTS = "slots"
    AFTER = "after"
    RESERVATION = "reservation"
    EXCLUSIVE = "exclusive"
    OUTSIDE = "outside use"
    DRAINED = "drained"
    NEVER = "never fits"
    FREE = "free mode"


@dataclass(frozen=True, slots=True)
class Wait:
    """Why one job waits, and until when.

    Attributes
    ----------
    position
        Its place in the queue, from 1.
    expected
        When it is expected to start (seconds since the epoch); None where nobody can know.
    reason, sentence
        For machines and for people.
    hint
        What would let it start sooner; empty where there is nothing to say.
    later_than
        For a job too deep in the queue to have an expected start: when its GPUs are free behind
        all that is reserved, at the earliest.
    by
        Where ``expected`` rests on learned run times: the end of the range in which it is likely
        to start, its promise. Of the starts on two real logs 1 to 4 % came later.
    """

    position: int
    expected: float | None
    reason: WaitReason
    sentence: str
    hint: str = ""
    later_than: float | None = None
    by: float | None = None
