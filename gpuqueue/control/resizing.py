"""What becomes of a wish for another share or memory of a job.

A job that runs has another placement from then on, and the same processes; its request stays what
it had asked for until it has to wait again. The request of one that waits is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuqueue.control.machine import Machine, managed_gpus, policy_of, snapshot_of
from gpuqueue.control.sight import Sight
from gpuqueue.control.turn import Turn
from gpuqueue.model import TERMINAL, Intent, Job, JobState, Placement, Preset, Request, Size
from gpuqueue.plan import never_fits
from gpuqueue.plan.resize import resized
from gpuqueue.settings import SettingsFile
from gpuqueue.share import Effect, Standing

__all__ = ["EVENT", "Applied", "Resizer"]

EVENT = "resized"


@dataclass(frozen=True, slots=True)
class Applied:
    """From when another size holds: of ``compute`` and ``memory``, those that are changed.

    The words are those of `Effect`, or ``admitted only`` where nothing holds the job to it.
    ``over`` is the most bytes by which it uses more of one GPU than it now has.
    """

    words: Mapping[str, str] = field(default_factory=dict)
    over: int = 0


class Resizer:
    """Carries out wishes for another size, or refuses them with what is free."""

    def __init__(self, settings: SettingsFile, sight: Sight) -> None:
        self._settings = settings
        self._sight = sight

    def carry_out(self, turn: Turn, intent: Intent) -> bool:
        """Carry out a wish or refuse it; False if it must wait for a later turn."""
        job = turn.jobs.get(intent.job or 0)
        if job is None or job.state in TERMINAL:
            turn.intents.append((intent, f"job {intent.job} has ended or does not exist"))
            return True
        if job.state is JobState.STARTING:
            return False  # what it starts with is on its way
        size = _sized(job.wants, intent.value)
        wanted = replace(job.wants, share=size.share, memory=size.memory)
        work = self._queued if job.state is JobState.QUEUED else self._running
        refused = work(turn, intent, job, wanted)
        turn.intents.append((intent, f"job {job.id} {refused}" if refused else ""))
        return True

    def _queued(self, turn: Turn, intent: Intent, job: Job, wanted: Request) -> str:
        settings, machine = self._settings.current, self._sight.machine
        gpus = managed_gpus(settings, machine.gpus)
        policy = policy_of(settings, machine.gpus)
        if wanted.preset in (Preset.CPU, Preset.EXCLUSIVE) or wanted.gpus == 0:
            return f"is {wanted.preset}, which has no share or memory of its own"
        if sentence := never_fits(wanted, gpus, policy):
            return sentence
        applied = Applied(dict.fromkeys(_changed(intent.value), Effect.NEXT_START))
        turn.move(job, EVENT, request=wanted, about=_told(intent, wanted, None, applied))
        # what it was promised was promised to a job of another size
        turn.know(job.id, expected=None, latest=None)
        return ""

    def _running(self, turn: Turn, intent: Intent, job: Job, wanted: Request) -> str:
        machine = self._sight.machine
        snapshot = snapshot_of(
            turn.jobs.values(), {}, machine, self._settings.current, mode=turn.mode
        )
        placement = resized(snapshot, job, wanted, turn.now)
        if isinstance(placement, str):
            return placement
        # before the record: if this process dies in between, the wish is still open
        applied = self._apply(job, placement, _changed(intent.value))
        turn.move(
            job, EVENT, placement=placement, resized=Size(wanted.share, wanted.memory),
            about=_told(intent, wanted, placement, applied),
        )  # fmt: skip
        return ""

    def _apply(self, job: Job, placement: Placement, changed: tuple[str, ...]) -> Applied:
        return Applied(
            dict.fromkeys(changed, Standing.ADMITTED_ONLY),
            _over(self._sight.machine, job, placement),
        )


def _sized(request: Request, value: Mapping[str, int | None]) -> Size:
    share, memory = value.get("share"), value.get("memory")
    return Size(
        request.share if share is None else share, request.memory if memory is None else memory
    )


def _changed(value: Mapping[str, int | None]) -> tuple[str, ...]:
    """What a wish is about, in the words of `Hold`."""
    names = (("share", "compute"), ("memory", "memory"))
    return tuple(word for name, word in names if value.get(name) is not None)


def _over(machine: Machine, job: Job, placement: Placement) -> int:
    """By how much a job was seen to use more of a GPU than it has."""
    used = (machine.used or {}).get(job.id, {})
    over = (used.get(g.gpu, 0) - g.memory for g in placement.grants if not g.whole and g.memory)
    return max(0, *over, 0)


def _told(
    intent: Intent, wanted: Request, placement: Placement | None, applied: Applied
) -> dict[str, object]:
    """The answer to a wish, as the event has it."""
    grants = placement.grants if placement else ()
    return {
        "wish": intent.id,
        "share": grants[0].compute if grants else wanted.share,
        "memory": grants[0].memory if grants else wanted.memory,
        "applied": {name: str(word) for name, word in applied.words.items()},
        "over": applied.over,
    }
