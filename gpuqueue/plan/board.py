"""The machine at one moment, as people talk of it: who holds what of each GPU, and the slots.

The sentences about waiting come from here; decisions are made on ``gpuqueue.plan.timeline``.
Compute is in thousandths, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuqueue.model import WHOLE, Grant, Job, Placement, Preset
from gpuqueue.plan.ends import end_of
from gpuqueue.plan.lanes import is_open
from gpuqueue.plan.need import could_hold
from gpuqueue.plan.types import Card, Need, Policy, Snapshot

__all__ = ["Board", "Part", "Resident", "Space", "Tally"]


class Part(NamedTuple):
    """What one job takes, or would take, of one GPU."""

    compute: int
    memory: int
    whole: bool
    light: bool


class Tally:
    """A sum of parts of one GPU."""

    __slots__ = ("compute", "light", "memory", "other", "whole")

    def __init__(self) -> None:
        self.compute = 0
        self.memory = 0
        self.whole = 0
        self.light = 0
        self.other = 0

    def add(self, part: Part) -> None:
        """Count a part in."""
        self.compute += part.compute
        self.memory += part.memory
        self.whole += part.whole
        self.light += part.light
        self.other += not part.light

    @property
    def empty(self) -> bool:
        """Nobody is counted here."""
        return not (self.light or self.other)


class Resident(NamedTuple):
    """A job that holds a placement.

    ``end`` is its expected end, not clamped to the present: infinite where unknown.
    """

    job: int
    placement: Placement
    end: float


class Space:
    """One GPU and who holds what of it."""

    __slots__ = (
        "card",
        "drained",
        "free",
        "gpu",
        "held",
        "index",
        "outside",
        "parts",
        "shared",
        "total",
    )

    def __init__(self, card: Card, policy: Policy) -> None:
        self.card = card
        self.drained = card.gpu.uuid in policy.drained
        self.gpu = card.gpu
        self.index = card.gpu.index
        self.total = card.gpu.memory
        self.outside = max(0, card.outside)
        self.shared = card.gpu.uuid == policy.shared_gpu
        self.free = is_open(card, policy.gpu_free_perc)
        self.held = Tally()
        self.parts: dict[int, Part] = {}

    def part(self, need: Need) -> Part | None:
        """What a need comes to on this GPU; None where it is too large for it."""
        if not could_hold(self.gpu, need):
            return None
        if need.whole:
            left = 0 if self.total is None else max(0, self.total - self.outside)
            return Part(WHOLE, left, whole=True, light=False)
        memory = need.memory
        if memory is None:
            memory = need.compute * (self.total or 0) // WHOLE
        return Part(need.compute, memory, whole=False, light=need.light)

    def fits(self, need: Need) -> bool:
        """Whether one more job of this need may start here now, beside those that are here."""
        part = self.part(need)
        if part is None or not self.mixes(need):
            return False
        if need.whole:
            return self.total is None or need.memory is None or need.memory <= part.memory
        if self.held.compute + part.compute > WHOLE:
            return False
        taken = self.outside + self.held.memory
        return self.total is None or taken + part.memory <= self.total

    def mixes(self, need: Need) -> bool:
        """Whether the kinds of jobs go together, whatever their amounts."""
        held = self.held
        if self.drained or held.whole or (held.empty and not self.free):
            return False
        if need.whole:
            return held.empty
        if need.light:
            return self.shared and not held.other
        return not held.light

    @property
    def memory_left(self) -> int | None:
        """Bytes that nobody holds or uses; None where the size is unknown."""
        if self.total is None:
            return None
        return max(0, self.total - self.outside - self.held.memory)


class Board:
    """All GPUs and slots of the machine at one moment."""

    __slots__ = ("exclusive", "residents", "slots", "spaces", "used")

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        policy = snapshot.policy
        cards = sorted(snapshot.cards, key=lambda card: (card.gpu.index, card.gpu.uuid))
        self.spaces = tuple(Space(card, policy) for card in cards)
        self.slots = policy.slots
        self.used = 0
        self.exclusive: int | None = None
        self.residents: dict[int, Resident] = {}
        for job in snapshot.running:
            self.take(job, job.placement or Placement(), end_of(snapshot, job, now))

    def take(self, job: Job, placement: Placement, end: float) -> None:
        """Count a job's placement in; compute that it has only borrowed is its owners'."""
        light = job.request.preset is Preset.LIGHT
        self.residents[job.id] = Resident(job.id, placement, end)
        self.used += placement.slots
        if job.request.preset is Preset.EXCLUSIVE:
            self.exclusive = job.id
        for space, grant in self._granted(placement):
            compute = 0 if job.borrows else grant.compute
            part = Part(compute, grant.memory, grant.whole, light)
            space.parts[job.id] = part
            space.held.add(part)

    def settle(self, job: Job) -> None:
        """Count in the compute of a borrower whose own it is from now on."""
        for space, grant in self._granted(job.placement or Placement()):
            space.parts[job.id] = space.parts[job.id]._replace(compute=grant.compute)
            space.held.compute += grant.compute

    def _granted(self, placement: Placement) -> Iterable[tuple[Space, Grant]]:
        # a grant on a GPU that is no longer managed has no ledger to count in
        by_uuid = {grant.gpu: grant for grant in placement.grants}
        return [
            (space, by_uuid[space.gpu.uuid]) for space in self.spaces if space.gpu.uuid in by_uuid
        ]
