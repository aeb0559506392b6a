"""What the controller knows of the machine, as a fact in the store, and the snapshot for the plan.

Clients build the same snapshot from the same facts, so that what they show about waiting is what
the controller would decide.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuqueue.control.leading import lead_of
from gpuqueue.errors import InvalidRequest
from gpuqueue.gpus import detect
from gpuqueue.model import ACTIVE, WHOLE, Gpu, Job, JobState, Mode, Reading
from gpuqueue.plan import Card, Estimate, Policy, Snapshot
from gpuqueue.run.process import children_map, descendants, is_elsewhere
from gpuqueue.settings import Settings
from gpuqueue.store import Store, gpu_from, plain, reading_from
from gpuqueue.units import format_bytes

__all__ = [
    "CARDS",
    "FACT",
    "IDLE",
    "Machine",
    "idle_of",
    "machine_of",
    "managed_gpus",
    "policy_of",
    "seen_on",
    "snapshot_of",
    "usage_of",
]

FACT = "machine"
IDLE = "idle"
"""Name of the fact: the notebooks' kernels that compute nothing, and since when, by job."""
CARDS = "cards"
"""Name of the fact: what is known of the GPUs that are or were here, by UUID."""
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs of this host, what they said last, and who uses them outside the queue.

    ``outside`` maps a GPU's UUID to bytes used and the words for who uses them; ``used`` maps a
    job's number to the bytes that its processes hold on each of its GPUs, where the driver tells.
    ``users`` are the processes (pids) of each job that the driver sees on its GPUs; they are not
    published. ``silent`` says that the driver does not answer.
    """

    gpus: tuple[Gpu, ...] = ()
    readings: tuple[Reading, ...] = ()
    outside: Mapping[str, tuple[int, tuple[str, ...]]] | None = None
    used: Mapping[int, Mapping[str, int]] | None = None
    problem: str = ""
    silent: bool = False
    users: Mapping[int, frozenset[int]] | None = field(default=None, compare=False)

    def as_fact(self) -> dict[str, Any]:
        """JSON form, for the store."""
        return {
            "gpus": [plain(gpu) for gpu in self.gpus],
            "readings": [plain(reading) for reading in self.readings],
            "outside": {u: [b, list(w)] for u, (b, w) in (self.outside or {}).items()},
            "used": {str(job): dict(by_gpu) for job, by_gpu in (self.used or {}).items()},
            "problem": self.problem,
            "silent": self.silent,
        }

    @classmethod
    def from_fact(cls, fact: Mapping[str, Any]) -> Machine:
        """The machine from its JSON form."""
        return cls(
            tuple(gpu_from(item) for item in fact["gpus"]),
            tuple(reading_from(item) for item in fact["readings"]),
            {u: (b, tuple(w)) for u, (b, w) in fact["outside"].items()},
            {int(job): by_gpu for job, by_gpu in fact.get("used", {}).items()},
            fact["problem"],
            fact.get("silent", False),
        )


def machine_of(store: Store, settings: Settings) -> Machine:
    """The machine as the lead last saw it, or looked at now if none has led here yet."""
    fact = store.fact(FACT)
    # of a lead that is gone it may be long out of date: a driver that was loaded since
    if fact is not None and lead_of(store) is not None:
        return Machine.from_fact(fact)
    try:
        devices = detect(settings.fake_gpus)
    except InvalidRequest as error:
        return Machine(problem=str(error))
    try:
        return Machine(devices.gpus(), devices.read(), problem=devices.problem)
    finally:
        devices.close()


def seen_on(
    gpus: Sequence[Gpu],
    readings: Sequence[Reading],
    jobs: Iterable[Job],
    problem: str = "",
    *,
    silent: bool = False,
) -> Machine:
    """Put together what the driver tells with whose processes they are."""
    running = [job for job in jobs if job.state in ACTIVE]
    owners: dict[int, int] = {}
    if any(reading.processes for reading in readings):
        children = children_map()
        for job in running:
            if job.process is not None and not is_elsewhere(job.process):
                tree = (job.process.pid, *descendants(job.process.pid, children))
                owners |= dict.fromkeys(tree, job.id)
    places = {job.id: set(job.placement.gpus) for job in running if job.placement}
    held = {gpu for gpus_of in places.values() for gpu in gpus_of}
    outside: dict[str, tuple[int, tuple[str, ...]]] = {}
    used: dict[int, dict[str, int]] = {}
    for gpu, reading in zip(gpus, readings, strict=False):
        for process in reading.processes:
            if process.pid in owners and process.memory:
                mine = used.setdefault(owners[process.pid], {})
                mine[gpu.uuid] = mine.get(gpu.uuid, 0) + process.memory
        at_home = {pid for pid, job in owners.items() if gpu.uuid in places.get(job, ())}
        strangers = [process for process in reading.processes if process.pid not in at_home]
        if amount := _outside(reading, at_home, claimed=gpu.uuid in held):
            words = (_holder(p.pid, p.memory, owners.get(p.pid)) for p in strangers)
            outside[gpu.uuid] = (amount, tuple(words))
    users: dict[int, frozenset[int]] = {}
    for process in (process for reading in readings for process in reading.processes):
        if process.pid in owners:
            job_id = owners[process.pid]
            users[job_id] = users.get(job_id, frozenset()) | {process.pid}
    return Machine(tuple(gpus), tuple(readings), outside, used, problem, silent, users)


def _outside(reading: Reading, at_home: Collection[int], *, claimed: bool) -> int:
    """Bytes used on a GPU by others than the jobs that were given it (``at_home``, pids)."""
    total = reading.memory_used or 0
    if not claimed:
        return total
    mine = [process.memory for process in reading.processes if process.pid in at_home]
    if None in mine or not reading.processes:
        # nobody can tell whose it is: count only what strangers are known to hold
        return sum(p.memory or 0 for p in reading.processes if p.pid not in at_home)
    return max(0, total - sum(memory or 0 for memory in mine))


def _holder(pid: int, memory: int | None, job: int | None) -> str:
    if job is not None:
        return f"job {job}, which was not given it ({format_bytes(memory)})"
    import psutil

    user, notebook = "?", ""
    with contextlib.suppress(psutil.Error, KeyError):
        process = psutil.Process(pid)
        user = process.username()
        # Jupyter's servers tell a kernel its notebook, and what it starts inherits that
        notebook = os.path.basename(process.environ().get("JPY_SESSION_NAME", ""))
    who = f"notebook {notebook}, " if notebook.endswith(".ipynb") else ""
    return f"{who}pid {pid} ({user}, {format_bytes(memory)})"


def idle_of(store: Store) -> dict[int, float]:
    """The notebooks that compute nothing, as the lead last saw them, and since when."""
    return {int(job): since for job, since in (store.fact(IDLE) or {}).items()}


def policy_of(settings: Settings, gpus: Sequence[Gpu], *, silent: bool = False) -> Policy:
    """The scheduler's rules on this machine; GPUs whose driver is silent take no new jobs."""
    managed = managed_gpus(settings, gpus)
    slots = settings.slots or 2 * len(managed) or max(1, (os.cpu_count() or 1) // 2)
    by_index = {gpu.index: gpu.uuid for gpu in managed}
    shared = by_index.get(settings.shared_gpu) or (managed[-1].uuid if managed else None)
    return Policy(
        slots,
        shared,
        settings.packing,
        settings.gpu_free_perc,
        settings.reorder_slack,
        settings.backfill,
        frozenset(uuid for index, uuid in by_index.items() if silent or index in settings.drained),
        settings.fair_share,
        settings.starvation_guard,
        lend=settings.lend,
        lend_after=max(settings.lend_after, settings.lend_again),
        lend_again=settings.lend_again,
        overcommit=round(settings.kernel_overcommit * WHOLE),
        lend_patience=settings.lend_patience,
    )


def managed_gpus(settings: Settings, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs that the queue may use."""
    wanted = set(settings.gpus)
    return tuple(gpu for gpu in gpus if not wanted or gpu.index in wanted)


def usage_of(store: Store, settings: Settings, machine: Machine, now: float) -> Mapping[str, float]:
    """GPU seconds of each owner in the last 24 hours; empty unless ``fair_share`` is on.

    A job that was promised no compute counts by its part of the memory.
    """
    if not settings.fair_share:
        return {}
    totals = {gpu.uuid: gpu.memory or 0 for gpu in machine.gpus}
    begin = now - _DAY
    used: dict[str, float] = {}
    for owner, gpu, compute, lent, memory, since, until in store.usage(begin):
        part = (compute - lent) / WHOLE
        if not compute and totals.get(gpu):
            part = min(1.0, memory / totals[gpu])
        seconds = (now if until is None else until) - max(since, begin)
        used[owner] = used.get(owner, 0.0) + part * max(0.0, seconds)
    return used


def _learned(job: Job) -> Estimate | None:
    """What earlier runs taught of a job, as far as it did not say so itself."""
    run_time = job.learned if job.request.eta is None else None
    memory = job.learned_memory if job.request.memory is None else None
    if run_time is None:
        return None if memory is None else Estimate(memory=memory)
    return _estimate(run_time, memory, job.sound)


@lru_cache(maxsize=1024)
def _estimate(run_time: float, memory: int | None, sound: bool) -> Estimate:
    """Jobs of one command share theirs: a long queue has a plan several times a second."""
    return Estimate(run_time, memory, learned=True, sound=sound)


def snapshot_of(
    jobs: Iterable[Job],
    parents: Mapping[int, JobState],
    machine: Machine,
    settings: Settings,
    usage: Mapping[str, float] | None = None,
    *,
    mode: Mode | None = None,
    saves: frozenset[int] = frozenset(),
    idle: Mapping[int, float] | None = None,
) -> Snapshot:
    """All that a plan depends on; ``usage`` as of ``usage_of``, for ``fair_share``.

    ``idle`` are the notebooks that compute nothing, and since when (``idle_of``).
    """
    waiting, running = [], []
    for job in jobs:
        if job.state is JobState.QUEUED:
            waiting.append(job)
        elif job.state in ACTIVE:
            running.append(job)
    outside = machine.outside or {}
    cards = tuple(
        Card(gpu, *outside.get(gpu.uuid, (0, ()))) for gpu in managed_gpus(settings, machine.gpus)
    )
    policy = policy_of(settings, machine.gpus, silent=machine.silent)
    latest = {job.id: job.latest for job in waiting if job.latest is not None}
    estimates = {
        job.id: estimate for job in (*waiting, *running) if (estimate := _learned(job)) is not None
    }
    return Snapshot(
        cards, tuple(waiting), tuple(running), policy, parents, estimates, latest, usage or {},
        mode or Mode(), idle or {}, saves,
    )  # fmt: skip
