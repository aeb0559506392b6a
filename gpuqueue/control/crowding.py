"""A tip, once: jobs that share a GPU and keep it busy all the time gain nothing by sharing it.

What is shared well is work that comes in bursts, as a notebook's does. Of jobs that each saturate
the GPU the sum is at best what one alone would get done (``docs/shares.md`` has figures).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from gpuqueue.control.machine import Machine
from gpuqueue.control.turn import Turn
from gpuqueue.model import Gpu, Job, JobState
from gpuqueue.store import Store

__all__ = ["CROWDED", "FACT", "Crowding", "sentences", "sharers"]

CROWDED = "crowded"
"""The event that tells a job of it."""
FACT = "crowded"
"""Name of the fact: of which GPUs that was told, and to which jobs."""
_BUSY = 90
"""Per cent of the time; the driver's reading is of the second or so before it."""
_FOR = 60.0
"""Seconds for which it has to be seen at every reading: less is a burst."""


class Crowding:
    """Watches for it. ``clock`` is in seconds, and only goes on."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._since: dict[str, tuple[frozenset[int], float]] = {}

    def look(self, turn: Turn, machine: Machine) -> None:
        """Note it of the jobs of a GPU that was busy for long, and to whom it was not told yet."""
        now = self._clock()
        busy = {r.gpu for r in machine.readings if (r.utilization or 0) >= _BUSY}
        seen: dict[str, tuple[frozenset[int], float]] = {}
        for gpu in machine.gpus:
            jobs = sharers(gpu, turn.jobs.values())
            if gpu.uuid in busy and len(jobs) > 1:
                was, since = self._since.get(gpu.uuid, (frozenset(), now))
                seen[gpu.uuid] = (jobs, since if was == jobs else now)
        self._since = seen
        due = {gpu for gpu, (_, since) in seen.items() if now - since >= _FOR}
        if due:
            self._tell(turn, [gpu for gpu in machine.gpus if gpu.uuid in due])

    def _tell(self, turn: Turn, gpus: Iterable[Gpu]) -> None:
        told = dict(self._store.fact(FACT) or {})
        for gpu in gpus:
            jobs = sorted(self._since[gpu.uuid][0])
            if told.get(gpu.uuid) == jobs:
                continue
            told[gpu.uuid] = jobs
            words = {"gpu": gpu.index, "sentence": _sentence(gpu, len(jobs))}
            turn.notes += [(job, CROWDED, words) for job in jobs]
            self._store.set_fact(FACT, told)


def sharers(gpu: Gpu, jobs: Iterable[Job]) -> frozenset[int]:
    """Numbers of the running jobs that have a part of a GPU."""
    return frozenset(
        job.id
        for job in jobs
        if job.state is JobState.RUNNING and job.placement is not None
        for grant in job.placement.grants
        if grant.gpu == gpu.uuid and not grant.whole
    )


def sentences(
    fact: Mapping[str, list[int]] | None, gpus: Iterable[Gpu], jobs: Iterable[Job]
) -> tuple[str, ...]:
    """What there is to be said now: of GPUs that those jobs still share."""
    running = tuple(jobs)
    return tuple(
        _sentence(gpu, len(told))
        for gpu in gpus
        if (told := (fact or {}).get(gpu.uuid)) and set(told) == sharers(gpu, running)
    )


def _sentence(gpu: Gpu, count: int) -> str:
    return (
        f"The {count} jobs that share GPU {gpu.index} keep it busy all the time: one after the "
        "other they would get as much done, or more. Sharing pays for work that comes in bursts."
    )
