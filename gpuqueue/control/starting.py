"""How an attempt begins: the move to starting, and the order for a runner."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

from gpuqueue.control.evicting import resumes
from gpuqueue.control.holding import Holder, Told, hold_of, lacks, nothing
from gpuqueue.control.kernels import give_grant
from gpuqueue.control.launch import Launcher
from gpuqueue.control.outcome import Outcome, void
from gpuqueue.control.sight import Sight
from gpuqueue.control.turn import Turn
from gpuqueue.model import Job, JobKind, JobState, Loan, Placement
from gpuqueue.paths import Home
from gpuqueue.record.recorder import Recorder
from gpuqueue.run.files import SPEC, read_json, write_json
from gpuqueue.run.inherit import added
from gpuqueue.settings import Settings, SettingsFile
from gpuqueue.store import Store, plain

__all__ = ["SHARE", "Starter"]

_CLAIM_PATIENCE = 5.0
SHARE = "share"
"""The event that tells by what an attempt is held to its share."""


class Starter:
    """Orders runners, and knows which orders no runner has answered yet.

    ``found`` is the highest number that a job had as this lead began.
    """

    def __init__(
        self,
        home: Home,
        store: Store,
        settings: SettingsFile,
        sight: Sight,
        *,
        launcher: Launcher,
        recorder: Recorder,
        holder: Holder,
    ) -> None:
        self._home = home
        self._store = store
        self._settings = settings
        self._sight = sight
        self._launcher = launcher
        self._recorder = recorder
        self.holder = holder
        self._preparing: dict[int, int] = {}
        self._added: dict[tuple[int, int], dict[str, str]] = {}
        self._ordered: dict[int, float] = {}
        self.found = 0

    def start(self, turn: Turn, job: Job, placement: Placement, *, borrows: bool = False) -> None:
        """Decide that a job starts there; ``borrows``: on compute that notebooks lend."""
        started = turn.move(
            job, "starting", state=JobState.STARTING, placement=placement,
            attempt=job.attempt + 1, reason="",
            hold=self.holder.first(placement),
            loan=Loan(borrows=True) if borrows else None,
        )  # fmt: skip
        turn.enter(started)
        turn.actions.append(lambda: self._begin(started))

    def again(self, turn: Turn, job: Job) -> None:
        """Make ready anew what a kernel is to start again with, where it has another size now."""
        self._added.pop((job.id, job.attempt), None)
        turn.actions.append(lambda: self._begin(job))

    def press(self, turn: Turn, job: Job) -> None:
        """Order once more where no runner has come."""
        sent = self._ordered.get(job.id)
        if sent is None or time.monotonic() - sent > _CLAIM_PATIENCE:
            turn.actions.append(lambda: self._begin(job))

    def take_back(self, job: Job) -> bool:
        """Make a starting job's attempt void, if no runner has claimed it."""
        self.forget(job)
        return void(self._home.attempt(job.id, job.attempt))

    def forget(self, job: Job) -> None:
        """A runner has come, or none is wanted any more."""
        self._ordered.pop(job.id, None)
        self._preparing.pop(job.id, None)
        self.holder.drop(job)
        self._added.pop((job.id, job.attempt), None)

    # -- what holds it -----------------------------------------------------------------------

    def _begin(self, job: Job) -> None:
        """Order a runner, or have made ready first what holds the job to its share."""
        ready = (job.id, job.attempt) in self._added or not self.holder.must_ask(job)
        if ready:
            self._preparing.pop(job.id, None)  # an answer that comes yet is let go of
            self.holder.drop(job)
            self._launch(job)
        elif self._preparing.get(job.id) != job.attempt:
            self._preparing[job.id] = job.attempt
            folder = self._home.attempt(job.id, job.attempt)
            self.holder.start(job, folder, self._spec(job))

    def go_on(self, turn: Turn, told: Told) -> Outcome | None:
        """Take in what a job is to start with; how it ends where it requires more than that."""
        job = turn.jobs.get(told.job)
        if (
            job is None
            or job.attempt != told.key
            or not (job.state is JobState.STARTING or job.kind is JobKind.KERNEL)
            or self._preparing.pop(told.job, None) != told.key
        ):
            if told.value is not None:
                self.holder.release(self._home.attempt(told.job, told.key), told.value.by)
            return None
        outcome = told.value or replace(nothing(), missing={"all": told.error})
        hold = hold_of(job, outcome)
        turn.know(job.id, hold=hold)
        if refused := lacks(job, outcome):
            return Outcome.cancelled(refused) if self.take_back(job) else None
        turn.notes.append((job.id, SHARE, plain(hold)))
        base = json.loads(self._spec(job) or "{}").get("env") or {}
        self._added[job.id, job.attempt] = added(outcome.environment, base)
        turn.actions.append(lambda: self._launch(job))
        return None

    def unmet(self, job: Job, placement: Placement) -> str:
        """Why a job that requires a cap does not start where nothing could be one."""
        if not job.request.require or self.holder.must_ask(job.changed(placement=placement)):
            return ""
        whole = all(grant.whole for grant in placement.grants)
        return lacks(job, replace(nothing(), whole=whole))

    def release(self, turn: Turn, job: Job) -> None:
        """Let go of what held an attempt that is over."""
        if job.hold is not None:  # it had a part of a GPU, whatever is on record as its hold
            folder = self._home.attempt(job.id, job.attempt)
            turn.actions.append(lambda: self.holder.release(folder))

    def _spec(self, job: Job) -> str | None:
        """What was submitted, as text."""
        if text := self._store.spec(job.id):
            return text
        found = read_json(self._home.job(job.id) / SPEC)
        return None if found is None else json.dumps(found)

    # -- the order ---------------------------------------------------------------------------

    def _launch(self, job: Job) -> None:
        """Order a runner. Only after the start is on record, so that none is started twice."""
        settings = self._settings.current
        self._ordered[job.id] = time.monotonic()
        if job.kind is JobKind.KERNEL:
            give_grant(self._home.attempt(job.id, job.attempt), job, self._environment(job))
            return
        order = self._order(job, settings)
        spec = None
        if job.kind is JobKind.SCRIPT:
            order["spec"] = spec = self._store.spec(job.id)
        elif job.id <= self.found:
            self._mend_spec(job)  # one that was there before this lead may have seen a power cut
        self._launcher.order(order)
        if settings.record_code:
            self._recorder.ask(job.id, str(self._home.job(job.id)), spec)

    def _order(self, job: Job, settings: Settings) -> dict[str, object]:
        env = self._environment(job)
        return {
            "job": job.id,
            "job_dir": str(self._home.job(job.id)),
            "attempt_dir": env["GPUQUEUE_ATTEMPT_DIR"],
            "env": env,
            "wake": str(self._home.wake),
            "grace": settings.grace,
            "save": settings.evict_timeout,
            "save_signal": settings.save_signal,
            "log_limit": settings.log_limit_bytes,
            "cell": job.kind is JobKind.CELL,
            "preload": self.holder.preload if job.kind is JobKind.CELL else "",
        }

    def _environment(self, job: Job) -> dict[str, str]:
        """What a job that has a placement is told beside its own environment."""
        assert job.placement is not None
        by_uuid = {gpu.uuid: gpu for gpu in self._sight.machine.gpus}
        gpus = [by_uuid[uuid] for uuid in job.placement.gpus if uuid in by_uuid]
        folder = str(self._home.attempt(job.id, job.attempt))
        env = self._sight.devices.environment(gpus) | {
            "GPUQUEUE_JOB_ID": str(job.id),
            "GPUQUEUE_ATTEMPT_DIR": folder,
            "GPUQUEUE_RUN_DIR": os.path.join(folder, "run"),
            "GPUQUEUE_HOME": str(self._home.root),
            "GPUQUEUE_RESUME": "1" if resumes(self._home, job) else "0",
        }
        if job.kind is not JobKind.CELL:
            # a cell's kernel streams by itself, and what it starts is to behave as without %%gpu
            env["PYTHONUNBUFFERED"] = "1"
        if job.placement.grants:
            grant = job.placement.grants[0]
            env["GPUQUEUE_COMPUTE"] = f"{grant.compute / 1000:g}"
            env["GPUQUEUE_MEMORY"] = str(grant.memory)
        return env | self._added.get((job.id, job.attempt), {})

    def _mend_spec(self, job: Job) -> None:
        """Write the spec anew if a power cut took it: the store's copy was flushed, it was not."""
        path = self._home.job(job.id) / SPEC
        if read_json(path) is not None:
            return
        if spec := self._store.spec(job.id):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_json(path, json.loads(spec))
