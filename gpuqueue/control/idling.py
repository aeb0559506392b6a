"""Which notebooks that hold a share compute nothing, and since when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpuqueue.control.machine import IDLE, Machine
from gpuqueue.model import ACTIVE, Job, JobKind, JobState, Reading
from gpuqueue.paths import Home
from gpuqueue.run.kernelshare import activity, is_coming_up, is_restarting, mark_lending
from gpuqueue.settings import Settings
from gpuqueue.store import Store

__all__ = ["Idling"]

_COMING_UP = 10.0
"""Seconds in which a notebook that has borrowed and has told nothing yet is let come up."""
_AT_WORK = 5
"""Per cent of a GPU's time from which on somebody computes there."""

Key = tuple[int, int]
"""A job and its attempt."""


class Idling:
    """Goes by what kernels tell of their cells, and by the GPUs where the driver tells of those.

    A kernel that does not tell counts as one that computes. What is remembered here is only what
    was seen; a lead that begins sees it anew.
    """

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._store = store
        self._idle: dict[Key, float] = {}
        self._written: dict[Key, float] = {}
        self._worked: dict[Key, float] = {}
        self._marked: set[Key] = set()
        self._told: dict[str, float] | None = None

    @property
    def since(self) -> dict[int, float]:
        """The notebooks that have rested for a while, and since when (seconds since the epoch)."""
        return {key[0]: self._idle[key] for key in self._marked if key in self._idle}

    def look(
        self,
        jobs: Mapping[int, Job],
        machine: Machine,
        settings: Settings,
        now: float,
        *,
        tick: bool,
    ) -> None:
        """See who idles: all of them once a second, at other times those that may be lending."""
        some = jobs.values() if tick else [jobs[id_] for id_, _ in self._marked if id_ in jobs]
        kernels = {
            (job.id, job.attempt): job
            for job in some
            if job.kind is JobKind.KERNEL and job.state in ACTIVE and job.uses_gpu
        }
        if tick and kernels:
            self._watch_gpus(kernels, jobs.values(), machine, now)
        for key, job in kernels.items():
            self._see(key, job, now)
            self._mark(key, job, now, settings.lend_again)
        if tick:
            self._marked &= kernels.keys()
            for known in (self._idle, self._written, self._worked):
                for key in known.keys() - kernels.keys():
                    del known[key]
            self._tell()

    def _see(self, key: Key, job: Job, now: float) -> None:
        since = self._since(key, job, now)
        if since is None:
            self._idle.pop(key, None)
        else:
            self._idle[key] = max(since, self._worked.get(key, 0.0))

    def _since(self, key: Key, job: Job, now: float) -> float | None:
        """Since when no cell runs; None while one does, and where nobody knows."""
        folder = self._home.attempt(*key)
        busy, written = activity(folder)
        if busy is None:
            young = job.started is not None and now - job.started < _COMING_UP
            young = young or is_coming_up(folder, job.started, _COMING_UP)
            # one that has borrowed its compute needs to come up before it can tell
            return 0.0 if job.borrows and young else None
        if busy or written is None or is_restarting(folder):
            return None
        if self._written.get(key) == written and key in self._idle:
            return min(self._idle[key], now)  # whatever the clock was set to meanwhile
        self._written[key] = written
        return min(written, now)

    def _mark(self, key: Key, job: Job, now: float, patience: float) -> None:
        """Have a notebook ring as its next cell begins, once it may lend; it is seen again then.

        A cell that begins in between is seen so, or has seen the mark and rings.
        """
        lends = key in self._idle and now - self._idle[key] >= patience
        if lends and key not in self._marked:
            mark_lending(self._home.attempt(*key), lends=True)
            self._marked.add(key)
            self._see(key, job, now)
            lends = key in self._idle
        if not lends and key in self._marked:
            self._marked.discard(key)
            mark_lending(self._home.attempt(*key), lends=False)

    # -- the GPUs ----------------------------------------------------------------------------

    def _watch_gpus(
        self, kernels: Mapping[Key, Job], jobs: Iterable[Job], machine: Machine, now: float
    ) -> None:
        """Note which notebooks use a GPU whether or not a cell runs, where that can be known."""
        users = machine.users or {}
        still = [job.id for job in jobs if job.state is JobState.FROZEN]
        calm = {pid for job in still for pid in users.get(job, ())}
        for reading in machine.readings:
            pids = {process.pid for process in reading.processes}
            there = {key: users[key[0]] & pids for key in kernels if users.get(key[0])}
            there = {key: own for key, own in there.items() if own}
            at_work = {process.pid for process in reading.processes if process.utilization}
            for key, own in there.items():
                if own & at_work or self._must_be(there, pids - calm, reading):
                    self._worked[key] = now

    def _must_be(
        self, there: Mapping[Key, Collection[int]], pids: set[int], reading: Reading
    ) -> bool:
        """Whether what a GPU does can only be the work of notebooks in which no cell runs."""
        if (reading.utilization or 0) < _AT_WORK:
            return False
        if any(process.utilization is not None for process in reading.processes):
            return False  # the driver tells who it is
        if pids - {pid for own in there.values() for pid in own}:
            return False
        return all(activity(self._home.attempt(*key))[0] is False for key in there)

    def _tell(self) -> None:
        """Publish who rests, for clients plan with it, too."""
        told = {str(job): since for job, since in sorted(self.since.items())}
        if self._told is None:
            self._told = self._store.fact(IDLE) or {}
        if told != self._told:
            self._store.set_fact(IDLE, told)
            self._told = told
