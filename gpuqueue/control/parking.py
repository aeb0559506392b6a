"""Moving the GPU memory of jobs that are frozen to the host, and back before they go on.

It takes seconds and asks a driver, so a thread does it for each job. That a job's memory is on the
host, the file ``device.json`` of its attempt says from before the first step on, so that a lead
which takes over brings it back. Nothing is moved before it has been tried on this machine, with a
process of our own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf

from gpuqueue.control.proving import Prover
from gpuqueue.control.runners import go_on, keep_still
from gpuqueue.control.sight import Sight
from gpuqueue.model import ACTIVE, Job, JobKind, JobState, Mode
from gpuqueue.paths import Home
from gpuqueue.run.devicestate import NotMoved, bring_back, move_out
from gpuqueue.run.memory import free_memory
from gpuqueue.run.parked import Parked, forget_parked, parked_in, write_parked
from gpuqueue.run.process import alive, descendants, environment_of, identify, is_elsewhere
from gpuqueue.run.wake import ring
from gpuqueue.settings import SettingsFile
from gpuqueue.units import format_bytes, format_duration

log = logging.getLogger("gpuqueue")

__all__ = ["Parking", "Return"]

_SPARE = 1 << 30
"""Bytes of the host's memory that are left alone."""
_START, _SLOWEST = 30.0, 500e6
"""Seconds for a copy to begin, and bytes a second at least from then on."""
_GRACE = 30.0
"""Seconds beyond that for a way to the host to end: for the lock, and for taking it back."""
_AGAIN = 10.0
"""Seconds until a failed way back is tried again."""
_MOST = 3
"""How often it is tried."""
_LAG = 2.5
"""Seconds that a reading of the GPUs may be behind."""
_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_ELSEWHERE = "it runs in another container"
_STAYS = "its GPU memory stays where it is"
_NOT_BACK = "its GPU memory is on the host and could not be brought back"

Key = tuple[int, int]
"""A job and its attempt."""


class Return(Enum):
    """How far a job's memory is on its way back."""

    WAITS = auto()
    UNDER_WAY = auto()
    BACK = auto()
    LOST = auto()
    """It was tried often enough."""


@dataclass(slots=True)
class _Way:
    """One way to the host or back; its thread ends with ``busy = False``.

    ``well`` says that the memory is where the way leads, or may be; ``late`` from when on a job is
    frozen all the same.
    """

    busy: bool = True
    well: bool = False
    late: float = inf
    words: str = ""
    failures: int = 0
    again: float = 0.0


