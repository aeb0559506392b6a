"""Free mode: the person takes the GPUs back, and gives them to the queue again.

What is to become of each job follows from the mode and from the job alone, and is looked at in
every turn: a lead that takes over in the middle goes on with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from gpuqueue.control.autofree import (
    AUTOMATIC,
    PERSON,
    Program,
    Watched,
    decide,
    is_heavy,
    programs_of,
    rules_of,
)
from gpuqueue.control.evicting import BROKEN, EVICT, FREE, Evictor
from gpuqueue.control.kernels import idles
from gpuqueue.control.machine import Machine
from gpuqueue.control.outcome import Outcome
from gpuqueue.control.parking import Parking, Return
from gpuqueue.control.runners import are_still, go_on, keep_still
from gpuqueue.control.tidying import Idlers
from gpuqueue.control.turn import Turn, unfrozen
from gpuqueue.model import (
    ACTIVE,
    Intent,
    IntentKind,
    Job,
    JobKind,
    JobState,
    Mode,
    ModeName,
    ProcessId,
)
from gpuqueue.paths import Home
from gpuqueue.run.files import ask_no_more
from gpuqueue.settings import Settings
from gpuqueue.units import format_duration

__all__ = ["EVICTED", "WISHES", "Freer"]

WISHES = frozenset({IntentKind.FREE, IntentKind.RESUME})
"""Wishes that are about no one job and are carried out here."""
_AGAIN = 0.2
"""Seconds that a second look spends on processes that do not stop: others wait meanwhile."""
EVICTED = "evicted"
"""How the reason of a job begins that stepped aside for free mode and waits to go on."""


class Freer:
    """Has the jobs step aside, freezes those that cannot, and lets them go on.

    Parameters
    ----------
    take_back
        Makes the attempt of a starting job void; False where its runner has it already.
    put_back
        Records that an attempt has ended.
    parking
        Moves GPU memory of jobs that are frozen to the host and back.
    """

    def __init__(
        self,
        home: Home,
        evictor: Evictor,
        take_back: Callable[[Job], bool],
        put_back: Callable[[Turn, Job, Outcome], None],
        parking: Parking,
    ) -> None:
        self._home = home
        self._evictor = evictor
        self._take_back = take_back
        self._put_back = put_back
        self._parking = parking
        self._idlers = Idlers(home, parking)
        self._watched = Watched()
        self._heavy: tuple[ProcessId, ...] = ()

    # -- wishes ------------------------------------------------------------------------------

    def carry_out(self, turn: Turn, intent: Intent) -> None:
        """Carry out a person's wish."""
        if intent.kind is IntentKind.RESUME:
            self.resume(turn, latched=self._heavy)
        else:
            self.free(turn, PERSON, soft=bool((intent.value or {}).get("soft")))
        turn.intents.append((intent, ""))

    def free(self, turn: Turn, by: str, *, soft: bool = False, program: str = "") -> None:
        """Decide that the person has the GPUs from now on; ``pursue`` sees to the jobs.

        Where they were taken softly before, what was frozen then steps aside now if it can. Softly
        while jobs still save, these are frozen at once.
        """
        was = turn.mode
        deeper = was.soft and not soft
        hastier = soft and not was.soft and was.name is ModeName.FREEING
        if not was.normal and was.by == by and not deeper and not hastier:
            return
        mode = replace(
            was, name=ModeName.FREEING, by=by,
            soft=soft if was.normal or hastier else was.soft and soft,
            since=turn.now if was.normal else was.since, program=program, latched=(),
        )  # fmt: skip
        fates = [(job, self._fate(mode, job)) for job in _holders(turn)]
        turn.change_mode(mode, jobs=_told(fates))
        for job, fate in fates if deeper else ():
            if job.state is JobState.FROZEN and fate in ("evict", "restart"):
                self._thaw_to_leave(turn, job)

    def resume(self, turn: Turn, latched: tuple[ProcessId, ...] = ()) -> None:
        """Decide that the queue has the GPUs again, and let go on what is frozen.

        ``latched`` are heavy programs in spite of which a person gives them back.
        """
        was = turn.mode
        if was.normal:
            return
        going: list[Job] = []
        leaving: list[Job] = []
        later: list[Job] = []
        idle: list[Job] = []
        for job in _holders(turn):
            kernel = job.kind is JobKind.KERNEL
            if kernel and job.state is JobState.RUNNING and self._parking.is_out(job):
                idle.append(job)
            if job.asked == "cancel" or job.state not in (JobState.FROZEN, JobState.EVICTING):
                continue
            if job.state is JobState.FROZEN and self._parking.is_out(job):
                later.append(job)  # its GPU memory comes first
            else:
                (going if self._stays(job) else leaving).append(job)
        # before it is recorded: if this process dies in between, the wish is still open
        frozen = [job for job in (*going, *leaving) if job.state is JobState.FROZEN]
        go_on(self._attempts(frozen))
        for job in going:
            self._continue(turn, job)
        for job in leaving:
            self._leave(turn, job)
        self._put_off_promises(turn, was)
        waiting = [job for job in turn.jobs.values() if job.state is JobState.QUEUED]
        again = [job for job in waiting if job.reason.startswith(EVICTED)]
        told = [(job, "continue") for job in (*going, *later)]
        told += [(job, "back") for job in idle]
        told += [(job, "start") for job in (*leaving, *again)]
        turn.change_mode(Mode(latched=latched), jobs=_told(told))

    def _stays(self, job: Job) -> bool:
        """Whether one that is let go on need not step aside, or has not heard that it should."""
        folder = self._home.attempt(job.id, job.attempt)
        return job.asked not in (EVICT, FREE) or ask_no_more(folder)

    def _continue(self, turn: Turn, job: Job) -> None:
        self._evictor.forget(job)
        turn.move(job, "continued", state=JobState.RUNNING, asked="", reason="",
                  **unfrozen(job, turn.now))  # fmt: skip

    def _leave(self, turn: Turn, job: Job) -> None:
        """One that has heard that it should step aside does so, though free mode is over."""
        reason = job.reason
        if job.asked == FREE:
            what = "saves its state" if self._evictor.saves(job) else "is stopped"
            reason = f"{what}, for it has heard of free mode, and starts again in its turn"
        event = "continued" if job.state is JobState.FROZEN else "evicting"
        turn.move(job, event, state=JobState.EVICTING, reason=reason, **unfrozen(job, turn.now))

    def _put_off_promises(self, turn: Turn, was: Mode) -> None:
        """A promise is about the time in which the queue has the GPUs."""
        passed = turn.now - (turn.now if was.since is None else was.since)
        for job in list(turn.jobs.values()):
            if job.state is JobState.QUEUED and job.expected is not None and job.latest is not None:
                turn.promise(job.id, job.expected + passed, job.latest + passed)

    # -- what becomes of the jobs ------------------------------------------------------------

    def _fate(self, mode: Mode, job: Job) -> str:
        if job.kind is JobKind.KERNEL:
            return "idle" if idles(self._home, job) else "freeze"
        if mode.soft or not self._evictor.can_return(job):
            return "freeze"
        if job.state is JobState.FROZEN and self._parking.is_out(job):
            return "freeze"  # it holds nothing of a GPU as it is
        if self._evictor.saves(job):
            return "evict"
        return "restart" if self._may_start_again(job) else "freeze"

    def pursue(self, turn: Turn, settings: Settings, *, look: bool) -> None:
        """Bring every job that holds a GPU to where the mode wants it.

        ``look`` also sees to those that were asked or frozen in an earlier turn.
        """
        mode = turn.mode
        if look:
            self._parking.look(turn.jobs, mode)
        if look or self._parking.any_out:
            self._bring_back(turn)
        if mode.normal:
            self._idlers.forget()
            return
        to_freeze: list[tuple[Job, str]] = []
        busy = False
        for job in _holders(turn):
            if job.asked == "cancel":
                continue
            if job.state is JobState.STARTING:
                if self._take_back(job):
                    why = f"{EVICTED}: it was about to start when free mode began"
                    self._put_back(turn, job, Outcome.stepped_aside(why))
            elif job.state is JobState.RUNNING:
                fate = self._fate(mode, job)
                if fate == "freeze":
                    to_freeze.append((job, "frozen by free mode"))
                elif fate != "idle":
                    self._evict(turn, job, settings)
                else:
                    busy |= self._idlers.see_to(turn, job)
            elif job.state is JobState.EVICTING:
                to_freeze += self._wait_for(turn, job, settings, look=look)
        moved = [(job, reason, self._parking.move(job)) for job, reason in to_freeze]
        self._freeze(turn, [(job, why + more) for job, why, more in moved if more is not None])
        holders = _holders(turn)
        resting = [job for job in holders if job.state is JobState.FROZEN]
        resting = [job for job in resting if not self._parking.is_coming(job)]
        frozen = self._attempts(resting)
        if look and frozen and not are_still(frozen):
            keep_still(frozen, _AGAIN)
        still = {job.id for job in resting}
        busy |= any(job.id not in still and not idles(self._home, job) for job in holders)
        name = ModeName.FREEING if busy else ModeName.FREE
        if name is not mode.name:
            turn.change_mode(replace(mode, name=name))

    def _bring_back(self, turn: Turn) -> None:
        """Bring back, where the queue has the GPUs, what jobs have on the host; then they go on."""
        for job in _holders(turn):
            if job.asked == "cancel" or job.process is None or not self._parking.is_out(job):
                continue
            if not turn.mode.normal and not self._parking.is_coming(job):
                continue
            how, words = self._parking.bring(job)
            if how is Return.BACK and job.state is JobState.FROZEN:
                (self._continue if self._stays(job) else self._leave)(turn, job)
            elif how is Return.BACK and job.state is JobState.RUNNING and job.reason:
                turn.move(job, "unparked", reason="")  # an idle kernel, which was never stopped
            elif how is Return.LOST and self._may_start_again(job):
                if job.asked == BROKEN:
                    continue
                turn.move(job, "evicting", state=JobState.EVICTING, asked=BROKEN, reason=words,
                          **unfrozen(job, turn.now))  # fmt: skip
                turn.actions.append(partial(self._evictor.stop, job))
            elif words and words != job.reason and job.state is JobState.FROZEN:
                turn.move(job, "frozen", reason=words)
            elif words and words != job.reason and job.state is JobState.RUNNING:
                turn.move(job, "parked", reason=words)

    def _may_start_again(self, job: Job) -> bool:
        request = job.request
        again = request.restartable or request.preemptible or self._evictor.saves(job)
        return again and self._evictor.can_return(job)

    def _evict(self, turn: Turn, job: Job, settings: Settings) -> None:
        what = "saves its state" if self._evictor.saves(job) else "is stopped"
        reason = f"{what} for free mode"
        self._evictor.evict(turn, job, FREE, reason, settings.evict_timeout)

    def _wait_for(
        self, turn: Turn, job: Job, settings: Settings, *, look: bool
    ) -> list[tuple[Job, str]]:
        """Ask one that is stepping aside again; it, with why, where it is to be frozen instead."""
        if turn.mode.soft:
            return [(job, "frozen by free mode")]
        patience = settings.evict_timeout
        if self._evictor.saves(job) and self._evictor.is_late(job, patience):
            late = format_duration(patience)
            return [(job, f"frozen by free mode: it did not save and exit within {late}")]
        if look:
            turn.actions.append(lambda: self._ask(job, patience))
        return []

    def _ask(self, job: Job, patience: float) -> None:
        """Ask one to step aside, and see that it can: a lead may have died before it let it go."""
        self._evictor.press(job, patience)
        processes = self._attempts([job])
        if are_still(processes):
            go_on(processes)

    def _freeze(self, turn: Turn, jobs: list[tuple[Job, str]]) -> None:
        if not jobs:
            return
        processes = self._attempts(job for job, _ in jobs)
        keep_still(processes)
        whole = are_still(processes)
        for job, reason in jobs:
            if not whole and not are_still(self._attempts([job])):
                reason += "; some of its processes could not be stopped"  # noqa: PLW2901
            # what it was asked stays with it: it may have heard and be on its way
            turn.move(job, "frozen", state=JobState.FROZEN, frozen_at=turn.now, reason=reason)

    def _thaw_to_leave(self, turn: Turn, job: Job) -> None:
        """Let one that was frozen softly step aside."""
        what = "saves its state" if self._evictor.saves(job) else "is stopped"
        self._evictor.forget(job)
        leaving = turn.move(
            job, "evicting", state=JobState.EVICTING, asked=FREE, reason=f"{what} for free mode",
            **unfrozen(job, turn.now),
        )  # fmt: skip
        turn.actions.append(lambda: self._ask(leaving, inf))

    def press(self, job: Job, settings: Settings) -> None:
        """See, in normal mode, to a job that is stepping aside."""
        if job.asked == BROKEN:
            self._evictor.stop(job)
            return
        # one that has heard of free mode is saving; nobody waits for its room
        patience = inf if job.asked == FREE else settings.save_time
        self._evictor.press(job, patience)

    def _attempts(self, jobs: Iterable[Job]) -> list[tuple[Path, ProcessId]]:
        return [
            (self._home.attempt(job.id, job.attempt), job.process)
            for job in jobs
            if job.process is not None
        ]

    # -- by itself ---------------------------------------------------------------------------

    def watch(self, turn: Turn, machine: Machine, settings: Settings) -> bool:
        """Take the GPUs back, or give them again, for a program that uses one heavily.

        To be called after ``pursue``: nobody has written this wish down, so it is on record before
        the first process is stopped for it.
        """
        mode = turn.mode
        if not (settings.auto_free or mode.by == AUTOMATIC or mode.latched):
            self._watched, self._heavy = Watched(), ()
            return False
        if machine.silent:
            return False  # nobody knows who is there
        rules = rules_of(settings)
        programs: list[Program] = programs_of(machine, turn.jobs.values())
        self._heavy = tuple(p.process for p in programs if is_heavy(p, rules))
        self._watched, verdict = decide(self._watched, programs, mode, rules, time.monotonic())
        if verdict.latched != mode.latched:
            turn.change_mode(replace(mode, latched=verdict.latched))
        if verdict.action == "free":
            self.free(turn, AUTOMATIC, program=verdict.program)
        elif verdict.action == "resume":
            self.resume(turn)
        return bool(verdict.action)


def _holders(turn: Turn) -> list[Job]:
    return [job for job in turn.jobs.values() if job.state in ACTIVE and job.uses_gpu]


def _told(fates: Iterable[tuple[Job, str]]) -> list[dict[str, Any]]:
    return [{"id": job.id, "tag": job.tag, "does": does} for job, does in fates]
