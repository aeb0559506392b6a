"""The decision at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType

from gpuqueue.plan.board import Board, end_if_started
from gpuqueue.plan.explain import explain
from gpuqueue.plan.passes import Shapes, in_order, run_pass, sift
from gpuqueue.plan.types import Drop, Snapshot, Start, Wait

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """What to do now, and why the rest waits.

    Attributes
    ----------
    starts
        Jobs to start, in queue order, each with its placement.
    drops
        Jobs whose parents failed, were cancelled or are gone, in queue order.
    snapshot, now
        What it was decided on; ``now`` in seconds since the epoch.
    """

    starts: tuple[Start, ...]
    drops: tuple[Drop, ...]
    snapshot: Snapshot = field(repr=False, compare=False)
    now: float = field(repr=False, compare=False)

    @cached_property
    def waits(self) -> Mapping[int, Wait]:
        """By job id, in queue order: every waiting job that is not dropped.

        Those that start now are among them, with reason ``STARTING``. Worked out on first use,
        since the controller plans far more often than anybody looks.
        """
        return MappingProxyType(explain(self.snapshot, self.now))

    def wait(self, job_id: int) -> Wait | None:
        """Why one job waits; None where it is dropped or was not waiting."""
        return self.waits.get(job_id)


def plan(snapshot: Snapshot, now: float) -> Plan:
    """Decide what to start and what to drop; ``now`` in seconds since the epoch.

    Jobs are taken by ``Job.order``. A job that cannot start now claims what it waits for, and no
    job behind it may take that (``gpuqueue.plan.claim``), so nobody is overtaken for ever. A job
    that waits for its parents, or that this machine can never run, holds nothing up.
    """
    drops, ready = sift(snapshot)
    board = Board(snapshot, now)
    starts: tuple[Start, ...] = ()
    if board.open_slots > 0 and board.exclusive is None:
        end = partial(end_if_started, snapshot, now)
        outcome = run_pass(board, in_order(ready), Shapes.of(snapshot), end)
        starts = tuple(Start(job.id, placement) for job, placement in outcome.starts)
    return Plan(starts, tuple(drops), snapshot, now)
