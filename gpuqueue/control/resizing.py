"""What becomes of a wish for another share or memory of a job.

A job that runs has another placement from then on, and the same processes; its request stays what
it had asked for until it has to wait again. The request of one that waits is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuqueue.control.holding import Holder, Told
from gpuqueue.control.machine import managed_gpus, policy_of, snapshot_of
from gpuqueue.control.sight import Sight
from gpuqueue.control.turn import Turn
from gpuqueue.errors import GpuqueueError
from gpuqueue.model import TERMINAL, Intent, Job, JobState, Placement, Preset, Request, Size
from gpuqueue.paths import Home
from gpuqueue.plan import never_fits
from gpuqueue.plan.resize import resized
from gpuqueue.settings import SettingsFile
from gpuqueue.share import Effect, Standing, memcap

__all__ = ["EVENT", "Resizer"]

EVENT = "resized"
_BEGUN = "resizing"


class Resizer:
    """Carries out wishes for another size, or refuses them with what is free.

    What holds a job to its share may take its time to hold it to another: the size is recorded, and
    so the room is taken or given, and the wish stays open until that is done.
    """

    def __init__(self, home: Home, settings: SettingsFile, sight: Sight, holder: Holder) -> None:
        self._home = home
        self._settings = settings
        self._sight = sight
        self._holder = holder
        self._asked: dict[int, int] = {}
        self._heard: dict[int, Told] = {}

    def carry_out(self, turn: Turn, intent: Intent) -> bool:
        """Carry out a wish or refuse it; False if it must wait for a later turn."""
        job = turn.jobs.get(intent.job or 0)
        if job is None or job.state in TERMINAL:
            turn.intents.append((intent, f"job {intent.job} has ended or does not exist"))
            turn.actions.append(lambda: self._forget(intent.id))
            return True
        if job.state is JobState.STARTING or self._must_wait(turn, intent, job):
            return False  # what it starts with, or an earlier wish, is on its way
        heard = self._heard.get(intent.id)
        refused = ""
        if heard is not None:
            self._finish(turn, intent, job, heard)
        else:
            size = _sized(job.wants, intent.value)
            if job.state is JobState.QUEUED:
                refused = self._queued(turn, intent, job, size)
            else:
                placement = self._room(turn, job, size)
                refused = placement if isinstance(placement, str) else ""
                if not isinstance(placement, str) and not self._run(
                    turn, intent, job, placement, size
                ):
                    return False
        turn.intents.append((intent, f"job {job.id} {refused}" if refused else ""))
        turn.actions.append(lambda: self._forget(intent.id))
        return True

    def _must_wait(self, turn: Turn, intent: Intent, job: Job) -> bool:
        if intent.id in self._asked:
            return intent.id not in self._heard
        begun = {after.id for _, after, event, _ in turn.moves if event == _BEGUN}
        return job.id in begun or job.id in self._asked.values()

    def hear(self, told: Told) -> None:
        """Keep what has come of holding a job to another size, if the wish is still open."""
        if told.key in self._asked:
            self._heard[told.key] = told

    def _forget(self, wish: int) -> None:
        self._asked.pop(wish, None)
        self._heard.pop(wish, None)

    def _queued(self, turn: Turn, intent: Intent, job: Job, size: Size) -> str:
        settings, machine = self._settings.current, self._sight.machine
        gpus = managed_gpus(settings, machine.gpus)
        policy = policy_of(settings, machine.gpus)
        wanted = _wanted(job, size)
        if wanted.preset in (Preset.CPU, Preset.EXCLUSIVE) or wanted.gpus == 0:
            return f"is {wanted.preset}, which has no share or memory of its own"
        if sentence := never_fits(wanted, gpus, policy):
            return sentence
        words = dict.fromkeys(_changed(job, intent.value), str(Effect.NEXT_START))
        about = _told(intent, wanted.share, wanted.memory, words)
        turn.move(job, EVENT, request=wanted, about=about)
        # what it was promised was promised to a job of another size
        turn.know(job.id, expected=None, latest=None)
        return ""

    def _room(self, turn: Turn, job: Job, size: Size) -> Placement | str:
        snapshot = snapshot_of(
            turn.jobs.values(), {}, self._sight.machine, self._settings.current, mode=turn.mode
        )
        return resized(snapshot, job, _wanted(job, size), turn.now)

    def _run(self, turn: Turn, intent: Intent, job: Job, placement: Placement, size: Size) -> bool:
        """Give a job that runs another placement; False where something has yet to hold it there.

        The room is taken or given at once.
        """
        waits = self._holder.holds(job)
        if not waits or (placement, size) != (job.placement, job.resized):
            event = _BEGUN if waits else EVENT
            about = {"wish": intent.id} if waits else self._answer(intent, job, placement, {})
            job = turn.move(job, event, placement=placement, resized=size, about=about)
        if waits:
            turn.actions.append(lambda: self._ask(intent, job, placement))
        return not waits

    def _ask(self, intent: Intent, job: Job, placement: Placement) -> None:
        self._asked[intent.id] = job.id
        folder = self._home.attempt(job.id, job.attempt)
        self._holder.resize(job, placement, folder, intent.id)

    def _finish(self, turn: Turn, intent: Intent, job: Job, heard: Told) -> None:
        if job.placement is None:
            return  # it waits again meanwhile, with its new size
        effects = {str(subject): str(effect) for subject, effect in (heard.value or {}).items()}
        if heard.error:
            effects = dict.fromkeys(_changed(job, intent.value), str(Effect.NEXT_START))
        about = self._answer(intent, job, job.placement, effects, heard.error)
        turn.notes.append((job.id, EVENT, about))

    def _answer(
        self,
        intent: Intent,
        job: Job,
        placement: Placement,
        effects: Mapping[str, str],
        problem: str = "",
    ) -> dict[str, object]:
        grant = placement.grants[0]
        changed = _changed(job, intent.value)
        words = {name: effects.get(name, str(Standing.ADMITTED_ONLY)) for name in changed}
        over = self._over(job, placement)
        return _told(intent, grant.compute, grant.memory, words, over=over, problem=problem)

    def _over(self, job: Job, placement: Placement) -> int:
        """By how much a job uses more of a GPU than it has."""
        folder = self._home.attempt(job.id, job.attempt)
        try:
            return max((usage.over for usage in memcap.read(folder)), default=0)
        except GpuqueueError:  # nothing counts it but the driver
            used = (self._sight.machine.used or {}).get(job.id, {})
        over = (used.get(g.gpu, 0) - g.memory for g in placement.grants if not g.whole and g.memory)
        return max(0, *over, 0)


def _wanted(job: Job, size: Size) -> Request:
    return replace(job.wants, share=size.share, memory=size.memory)


def _sized(request: Request, value: Mapping[str, int | None]) -> Size:
    share, memory = value.get("share"), value.get("memory")
    return Size(
        request.share if share is None else share, request.memory if memory is None else memory
    )


def _changed(job: Job, value: Mapping[str, int | None]) -> tuple[str, ...]:
    """What a wish is about, as `Hold` names it; memory that nobody named goes with the share."""
    share = value.get("share") is not None
    memory = value.get("memory") is not None or (share and job.wants.memory is None)
    return tuple(name for name, given in (("compute", share), ("memory", memory)) if given)


def _told(
    intent: Intent,
    share: int | None,
    memory: int | None,
    applied: Mapping[str, str],
    *,
    over: int = 0,
    problem: str = "",
) -> dict[str, object]:
    """The answer to a wish, as the event has it."""
    return {
        "wish": intent.id, "share": share, "memory": memory, "applied": dict(applied),
        "over": over, "problem": problem,
    }  # fmt: skip
