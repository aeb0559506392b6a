"""What becomes of a client's wish about a job."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from gpuqueue.control.runners import ask, go_on, lives
from gpuqueue.control.turn import Turn, unfrozen
from gpuqueue.model import TERMINAL, Intent, IntentKind, Job, JobState
from gpuqueue.plan import Drop

__all__ = ["carry_out", "order_conflict", "with_children"]


def carry_out(
    turn: Turn,
    intent: Intent,
    take_back: Callable[[Job], bool],
    folder_of: Callable[[int, int], Path],
) -> bool:
    """Carry out an intent or refuse it; False if it must wait for a later turn.

    ``take_back`` makes the attempt of a starting job void, if no runner has claimed it yet.
    ``folder_of`` gives the directory of a job's attempt.
    """
    if intent.kind is IntentKind.UNKNOWN:
        words = "the controller is of an older gpuqueue and does not know this; restart it"
        turn.intents.append((intent, words))
        return True
    job = turn.jobs.get(intent.job or 0)
    if job is None or job.state in TERMINAL:
        turn.intents.append((intent, f"job {intent.job} has ended or does not exist"))
        return True
    if intent.kind in (IntentKind.CANCEL, IntentKind.INTERRUPT):
        return _end(turn, intent, job, take_back, folder_of)
    if intent.kind is IntentKind.PRIORITY:
        return _prioritise(turn, intent, job)
    if intent.kind is IntentKind.MOVE:
        return _move(turn, intent, job)
    return _swap(turn, intent, job)


def _end(
    turn: Turn,
    intent: Intent,
    job: Job,
    take_back: Callable[[Job], bool],
    folder_of: Callable[[int, int], Path],
) -> bool:
    interrupt = intent.kind is IntentKind.INTERRUPT
    what = "interrupted" if interrupt else "cancelled"
    if job.state is JobState.STARTING:
        if not take_back(job):
            return False  # its runner has it and will be told once it is known
        turn.leave(job)
        turn.move(
            job, "ended", state=JobState.CANCELLED, ended=turn.now, reason=f"{what} as it started"
        )
    if job.state is JobState.QUEUED:
        turn.move(
            job, "ended", state=JobState.CANCELLED, ended=turn.now, reason=f"{what} while it waited"
        )
    elif job.process is not None:
        # now, not after the record: if this process dies in between, the wish is still open and
        # the next lead sends it once more, which the runner understands
        number = signal.SIGINT if interrupt else signal.SIGTERM
        folder = folder_of(job.id, job.attempt)
        if not ask(folder, job.process, number) and lives(folder, job.process):
            turn.intents.append((intent, _out_of_reach(job)))
            return True
        if interrupt:
            turn.move(job, "interrupting")
        elif job.state is JobState.FROZEN:
            go_on([(folder, job.process)])  # to end in its own way
            changes = unfrozen(job, turn.now)
            turn.move(
                job, "cancelling", asked="cancel", state=JobState.RUNNING, reason="", **changes
            )
        else:
            turn.move(job, "cancelling", asked="cancel")
    turn.intents.append((intent, ""))
    return True


def _out_of_reach(job: Job) -> str:
    return (
        f"job {job.id} runs in another container, and there was no room for the doorbell by which "
        "its runner is asked from here; end its process in that container"
    )


def with_children(drops: Iterable[Drop], waiting: Iterable[Job]) -> dict[int, str]:
    """Jobs to cancel and why: those that the plan drops, and all that come after them."""
    found = {drop.job: drop.reason for drop in drops}
    if not found:
        return found
    children: dict[int, list[int]] = {}
    for job in waiting:
        for parent in job.request.after:
            children.setdefault(parent, []).append(job.id)
    queue = list(found)
    while queue:
        parent = queue.pop()
        for child in children.get(parent, ()):
            if child not in found:
                found[child] = f"comes after job {parent}, which was cancelled"
                queue.append(child)
    return found


def order_conflict(jobs: dict[int, Job], changed: dict[int, Job]) -> str:
    """Why a new queue order is not allowed: a job would stand before one it comes after."""
    after = {**jobs, **changed}
    for job in after.values():
        for parent in job.request.after:
            other = after.get(parent)
            if (
                other is not None
                and other.state is JobState.QUEUED
                and job.state is JobState.QUEUED
                and job.order < other.order
                and (job.id in changed or parent in changed)
            ):
                return f"job {job.id} comes after job {parent} and cannot be moved ahead of it"
    return ""


def _apply(turn: Turn, intent: Intent, event: str, changed: dict[int, Job]) -> bool:
    error = order_conflict(turn.jobs, changed)
    turn.intents.append((intent, error))
    if not error:
        for job_id, job in changed.items():
            turn.move(turn.jobs[job_id], event, request=job.request, position=job.position)
    return True


def _prioritise(turn: Turn, intent: Intent, job: Job) -> bool:
    if job.state is not JobState.QUEUED:
        turn.intents.append((intent, f"job {job.id} is {job.state}; only a waiting job can move"))
        return True
    value = intent.value
    if value is None:
        others = [
            other.request.priority
            for other in turn.jobs.values()
            if other.state is JobState.QUEUED and other.id != job.id
        ]
        value = max(others, default=-1) + 1
    moved = replace(job, request=replace(job.request, priority=value))
    return _apply(turn, intent, "moved", {job.id: moved})


def _swap(turn: Turn, intent: Intent, job: Job) -> bool:
    other = turn.jobs.get(intent.value or 0)
    for number, one in ((intent.job, job), (intent.value, other)):
        if one is None or one.state is not JobState.QUEUED:
            words = "has ended or does not exist" if one is None else f"is {one.state}"
            turn.intents.append((intent, f"job {number} {words}; only waiting jobs can swap"))
            return True
    assert other is not None
    changed = {
        job.id: replace(
            job,
            position=other.position,
            request=replace(job.request, priority=other.request.priority),
        ),
        other.id: replace(
            other,
            position=job.position,
            request=replace(other.request, priority=job.request.priority),
        ),
    }
    return _apply(turn, intent, "moved", changed)


def _move(turn: Turn, intent: Intent, job: Job) -> bool:
    """Put a waiting job right before or after another, in that one's priority.

    ``intent.value`` is ``["before" | "after", id]``. Nobody else's priority changes: the positions
    of that priority's jobs, and the job's own, are given out anew in the new order.
    """
    side, number = intent.value
    other = turn.jobs.get(number)
    for name, one in ((job.id, job), (number, other)):
        if one is None or one.state is not JobState.QUEUED:
            words = "has ended or does not exist" if one is None else f"is {one.state}"
            turn.intents.append((intent, f"job {name} {words}; only waiting jobs can move"))
            return True
    assert other is not None
    priority = other.request.priority
    row = sorted(
        (
            one
            for one in turn.jobs.values()
            if one.state is JobState.QUEUED
            and one.request.priority == priority
            and one.id != job.id
        ),
        key=lambda one: one.order,
    )
    positions = sorted([*(one.position for one in row), job.position])
    row.insert(row.index(other) + (side == "after"), job)
    request = replace(job.request, priority=priority)
    changed = {
        one.id: replace(one, position=place, request=request if one is job else one.request)
        for one, place in zip(row, positions, strict=True)
        if one.position != place or (one is job and one.request.priority != priority)
    }
    return _apply(turn, intent, "moved", changed)
