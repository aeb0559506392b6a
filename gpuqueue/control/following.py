"""Jobs that hold a placement: how far they are, and what becomes of those whose attempt is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuqueue.control.devicememory import highest, note_excess, once_more
from gpuqueue.control.evicting import Evictor, in_front
from gpuqueue.control.kernels import KernelFollower
from gpuqueue.control.outcome import Outcome, is_loss, outcome_of, sweep, void
from gpuqueue.control.runners import lives
from gpuqueue.control.sight import Sight
from gpuqueue.control.signs import Signs
from gpuqueue.control.starting import Starter
from gpuqueue.control.teacher import Teacher
from gpuqueue.control.turn import Turn, unfrozen
from gpuqueue.model import Job, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.run.farewell import FAULT
from gpuqueue.run.files import VOID, has_begun, is_resumable, is_settled, read_claim
from gpuqueue.run.process import same_boot
from gpuqueue.settings import SettingsFile
from gpuqueue.store import Store

__all__ = ["Follower"]

_MOST_LOSSES = 4


class Follower:
    """Takes in what runners have left, and records the end of an attempt."""

    def __init__(
        self,
        home: Home,
        store: Store,
        settings: SettingsFile,
        sight: Sight,
        *,
        starter: Starter,
        evictor: Evictor,
        teacher: Teacher,
        signs: Signs,
    ) -> None:
        self._home = home
        self._store = store
        self._settings = settings
        self._sight = sight
        self._starter = starter
        self._evictor = evictor
        self._teacher = teacher
        self._signs = signs
        self._kernels = KernelFollower(home, store, settings, starter, self.end)

    def follow(self, turn: Turn, job: Job, *, look: bool) -> bool:
        """See how far a started job is; whether anything changed for the plan.

        ``look`` also checks that its runner is still there.
        """
        if job.kind is JobKind.KERNEL:
            return self._kernels.follow(turn, job, look=look)
        folder = self._home.attempt(job.id, job.attempt)
        outcome = outcome_of(folder, job)
        if job.state is JobState.STARTING:
            process = read_claim(folder)
            if process is None and outcome is None:
                return self._await_claim(turn, job)
            if process == VOID:  # made void in a turn that could not be recorded
                self.end(turn, job, Outcome.again_because("it could not be started there"))
                return True
            if process is not None:
                if outcome is None and not is_settled(folder) and lives(folder, process):
                    return False  # it may be over in a moment, and its runner with another job
                began = outcome.started if outcome and outcome.started else turn.now
                job = turn.move(
                    job, "started", state=JobState.RUNNING, process=process, started=began
                )
                self._starter.forget(job)
                if outcome is None:
                    return False
        if outcome is None and look and job.process and not lives(folder, job.process):
            # the record may have been written between the two looks
            outcome = outcome_of(folder, job) or self._lost(job)
        if outcome is None:
            return False
        if FAULT in outcome.reason and not outcome.again:
            outcome = replace(outcome, again=self._may_go_again(job, folder))
        self.end(turn, job, outcome)
        return True

    def _await_claim(self, turn: Turn, job: Job) -> bool:
        here = {gpu.uuid for gpu in self._sight.machine.gpus}
        if job.placement is not None and not here.issuperset(job.placement.gpus):
            # its GPUs are gone; once the attempt is void, no order on its way can start it
            if void(self._home.attempt(job.id, job.attempt)):
                self.end(turn, job, Outcome.again_because("its GPU is no longer there"))
                return True
            return False
        self._starter.press(turn, job)
        return False

    def _lost(self, job: Job) -> Outcome | None:
        """The runner is gone without a record: end what it left and say what happened."""
        folder = self._home.attempt(job.id, job.attempt)
        assert job.process is not None
        if not sweep(folder):
            return None  # what is left of it still holds its GPUs
        if job.asked == "cancel":
            return Outcome.cancelled("cancelled while it ran; its runner was killed")
        # after a power cut the mark may be missing although the payload had begun
        begun = has_begun(folder) or not same_boot(job.process)
        return Outcome.lost(job.process, again=self._may_go_again(job, folder, begun=begun))

    def _may_go_again(self, job: Job, folder: Path, *, begun: bool = True) -> bool:
        """Whether a job that something else has ended is put back."""
        may = job.request.restartable or job.request.resumable or is_resumable(folder)
        # one that takes its runner or the machine down each time must not do so for ever
        return (may or not begun) and self._losses(job) < _MOST_LOSSES

    def _losses(self, job: Job) -> int:
        """How often a job has been put back because something else had ended it."""
        reasons = (
            event.data.get("reason", "")
            for event in self._store.events(job_id=job.id)
            if event.kind == "requeued"
        )
        return sum(is_loss(reason) for reason in reasons)

    def end(self, turn: Turn, job: Job, outcome: Outcome) -> None:
        """Record that an attempt is over: the job has ended, or waits again."""
        turn.leave(job, self._signs.end_of(job, outcome, turn.now))
        self._signs.forget(job)
        self._starter.forget(job)
        self._evictor.forget(job)
        folder = self._home.attempt(job.id, job.attempt)
        peak = highest(job, folder, self._sight.machine)
        note_excess(turn, job, peak or 0)
        more = once_more(job, outcome, folder, self._sight.machine, self._settings.current)
        if outcome.again or more:
            front = outcome.aside or more
            again = turn.move(
                job, "requeued", state=JobState.QUEUED, placement=None, process=None,
                started=None, expected=None, latest=None, asked="", peak=peak,
                frozen=0.0, frozen_at=None, request=job.wants, resized=None, hold=None, loan=None,
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
            returncode=outcome.returncode, reason=outcome.reason, peak=peak, loan=None,
            **unfrozen(job, outcome.ended or turn.now),
        )  # fmt: skip
        if ended.state is JobState.SUCCEEDED:
            self._learn_from(turn, ended)

    def _learn_from(self, turn: Turn, job: Job) -> None:
        """Take in what a run teaches; those of its command that wait are told anew."""
        if self._teacher.note(job):
            self._teacher.ask_for_like(turn, job)
