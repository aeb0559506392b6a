"""The controller's loop: read, plan, act, record.

It has no memory but the store and the job directories: what it holds between two turns can be
thrown away at any instant, and the next lead goes on from there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from gpuqueue.control.adopt import adopt
from gpuqueue.control.clock import CLOCK, Clock, mode_moved, moved
from gpuqueue.control.copies import Copies
from gpuqueue.control.devicememory import take_note
from gpuqueue.control.evicting import EVICT, Evictor, saving
from gpuqueue.control.following import Follower
from gpuqueue.control.freeing import WISHES, Freer
from gpuqueue.control.herald import Herald
from gpuqueue.control.holding import Holder
from gpuqueue.control.intents import carry_out, with_children
from gpuqueue.control.keeping import Keeper
from gpuqueue.control.kernels import refuse_kernels
from gpuqueue.control.launch import Launcher
from gpuqueue.control.lending import Lender
from gpuqueue.control.machine import snapshot_of, usage_of
from gpuqueue.control.notifying import Notifier
from gpuqueue.control.parking import Parking
from gpuqueue.control.proving import Prover
from gpuqueue.control.resizing import Resizer
from gpuqueue.control.sight import TICK, Sight
from gpuqueue.control.signs import Signs
from gpuqueue.control.starting import Starter
from gpuqueue.control.teacher import Teacher
from gpuqueue.control.turn import Turn
from gpuqueue.errors import GpuqueueError, StateRebuilt, StateVersionError
from gpuqueue.model import ACTIVE, TERMINAL, IntentKind, Job, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.plan import plan, stranded
from gpuqueue.record.facts import EVENT
from gpuqueue.record.recorder import Recorder
from gpuqueue.run.files import SPEC
from gpuqueue.run.wake import Doorbell, ring
from gpuqueue.settings import SettingsFile, may_autostart
from gpuqueue.store import Store

__all__ = ["Controller"]

log = logging.getLogger("gpuqueue")

_REST = 0.05
"""Seconds between two plans at most; a long queue takes half of the time for planning."""


class Controller:
    """Runs in the thread that calls ``run``; ``stop`` may be called from any other."""

    def __init__(
        self,
        home: Home,
        on_commit: Callable[[], None] | None = None,
        clock: Clock | None = None,
        holder: Holder | None = None,
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
        self.evictor = Evictor(home, self._can_return)
        self.sight = Sight(self.store, self.settings)
        self.recorder = Recorder()
        self.holder = holder or Holder(home)
        self.starter = Starter(
            home, self.store, self.settings, self.sight,
            launcher=self.launcher, recorder=self.recorder, holder=self.holder,
        )  # fmt: skip
        self._teacher = Teacher()
        self.signs = Signs(home, self.clock.now())
        self.follower = Follower(
            home, self.store, self.settings, self.sight,
            starter=self.starter, evictor=self.evictor, teacher=self._teacher, signs=self.signs,
        )  # fmt: skip
        parking = Parking(home, self.settings, self.sight, Prover(self.store))
        self.freer = Freer(home, self.evictor, self.starter.take_back, self.follower.end, parking)
        self.lender = Lender(home, self.store)
        self.resizer = Resizer(home, self.settings, self.sight, self.holder)
        self.keeper = Keeper(
            home, self.store, self.holder,
            starter=self.starter, resizer=self.resizer, end=self.follower.end,
        )  # fmt: skip
        self._copies = Copies(home, self.store)
        self.idle_since = time.monotonic()
        self.herald = Herald(home, self.store.flush, on_commit)
        self.notifier = Notifier(home, lambda: self.settings.current)
        self._stopping = threading.Event()
        self._newest = 0
        self._rest_until = 0.0
        self._trouble = ""
        self._open_intents = True
        self._fresh: set[int] = set()
        self._astray: set[tuple[int, int]] = set()
        self._odd: set[int] = set()

    # -- loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Lead until ``stop``."""
        self.launcher.keep_spares(self.settings.current)
        self.launcher.start()
        self.store.verify()
        adopt(self.home, self.store, self.sight.machine.gpus)
        self.mode = self.store.mode()
        self._jobs = {job.id: job for job in self.store.live()}
        self.clock.go_on(self.store.fact(CLOCK))
        self._keep_time()
        self.store.set_fact(CLOCK, self.clock.as_fact())
        self._newest = self.starter.found = max(self._jobs, default=0)
        self._teacher.ask_for(self._jobs)
        self._fresh = set(self._jobs)
        self._teacher.remember(self.store)
        self.holder.know(self.sight.machine.gpus)
        self.keeper.sweep()
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
        self.holder.close()
        with contextlib.suppress(GpuqueueError, OSError):
            last = Turn(self._jobs, time.time())
            self._note_code(last)
            last.commit(self.store)
        self.sight.close()
        self.herald.close()
        self.notifier.close()
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
            take_note(turn, self.sight.machine, self._astray)
            self.keeper.look(turn, self.sight.machine)
        self.lender.look(turn, self.sight.machine, self.settings.current, tick=tick)
        self.freer.pursue(turn, self.settings.current, look=tick)
        if tick:
            self._note_code(turn)
            changed |= self.freer.watch(turn, self.sight.machine, self.settings.current)
        if changed or (tick and self._waits(turn)):
            self._decide(turn)
        self.lender.settle(turn, self.sight.machine, self.settings.current, look=tick)
        for job in turn.left:
            self.starter.release(turn, job)
        turn.commit(self.store)
        if tick:
            self.signs.beat(turn.now)
        self.mode = turn.mode
        self._jobs = {key: job for key, job in turn.jobs.items() if job.state not in TERMINAL}
        if self._jobs:
            self.idle_since = time.monotonic()
        self._act(turn)
        if turn.told:
            self.herald.tell(lasting=turn.lasting)
        if turn.ends:
            self.notifier.tell([after for _, after, *_ in turn.moves if after.state in TERMINAL])
        if tick:
            self._copies.keep(self._jobs.values(), turn.now)

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

    def _can_return(self, job: Job) -> bool:
        return (self.home.job(job.id) / SPEC).exists() or self.store.spec(job.id) is not None

    def _waits(self, turn: Turn) -> bool:
        return any(job.state is JobState.QUEUED or job.borrows for job in turn.jobs.values())

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
                if tick:
                    self.signs.look(held, turn.now)
                changed |= self._follow(turn, held, look=tick)
                if tick and turn.mode.normal and turn.jobs[job_id].state is JobState.EVICTING:
                    self.freer.press(held, self.settings.current)
        changed |= self.keeper.take_in(turn)
        if intended or self._open_intents:
            self._open_intents = False
            for intent in self.store.open_intents():
                if intent.kind in WISHES:
                    self.freer.carry_out(turn, intent)
                elif intent.kind is IntentKind.RESIZE:
                    self._open_intents |= not self.resizer.carry_out(turn, intent)
                else:
                    self._open_intents |= not carry_out(
                        turn, intent, self.starter.take_back, self.home.attempt
                    )
                changed = True
        return changed

    def _follow(self, turn: Turn, job: Job, *, look: bool) -> bool:
        """See how far a job is; what is odd about one must not take the lead from all others."""
        try:
            return self.follower.follow(turn, job, look=look)
        except (GpuqueueError, OSError):
            raise
        except Exception:
            self._odd &= turn.jobs.keys()
            if job.id not in self._odd:
                self._odd.add(job.id)
                log.exception("gpuqueue: job %d cannot be followed", job.id)
            return False

    def _look_around(self) -> bool:
        """Re-read settings and GPUs where due; whether anything changed for the plan."""
        self.store.check_version()
        changed = self.settings.refresh()
        if changed:
            self.launcher.keep_spares(self.settings.current)
        if changed and self.settings.warning:
            log.warning("gpuqueue: %s", self.settings.warning)
        return self.sight.look(self._jobs.values(), self.mode, changed=changed)

    # -- starts ------------------------------------------------------------------------------

    def _decide(self, turn: Turn) -> None:
        self._teacher.teach(turn)
        waiting = [job for job in turn.jobs.values() if job.state is JobState.QUEUED]
        if not waiting and not any(job.borrows for job in turn.jobs.values()):
            return
        wanted = {parent for job in waiting for parent in job.request.after}
        parents = self.store.states(wanted) if wanted else {}
        parents |= {key: turn.jobs[key].state for key in wanted if key in turn.jobs}
        settings = self.settings.current
        usage = usage_of(self.store, settings, self.sight.machine, turn.now)
        snapshot = snapshot_of(
            turn.jobs.values(), parents, self.sight.machine, settings, usage, mode=turn.mode,
            saves=saving(self.home, turn.jobs.values()), idle=self.lender.idling.since,
        )  # fmt: skip
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
            job = turn.jobs[start.job]
            if why := self.starter.unmet(job, start.placement):
                turn.move(job, "ended", state=JobState.CANCELLED, ended=turn.now, reason=why)
            else:
                self.starter.start(turn, job, start.placement, borrows=start.borrows)
                if start.borrows:
                    self.lender.expect()
        for job_id in decision.settled:
            turn.move(turn.jobs[job_id], "settled", loan=None, reason="")
        for stop in decision.evictions:
            why = f"makes room for job {stop.for_job}"
            if turn.jobs[stop.for_job].kind is not JobKind.KERNEL:  # it does not wait for that
                self.lender.wake(turn, [turn.jobs[stop.job]])
                self.evictor.evict(turn, turn.jobs[stop.job], EVICT, why, settings.save_time)
        idle = not (decision.starts or decision.settled or decision.evictions)
        if idle and (found := stranded(snapshot, turn.now)) and self.evictor.can_return(found):
            self.lender.wake(turn, [found])
            why = "stood still for a notebook, and starts again where there is room"
            self.evictor.evict(turn, turn.jobs[found.id], EVICT, why, settings.save_time)
        if refuse_kernels(turn, decision):
            self._decide(turn)
