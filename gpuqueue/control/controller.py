"""The controller's loop: read, plan, act, record.

It has no memory but the store and the job directories: what it holds between two turns can be
thrown away at any instant, and the next lead goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from gpuqueue.control.adopt import adopt
from gpuqueue.control.clock import CLOCK, Clock, mode_moved, moved
from gpuqueue.control.devicememory import highest, note_excess, once_more, take_note
from gpuqueue.control.evicting import EVICT, Evictor, in_front, resumes
from gpuqueue.control.freeing import WISHES, Freer, unfrozen
from gpuqueue.control.gauge import Gauge
from gpuqueue.control.herald import Herald
from gpuqueue.control.intents import carry_out, with_children
from gpuqueue.control.launch import Launcher
from gpuqueue.control.machine import FACT, Machine, seen_on, snapshot_of, usage_of
from gpuqueue.control.outcome import Outcome, is_loss, outcome_of, sweep, void
from gpuqueue.control.runners import lives
from gpuqueue.control.teacher import Teacher
from gpuqueue.control.turn import Turn
from gpuqueue.errors import GpuqueueError, StateRebuilt, StateVersionError
from gpuqueue.model import ACTIVE, TERMINAL, Job, JobKind, JobState, Placement, Reading
from gpuqueue.paths import Home
from gpuqueue.plan import plan
from gpuqueue.record.facts import EVENT
from gpuqueue.record.recorder import Recorder
from gpuqueue.run.files import (
    SPEC,
    VOID,
    has_begun,
    is_resumable,
    is_settled,
    read_claim,
    read_json,
    write_json,
)
from gpuqueue.run.process import same_boot
from gpuqueue.run.wake import Doorbell, ring
from gpuqueue.settings import SettingsFile, may_autostart
from gpuqueue.store import Store

__all__ = ["Controller"]

log = logging.getLogger("gpuqueue")

TICK = 1.0
"""Seconds between looks at the world when nothing rings."""
_READ_IDLE = 5.0
_REST = 0.05
"""Seconds between two plans at most; a long queue takes half of the time for planning."""
_CLAIM_PATIENCE = 5.0
_MOST_LOSSES = 4


class Controller:
    """Runs in the thread that calls ``run``; ``stop`` may be called from any other."""

    def __init__(
        self,
        home: Home,
        on_commit: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.home = home
        self.clock = clock or Clock()
        self.settings = SettingsFile(home.config)
        self.store = Store(home.database, durable=False, patience=5.0)
        self.launcher = Launcher(home, succeed=may_autostart(self.settings.current))
        try:
            self.bell = Doorbell(home.wake)
        except OSError:
            self.store.close()
            raise
        self._jobs: dict[int, Job] = {}
        self.mode = self.store.mode()
        self.evictor = Evictor(home)
        self.freer = Freer(home, self.evictor, self._take_back, self._end)
        self.machine = Machine()
        self._measure()
        self.idle_since = time.monotonic()
        self.herald = Herald(home, self.store.flush, on_commit)
        self._stopping = threading.Event()
        self._newest = self._found = 0
        self._ordered: dict[int, float] = {}
        self._teacher = Teacher()
        self.recorder = Recorder()
        self._last_read = self._last_told = self._rest_until = 0.0
        self._published: dict[str, Any] = {}
        self._trouble = ""
        self._open_intents = True
        self._fresh: set[int] = set()

    # -- loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Lead until ``stop``."""
        self.launcher.keep_spares(self.settings.current)
        self.launcher.start()
        self.store.verify()
        adopt(self.home, self.store, self.machine.gpus)
        self.mode = self.store.mode()
        self._jobs = {job.id: job for job in self.store.live()}
        self.clock.go_on(self.store.fact(CLOCK))
        self._keep_time()
        self.store.set_fact(CLOCK, self.clock.as_fact())
        self._newest = self._found = max(self._jobs, default=0)
        self._teacher.ask_for(self._jobs)
        self._fresh = set(self._jobs)
        self._teacher.remember(self.store)
        lines: list[str] = []
        tick = True
        next_tick = time.monotonic() + TICK
        while not self._stopping.is_set():
            try:
                self.turn(lines, tick=tick)
                self._trouble = ""
            except (StateVersionError, StateRebuilt):
                raise  # a newer gpuqueue must lead now; what is known is of a database that is gone
            except (GpuqueueError, OSError) as error:
                self._complain(error)
                self._stopping.wait(TICK)
            now = time.monotonic()
            lines = self.bell.wait(next_tick - now)
            if lines and (rest := self._rest_until - time.monotonic()) > 0:
                self._stopping.wait(rest)
                lines += self.bell.wait(0)
            tick = time.monotonic() >= next_tick
            if tick:
                next_tick = time.monotonic() + TICK

    def stop(self) -> None:
        """End the loop soon."""
        self._stopping.set()
        ring(self.home.wake, "stop")

    def close(self) -> None:
        """Let go of everything. The runners go on."""
        self.bell.close()
        self.launcher.close()
        self.recorder.close()
        with contextlib.suppress(GpuqueueError, OSError):
            last = Turn(self._jobs, time.time())
            self._note_code(last)
            last.commit(self.store)
        self.gauge.close()
        self.herald.close()
        self.store.close()

    def _complain(self, error: Exception) -> None:
        # the same trouble comes back every second while it lasts: say it once
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("gpuqueue: %s", error)

    # -- one turn ----------------------------------------------------------------------------

    def turn(self, lines: list[str], *, tick: bool) -> None:
        """Take in what happened, decide, record it in one transaction, then act."""
        self._keep_time()
        turn = Turn(dict(self._jobs), self.clock.now(), self.mode)
        changed = self._take_in(turn, lines, tick=tick)
        if tick:
            changed |= self._look_around()
            take_note(turn, self.machine)
        self.freer.pursue(turn, self.settings.current, look=tick)
        if tick:
            self._note_code(turn)
            changed |= self.freer.watch(turn, self.machine, self.settings.current)
        if changed or (tick and self._waits(turn)):
            self._decide(turn)
        turn.commit(self.store)
        self.mode = turn.mode
        self._jobs = {key: job for key, job in turn.jobs.items() if job.state not in TERMINAL}
        if self._jobs:
            self.idle_since = time.monotonic()
        self._act(turn)
        if turn.told:
            self.herald.tell(lasting=turn.lasting)

    def _note_code(self, turn: Turn) -> None:
        turn.notes += [(job, EVENT, code.to_dict()) for job, code in self.recorder.take()]

    def _keep_time(self) -> None:
        """If the clock has been set, tell the times of live jobs by the clock as it is now."""
        by = self.clock.set_by()
        if not by:
            return
        log.warning("gpuqueue: the clock was set by %+.0f s; the jobs' times follow it", by)
        self.store.set_clock(self._jobs, by)
        self.mode = mode_moved(self.mode, by)
        self.store.keep_mode(self.mode)
        self.store.set_fact(CLOCK, self.clock.as_fact())
        self._jobs = {job_id: moved(job, by) for job_id, job in self._jobs.items()}

    def _act(self, turn: Turn) -> None:
        """Do what was decided. Jobs are on the disk before they start."""
        if self._fresh & turn.starts:
            self.store.flush()
        elif self._fresh:
            self.herald.keep()
        self._fresh.clear()
        for action in turn.actions:
            try:
                action()
            except (GpuqueueError, OSError) as error:
                self._complain(error)

    def _waits(self, turn: Turn) -> bool:
        return any(job.state is JobState.QUEUED for job in turn.jobs.values())

    def _take_in(self, turn: Turn, lines: list[str], *, tick: bool) -> bool:
        rung: set[int] = set()
        submitted = intended = tick
        for line in lines:
            word, _, number = line.partition(" ")
            if number.isdigit():
                rung.add(int(number))
            submitted |= word == "submit"
            intended |= word == "intent"
        changed = False
        if submitted:
            for job in self.store.live(newer_than=self._newest):
                # a fact, not a decision: it stays even if this turn cannot be recorded
                turn.jobs[job.id] = self._jobs[job.id] = job
                self._newest = max(self._newest, job.id)
                self._teacher.ask_for([job.id])
                self._fresh.add(job.id)
                changed = True
        # an exit may ring before this lead has seen its claim
        for job_id in sorted(rung if not tick else {*rung, *turn.jobs}):
            held = turn.jobs.get(job_id)
            if held is not None and held.state in ACTIVE:
                changed |= self._follow(turn, held, look=tick)
        if intended or self._open_intents:
            self._open_intents = False
            for intent in self.store.open_intents():
                if intent.kind in WISHES:
                    self.freer.carry_out(turn, intent)
                else:
                    self._open_intents |= not carry_out(
                        turn, intent, self._take_back, self.home.attempt
                    )
                changed = True
        return changed

    def _take_back(self, job: Job) -> bool:
        """Make a starting job's attempt void, if no runner has claimed it."""
        self._ordered.pop(job.id, None)
        return void(self.home.attempt(job.id, job.attempt))

    def _look_around(self) -> bool:
        """Re-read settings and GPUs where due; whether anything changed for the plan."""
        self.store.check_version()
        changed = self.settings.refresh()
        if changed:
            self.launcher.keep_spares(self.settings.current)
        if changed and self.settings.warning:
            log.warning("gpuqueue: %s", self.settings.warning)
        if self.settings.current.fake_gpus != self.gauge.fake:
            self.gauge.close()
            self._measure()
        now = time.monotonic()
        waiting = any(job.state is JobState.QUEUED for job in self._jobs.values())
        # of those that hold GPUs, the most that they use is to be seen
        held = any(job.placement and job.placement.grants for job in self._jobs.values())
        watched = self.settings.current.auto_free or not self.mode.normal
        if now - self._last_read >= (TICK if waiting or held or watched else _READ_IDLE):
            self._last_read = now
            readings = self.gauge.ask()
            seen = self._seen(readings)
            was = self.machine
            changed |= (seen.gpus, seen.outside, seen.silent) != (was.gpus, was.outside, was.silent)
            self.machine = seen
        if changed or now - self._last_told >= (TICK if waiting else _READ_IDLE):
            self._publish(now)
        return changed

    def _publish(self, now: float) -> None:
        self._last_told = now
        fact = self.machine.as_fact() | {"warning": self.settings.warning}
        if fact != self._published:
            self.store.set_fact(FACT, fact)
            self._published = fact

    def _measure(self) -> None:
        """Find the machine's GPUs, with a first look at who is on them."""
        self.gauge = Gauge(self.settings.current.fake_gpus)
        self.machine = self._seen(self.gauge.first())
        self._last_read = 0.0

    def _seen(self, readings: tuple[Reading, ...]) -> Machine:
        gpus = self.gauge.devices.gpus()
        gauge = self.gauge
        jobs = self._jobs.values()
        return seen_on(gpus, readings, jobs, gauge.problem, silent=gauge.silent)

    # -- jobs that hold a placement ----------------------------------------------------------

    def _follow(self, turn: Turn, job: Job, *, look: bool) -> bool:
        """See how far a started job is; ``look`` also checks that it is still there."""
        folder = self.home.attempt(job.id, job.attempt)
        outcome = outcome_of(folder, job)
        if job.state is JobState.STARTING:
            process = read_claim(folder)
            if process is None and outcome is None:
                return self._await_claim(turn, job)
            if process == VOID:  # made void in a turn that could not be recorded
                self._end(turn, job, Outcome.again_because("it could not be started there"))
                return True
            if process is not None:
                if outcome is None and not is_settled(folder) and lives(folder, process):
                    return False  # it may be over in a moment, and its runner with another job
                began = outcome.started if outcome and outcome.started else turn.now
                job = turn.move(
                    job, "started", state=JobState.RUNNING, process=process, started=began
                )
                self._ordered.pop(job.id, None)
                if outcome is None:
                    return False
        if outcome is None and look and job.process and not lives(folder, job.process):
            # the record may have been written between the two looks
            outcome = outcome_of(folder, job) or self._lost(job)
        if outcome is None:
            if look and job.state is JobState.EVICTING and turn.mode.normal:
                self.freer.press(job, self.settings.current)
            return False
        self._end(turn, job, outcome)
        return True

    def _await_claim(self, turn: Turn, job: Job) -> bool:
        here = {gpu.uuid for gpu in self.machine.gpus}
        if job.placement is not None and not here.issuperset(job.placement.gpus):
            # its GPUs are gone; once the attempt is void, no order on its way can start it
            if void(self.home.attempt(job.id, job.attempt)):
                self._end(turn, job, Outcome.again_because("its GPU is no longer there"))
                return True
            return False
        sent = self._ordered.get(job.id)
        if sent is None or time.monotonic() - sent > _CLAIM_PATIENCE:
            turn.actions.append(lambda: self._launch(job))
        return False

    def _lost(self, job: Job) -> Outcome | None:
        """The runner is gone without a record: end what it left and say what happened."""
        folder = self.home.attempt(job.id, job.attempt)
        assert job.process is not None
        if not sweep(folder):
            return None  # what is left of it still holds its GPUs
        if job.asked == "cancel":
            return Outcome.cancelled("cancelled while it ran; its runner was killed")
        # after a power cut the mark may be missing although the payload had begun
        begun = has_begun(folder) or not same_boot(job.process)
        # one that takes its runner or the machine down each time must not do so for ever
        may = job.request.restartable or is_resumable(folder)
        again = self._losses(job) < _MOST_LOSSES and (may or not begun)
        return Outcome.lost(job.process, again=again)

    def _losses(self, job: Job) -> int:
        """How often a job has been put back because its runner was gone."""
        reasons = (
            event.data.get("reason", "")
            for event in self.store.events(job_id=job.id)
            if event.kind == "requeued"
        )
        return sum(is_loss(reason) for reason in reasons)

    def _end(self, turn: Turn, job: Job, outcome: Outcome) -> None:
        turn.leave(job)
        self._ordered.pop(job.id, None)
        self.evictor.forget(job)
        folder = self.home.attempt(job.id, job.attempt)
        peak = highest(job, folder, self.machine)
        note_excess(turn, job, peak or 0)
        more = once_more(job, outcome, folder, self.machine, self.settings.current)
        if outcome.again or more:
            front = outcome.aside or more
            again = turn.move(
                job, "requeued", state=JobState.QUEUED, placement=None, process=None,
                started=None, expected=None, latest=None, asked="", peak=peak,
                frozen=0.0, frozen_at=None,
                position=in_front(turn.jobs, job) if front else job.position,
                **({"reason": outcome.reason} | more),
            )  # fmt: skip
            if more:
                self._learn_from(turn, again)
            return
        ended = turn.move(
            job, "ended", state=outcome.state,
            # both by the runner's word, or both by ours: the clock may be set between the two
            started=outcome.started or job.started,
            ended=outcome.ended or max(turn.now, job.started or 0.0),
            returncode=outcome.returncode, reason=outcome.reason, peak=peak,
            **unfrozen(job, outcome.ended or turn.now),
        )  # fmt: skip
        if ended.state is JobState.SUCCEEDED:
            self._learn_from(turn, ended)

    def _learn_from(self, turn: Turn, job: Job) -> None:
        """Take in what a run teaches; those of its command that wait are told anew."""
        if self._teacher.note(job):
            self._teacher.ask_for_like(turn, job)

    # -- starts ------------------------------------------------------------------------------

    def _decide(self, turn: Turn) -> None:
        self._teacher.teach(turn)
        waiting = [job for job in turn.jobs.values() if job.state is JobState.QUEUED]
        if not waiting:
            return
        wanted = {parent for job in waiting for parent in job.request.after}
        parents = self.store.states(wanted) if wanted else {}
        parents |= {key: turn.jobs[key].state for key in wanted if key in turn.jobs}
        settings = self.settings.current
        usage = usage_of(self.store, settings, self.machine, turn.now)
        snapshot = snapshot_of(
            turn.jobs.values(), parents, self.machine, settings, usage, mode=turn.mode
        )
        began = time.monotonic()
        decision = plan(snapshot, turn.now)
        ended = time.monotonic()
        self._rest_until = ended + min(ended - began, _REST)
        for promise in decision.promises:
            turn.promise(promise.job, promise.expected, promise.latest)
        for job_id, reason in with_children(decision.drops, waiting).items():
            turn.move(
                turn.jobs[job_id], "ended", state=JobState.CANCELLED, ended=turn.now,
                reason=reason,
            )  # fmt: skip
        for start in decision.starts:
            self._start(turn, turn.jobs[start.job], start.placement)
        for stop in decision.evictions:
            why = f"makes room for job {stop.for_job}"
            self.evictor.evict(turn, turn.jobs[stop.job], EVICT, why, settings.save_time)

    def _start(self, turn: Turn, job: Job, placement: Placement) -> None:
        started = turn.move(
            job, "starting", state=JobState.STARTING, placement=placement,
            attempt=job.attempt + 1, reason="",
        )  # fmt: skip
        turn.enter(started)
        turn.actions.append(lambda: self._launch(started))

    def _launch(self, job: Job) -> None:
        """Order a runner. Only after the start is on record, so that none is started twice."""
        assert job.placement is not None
        by_uuid = {gpu.uuid: gpu for gpu in self.machine.gpus}
        gpus = [by_uuid[uuid] for uuid in job.placement.gpus if uuid in by_uuid]
        folder = self.home.attempt(job.id, job.attempt)
        settings = self.settings.current
        env = self.gauge.devices.environment(gpus) | {
            "GPUQUEUE_JOB_ID": str(job.id),
            "GPUQUEUE_ATTEMPT_DIR": str(folder),
            "GPUQUEUE_RUN_DIR": str(folder / "run"),
            "GPUQUEUE_HOME": str(self.home.root),
            "GPUQUEUE_RESUME": "1" if resumes(self.home, job) else "0",
        }
        if job.kind is not JobKind.CELL:
            # a cell's kernel streams by itself, and what it starts is to behave as without %%gpu
            env["PYTHONUNBUFFERED"] = "1"
        if job.placement.grants:
            grant = job.placement.grants[0]
            env["GPUQUEUE_COMPUTE"] = f"{grant.compute / 1000:g}"
            env["GPUQUEUE_MEMORY"] = str(grant.memory)
        self._ordered[job.id] = time.monotonic()
        order = {
            "job": job.id,
            "job_dir": str(self.home.job(job.id)),
            "attempt_dir": str(folder),
            "env": env,
            "wake": str(self.home.wake),
            "grace": settings.grace,
            "log_limit": settings.log_limit_bytes,
            "cell": job.kind is JobKind.CELL,
        }
        spec = None
        if job.kind is JobKind.SCRIPT:
            order["spec"] = spec = self.store.spec(job.id)
        elif job.id <= self._found:
            self._mend_spec(job)  # one that was there before this lead may have seen a power cut
        self.launcher.order(order)
        if settings.record_code:
            self.recorder.ask(job.id, str(self.home.job(job.id)), spec)

    def _mend_spec(self, job: Job) -> None:
        """Write the spec anew if a power cut took it: the store's copy was flushed, it was not."""
        path = self.home.job(job.id) / SPEC
        if read_json(path) is not None:
            return
        if spec := self.store.spec(job.id):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_json(path, json.loads(spec))
