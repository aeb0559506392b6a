"""After a rescue of the database: what the job directories tell of jobs that it has lost.

A job whose entry is gone never begins: what it asked for (its GPUs, what it comes after) went with
the entry. One that had begun is followed to its end like any other.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuqueue.control.autofree import PERSON
from gpuqueue.control.lending import PAUSE
from gpuqueue.control.outcome import void
from gpuqueue.model import (
    TERMINAL,
    WHOLE,
    Event,
    Gpu,
    Grant,
    Job,
    JobKind,
    JobState,
    Mode,
    ModeName,
    Origin,
    Placement,
    Request,
)
from gpuqueue.paths import Home
from gpuqueue.run.files import SPEC, read_claim, read_exit, read_json
from gpuqueue.run.freezing import was_frozen
from gpuqueue.run.kernelshare import read_grant
from gpuqueue.run.process import descendants, environment_of
from gpuqueue.store import RESCUE, Store, placement_from

__all__ = ["adopt"]

log = logging.getLogger("gpuqueue")

_NEVER_BEGAN = (
    "its entry was lost with the damaged state database before it began, and it was not run; "
    "submit it again"
)
_WAITED = (
    "its entry was lost with the damaged state database while it waited to run again; submit it "
    "again"
)
_NO_SPEC = (
    "what was to be run was lost with the damaged state database, and it was not run; submit it "
    "again"
)
_RESUME = "jupyter gpuqueue resume"


def adopt(home: Home, store: Store, gpus: Iterable[Gpu]) -> None:
    """Take in what a rescue has left to the directories; once, by the next lead."""
    newest = store.newest()
    if any(number > newest and _attempts(home.job(number)) for number in _directories(home)):
        # a submit that was cut off leaves a directory too, but nothing has begun there
        store.mend("its log is gone: jobs have begun that it does not know")
    fact = store.fact(RESCUE)
    if not fact or fact["seen"]:
        return
    log.warning("gpuqueue: %s", fact["words"])
    now = time.time()
    rows = {job.id: job for job in store.live()}
    for job in rows.values():
        _check(home, store, job, now)
    for number in store.unknown_jobs(_directories(home)):
        found = _Found.of(home, store, number)
        job = found.job(now, tuple(gpus))
        with store.transaction() as db:
            store.take_in(db, job, now)
    if store.mode().normal and any(_stands_still(home, job) for job in store.live()):
        # the mode is lost, too: else nobody would let these go on, and others would start
        log.warning("gpuqueue: jobs are frozen, so free mode goes on until `%s`", _RESUME)
        store.keep_mode(Mode(name=ModeName.FREEING, by=PERSON, soft=True, since=now))
    store.set_fact(RESCUE, fact | {"seen": True})


def _directories(home: Home) -> list[int]:
    try:
        return [int(name) for name in os.listdir(home.jobs) if name.isdigit()]
    except OSError:
        return []


def _attempts(folder: Path) -> int:
    """How many attempts have a folder."""
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=0)
    except OSError:
        return 0


def _stands_still(home: Home, job: Job) -> bool:
    """Whether free mode has frozen it, by its entry or by its processes."""
    if job.state is JobState.FROZEN:
        return job.asked != PAUSE
    runner = read_claim(home.attempt(job.id, job.attempt))
    return job.uses_gpu and runner is not None and was_frozen(runner)


def _check(home: Home, store: Store, job: Job, now: float) -> None:
    """See that an entry that was saved fits what is in its directory."""
    newest = _attempts(home.job(job.id))
    if newest > job.attempt and job.placement is not None:
        # it went further than the part of the database that could be read
        after = replace(job, state=JobState.STARTING, attempt=newest, process=None, asked="")
        with store.transaction() as db:
            store.move(db, job, after, "starting", now)
    elif job.state is JobState.QUEUED and not _spec(home, store, job.id):
        after = replace(job, state=JobState.FAILED, ended=now, reason=_NO_SPEC)
        with store.transaction() as db:
            store.move(db, job, after, "ended", now)


def _spec(home: Home, store: Store, job_id: int) -> Mapping[str, Any] | None:
    text = store.spec(job_id)
    spec: Mapping[str, Any] | None
    spec = json.loads(text) if text else read_json(home.job(job_id) / SPEC)
    return spec


@dataclass(frozen=True, slots=True)
class _Found:
    """What is left of a job without its entry."""

    id: int
    folder: Path
    spec: Mapping[str, Any]
    events: list[Event]
    attempt: int
    held: Placement | None

    @classmethod
    def of(cls, home: Home, store: Store, job_id: int) -> _Found:
        folder = home.job(job_id)
        attempt = _attempts(folder)
        spec = _spec(home, store, job_id) or {}
        held = store.held(job_id, attempt)
        if grant := read_grant(folder / str(attempt)):
            spec, held = {"kind": JobKind.KERNEL}, None
            with contextlib.suppress(KeyError, TypeError):  # another version's
                held = placement_from(grant["placement"])
        return cls(job_id, folder, spec, store.events(job_id=job_id), attempt, held)

    def job(self, now: float, gpus: tuple[Gpu, ...]) -> Job:
        """Its entry, as well as it can be told."""
        argv = self.spec.get("argv", [])
        kind = JobKind(self.spec.get("kind", JobKind.SCRIPT))
        base = Job(
            id=self.id,
            kind=kind,
            state=JobState.FAILED,
            request=Request(),
            tag="recovered",
            owner=getpass.getuser(),
            command=shlex.join(argv) if kind is JobKind.SCRIPT and argv else f"({kind})",
            cwd=self.spec.get("cwd", ""),
            origin=Origin(),
            submitted=self.events[0].at if self.events else self._made(now),
            position=self.id,
            attempt=self.attempt,
        )
        return replace(base, **self._state(now, gpus))

    def _made(self, now: float) -> float:
        try:
            return self.folder.stat().st_mtime
        except OSError:
            return now

    def _state(self, now: float, gpus: tuple[Gpu, ...]) -> dict[str, Any]:
        told = [event for event in self.events if "state" in event.data]
        if told and told[-1].data["state"] in TERMINAL:
            last = told[-1]
            return {
                "state": JobState(last.data["state"]), "ended": last.at,
                "returncode": last.data.get("returncode"), "reason": last.data.get("reason", ""),
            }  # fmt: skip
        if self.attempt and told and told[-1].data["state"] == JobState.QUEUED:
            return {"ended": now, "reason": _WAITED}
        newest = self.folder / str(self.attempt)
        if not self.attempt or (read_claim(newest) is None and void(newest)):
            return {"ended": now, "reason": _NEVER_BEGAN}
        if read_exit(newest) is not None:
            return {"state": JobState.STARTING, "placement": Placement(slots=1)}
        # the next turn finds its claim, and follows it or calls it lost
        placement = self.held or _placement(newest, gpus)
        return {"state": JobState.STARTING, "placement": placement}


def _placement(folder: Path, gpus: tuple[Gpu, ...]) -> Placement:
    """What a job holds, as its processes were told; all there is where they cannot be asked."""
    every = Placement(tuple(Grant(gpu.uuid, WHOLE, gpu.memory or 0, whole=True) for gpu in gpus))
    runner = read_claim(folder)
    if runner is None:
        return every
    for pid in descendants(runner.pid):
        env = environment_of(pid)
        if env.get("GPUQUEUE_ATTEMPT_DIR") != str(folder):
            continue
        names = [name for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        mine = [gpu for gpu in gpus if gpu.uuid in names or (gpu.fake and str(gpu.index) in names)]
        if len(mine) != len(names):
            return every
        try:
            compute = round(float(env.get("GPUQUEUE_COMPUTE", "1")) * WHOLE)
            memory = int(env.get("GPUQUEUE_MEMORY", "0"))
        except ValueError:
            return every
        whole = compute == WHOLE
        return Placement(tuple(Grant(gpu.uuid, compute, memory, whole) for gpu in mine))
    return every