class Parking:
    """What it remembers is only how far it is; the rest is in the jobs' directories."""

    def __init__(self, home: Home, settings: SettingsFile, sight: Sight, prover: Prover) -> None:
        self._home = home
        self._settings = settings
        self._sight = sight
        self._prover = prover
        self._out: dict[Key, _Way] = {}
        self._back: dict[Key, _Way] = {}
        self._parked: dict[Key, Parked] = {}
        self._looked: set[Key] = set()
        self._read_again = 0.0

    def look(self, jobs: Mapping[int, Job], mode: Mode) -> None:
        """Once a second: see whether it works here, if nobody knows, and forget what has ended."""
        if self._settings.current.move_gpu_memory and mode.normal:
            self._prover.look(self._sight, jobs.values())
        here = {(job.id, job.attempt) for job in jobs.values() if job.state in ACTIVE}
        for gone in self._parked.keys() - here:
            del self._parked[gone]
        for ways in (self._out, self._back):
            for gone in ways.keys() - here:
                del ways[gone]
        self._looked &= here

    def is_out(self, job: Job) -> bool:
        """Whether a job's memory is on the host, or being moved either way."""
        key = (job.id, job.attempt)
        if key not in self._looked:  # another lead may have moved it
            self._looked.add(key)
            if (found := parked_in(self._home.attempt(*key))) is not None:
                self._parked[key] = found
        return key in self._parked

    # -- to the host --------------------------------------------------------------------------

    def move(self, job: Job) -> str | None:
        """Move a job's memory to the host, before it is frozen.

        None while it is under way; then words to add to why it is frozen.
        """
        key = (job.id, job.attempt)
        way = self._out.get(key)
        if way is None:
            found = self._may_move(job)
            if isinstance(found, str):
                return found and f"; {_STAYS}: {found}"
            patience = _time_for(found) + _GRACE
            self._out[key] = way = _Way(late=time.monotonic() + patience)
            self._parked[key] = found
            self._begin(way, lambda: self._move(key, found, way), _STAYS)
        if way.busy:
            if time.monotonic() < way.late:
                return None
            patience = _time_for(self._parked[key]) + _GRACE
            lacking = f"its GPU memory has not come to the host within {format_duration(patience)}"
            return f"; {way.words if way.well else lacking}"
        del self._out[key]
        # the note goes once it is known that nothing is on the host
        if not way.well and parked_in(self._home.attempt(*key)) is None:
            del self._parked[key]
        return f"; {way.words}"

    def _may_move(self, job: Job) -> Parked | str:
        """What to move; else why not, empty where there is nothing to say of it."""
        if self.is_out(job):  # a lead before this one has begun
            found = self._parked[job.id, job.attempt]
            if is_elsewhere(found.process):
                return ""
            if alive(found.process):
                return found
            self._forget(job)
        problem = self._prover.problem(self._sight)
        if problem is None or job.process is None or not self._settings.current.move_gpu_memory:
            return ""
        if problem or is_elsewhere(job.process):
            return problem or _ELSEWHERE
        by_gpu, pids = self._seen_of(job.process.pid, whole=job.kind is JobKind.KERNEL)
        processes = [process for pid in pids if (process := identify(pid)) is not None]
        if not processes:
            return ""
        if len(processes) > 1:
            return "several of its processes use a GPU, and they may wait for each other"
        if _MPS in environment_of(processes[0].pid):
            return "it shares its GPU through MPS, whose programs cannot be moved"
        need, free = sum(by_gpu.values()), free_memory()
        moving = sum(self._parked[key].size for key, way in self._out.items() if way.busy)
        if free - moving - _SPARE < need:
            free_now = format_bytes(max(0, free - moving))
            return f"{format_bytes(need)}, and {free_now} of the machine's memory are free"
        return Parked(processes[0], by_gpu)

    def _seen_of(self, runner: int, *, whole: bool) -> tuple[dict[str, int], set[int]]:
        """Bytes of each GPU that processes below a runner hold, and their pids.

        ``whole`` counts the process itself, too: a notebook's kernel, which has no runner.
        """
        tree = {*descendants(runner), *((runner,) if whole else ())}
        by_gpu: dict[str, int] = {}
        pids: set[int] = set()
        for reading in self._sight.machine.readings:
            for process in reading.processes:
                if process.pid in tree:
                    pids.add(process.pid)
                    # where it is not told of a process, it is no more than all that is used
                    size = reading.memory_used if process.memory is None else process.memory
                    by_gpu[reading.gpu] = by_gpu.get(reading.gpu, 0) + (size or 0)
        return by_gpu, pids

    def _forget(self, job: Job) -> None:
        """The process whose memory it was has ended."""
        del self._parked[job.id, job.attempt]
        forget_parked(self._home.attempt(job.id, job.attempt))

    def _move(self, key: Key, parked: Parked, way: _Way) -> None:
        folder = self._home.attempt(*key)
        noted = parked_in(folder)
        if noted is None or noted.process != parked.process:  # one of a lead before is as good
            write_parked(folder, parked)
        try:
            move_out(self._prover.tool, parked.process.pid, _time_for(parked))
        except NotMoved as error:
            way.words = f"{_STAYS}: {error}"
            way.well = error.stuck
            if error.stuck:
                self._note(key, way, replace(parked, left=parked.memory))
            else:
                forget_parked(folder)
            return
        way.well = True  # whatever goes wrong from here on
        way.words = "its GPU memory is on the host"
        left = self._left(parked)
        self._note(key, way, replace(parked, left=left))
        there = sum(left.values())
        way.words = f"{format_bytes(max(0, parked.size - there))} of its GPU memory are on the host"
        if there:
            way.words += f", {format_bytes(there)} stay where they are"

    def _note(self, key: Key, way: _Way, parked: Parked) -> None:
        """Note what is left, if there is room; not after it has been given up and brought back."""
        if self._out.get(key) is way:
            with contextlib.suppress(OSError):
                write_parked(self._home.attempt(*key), parked)

    def _left(self, parked: Parked) -> dict[str, int]:
        """Bytes that the process is seen to hold of GPUs, once the readings follow."""
        deadline = time.monotonic() + _LAG
        while left := self._prover.held(self._sight, parked.process.pid):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return left

    # -- back ---------------------------------------------------------------------------------

    def is_coming(self, job: Job) -> bool:
        """Whether a job's memory is on its way back, or there: its processes must not stand."""
        way = self._back.get((job.id, job.attempt))
        return way is not None and (way.busy or way.well)

    @property
    def any_out(self) -> bool:
        """Whether it is known of a job that its memory is on the host."""
        return bool(self._parked)

    def bring(self, job: Job) -> tuple[Return, str]:
        """Bring a job's memory back where there is room for it; what it waits for, in words."""
        key = (job.id, job.attempt)
        moving = self._out.get(key)
        if moving is not None and moving.busy:
            given_up = moving.well and time.monotonic() > moving.late  # only a reading is awaited
            if not given_up:
                return Return.UNDER_WAY, ""
        self._out.pop(key, None)
        way = self._back.setdefault(key, _Way(busy=False))
        if way.busy:
            return Return.UNDER_WAY, ""
        if way.well:
            del self._back[key], self._parked[key]
            return Return.BACK, ""
        if way.failures >= _MOST:
            return Return.LOST, way.words
        now = time.monotonic()
        others = any(other.busy for other in self._back.values())
        if others or now < max(way.again, self._read_again):
            return Return.WAITS, way.words
        if lacking := self._lacks_room(self._parked[key]):
            way.words = lacking
            return Return.WAITS, lacking
        way.busy = True
        parked = self._parked[key]
        self._begin(way, lambda: self._bring(job, parked, way), _NOT_BACK)
        return Return.UNDER_WAY, ""

    def _lacks_room(self, parked: Parked) -> str:
        machine = self._sight.machine
        gpus = {gpu.uuid: gpu for gpu in machine.gpus}
        for reading in machine.readings:
            need, gpu = parked.memory.get(reading.gpu, 0), gpus.get(reading.gpu)
            if not need or gpu is None or gpu.memory is None or reading.memory_used is None:
                continue  # nobody can tell
            pid = parked.process.pid
            there = sum(p.memory or 0 for p in reading.processes if p.pid == pid)
            free = gpu.memory - reading.memory_used
            if free < need - there:
                waits = f"waits for {format_bytes(need)} of GPU {gpu.index} to be free"
                return f"its GPU memory is on the host and {waits}"
        return ""

    def _bring(self, job: Job, parked: Parked, way: _Way) -> None:
        folder = self._home.attempt(job.id, job.attempt)
        runners = [] if job.process is None else [(folder, job.process)]
        go_on(runners)
        try:
            if is_elsewhere(parked.process):
                raise NotMoved(_ELSEWHERE)
            if alive(parked.process):
                bring_back(self._prover.tool, parked.process.pid, _time_for(parked))
        except NotMoved as error:
            if not is_elsewhere(parked.process) and not alive(parked.process):
                way.well = True  # it has ended; how, its runner tells
                return
            if job.state is JobState.FROZEN:  # not an idle kernel, which was never stopped
                keep_still(runners)
            way.failures += 1
            way.again = time.monotonic() + _AGAIN
            way.words = f"{_NOT_BACK}: {error}"
        else:
            forget_parked(folder)
            way.well = True
        finally:
            self._read_again = time.monotonic() + _LAG

    def _begin(self, way: _Way, work: Callable[[], None], failed: str) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:
                if not isinstance(error, OSError):  # such as no room to note where it is
                    log.exception("gpuqueue: moving GPU memory went wrong")
                way.failures += 1
                way.again = time.monotonic() + _AGAIN
                if not way.well:
                    way.words = f"{failed}: {error}"
            finally:
                way.busy = False
                ring(self._home.wake, "parked")

        threading.Thread(target=run, name="gpuqueue-parking", daemon=True).start()


def _time_for(parked: Parked) -> float:
    return _START + parked.size / _SLOWEST
