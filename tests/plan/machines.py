"""Small machines and queues to plan on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpuqueue.model import Gpu, Grant, Job, JobKind, JobState, Origin, Placement, Preset, Request
from gpuqueue.plan import Card, Estimate, Plan, Policy, Snapshot, Start

G = 1024**3
NOW = 1_000_000.0


def gpu(index: int = 0, memory: int | None = 24 * G, grain: int = 1) -> Gpu:
    return Gpu(f"GPU-{index}", index, "test card", memory, grain=grain)


def card(
    index: int = 0, memory: int | None = 24 * G, *, outside: int = 0, who: tuple[str, ...] = ()
) -> Card:
    return Card(gpu(index, memory), outside, who)


def policy(slots: int = 4, shared: int | None = 0, **rules: Any) -> Policy:
    return Policy(slots, None if shared is None else f"GPU-{shared}", **rules)


def job(
    id_: int, preset: str = "one", *, tag: str = "train", owner: str = "alice", **asked: Any
) -> Job:
    position = asked.pop("position", id_)
    return Job(
        id=id_, kind=JobKind.SCRIPT, state=JobState.QUEUED,
        request=Request(Preset(preset), **asked), tag=tag, owner=owner, command="true",
        cwd="/", origin=Origin(), submitted=NOW - 100, position=position,
    )  # fmt: skip


def run(
    waiting: Job, *gpus: int, compute: int = 1000, memory: int = 24 * G, whole: bool = True,
    slots: int = 1, started: float = NOW - 10, state: JobState = JobState.RUNNING,
) -> Job:  # fmt: skip
    """The job as it runs on those GPUs."""
    grants = tuple(Grant(f"GPU-{index}", compute, memory, whole) for index in gpus)
    return running(waiting, Placement(grants, slots), started, state)


def running(
    waiting: Job, placement: Placement, started: float = NOW, state: JobState = JobState.RUNNING
) -> Job:
    return replace(waiting, state=state, placement=placement, started=started)


def machine(
    cards: int | Iterable[Card] = 2,
    waiting: Iterable[Job] = (),
    running: Iterable[Job] = (),
    rules: Policy | None = None,
    *,
    parents: dict[int, JobState] | None = None,
    times: dict[int, float] | None = None,
) -> Snapshot:
    cards = [card(index) for index in range(cards)] if isinstance(cards, int) else cards
    return Snapshot(
        tuple(cards), tuple(waiting), tuple(running), rules or policy(), parents or {},
        {id_: Estimate(seconds) for id_, seconds in (times or {}).items()},
    )  # fmt: skip


def places(plan: Plan) -> dict[int, tuple[int, ...]]:
    """GPU indexes of every job that starts."""
    return {
        s.job: tuple(int(u.removeprefix("GPU-")) for u in s.placement.gpus) for s in plan.starts
    }


def begun(snapshot: Snapshot, start: Start, at: float = NOW) -> Job:
    """The started job as it then runs."""
    waiting = next(j for j in snapshot.waiting if j.id == start.job)
    return running(waiting, start.placement, at)
