"""The machine as one planning pass sees it: a ledger per GPU, the slots, and what is claimed.

Mutable, and never outlives the call that made it. Compute is in thousandths, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from gpuqueue.model import WHOLE, Grant, Job, JobState, Placement, Preset
from gpuqueue.plan.need import could_hold
from gpuqueue.plan.types import Card, Need, Snapshot

__all__ = ["Board", "Part", "Resident", "Space", "Tally", "end_if_started", "end_of", "run_time"]


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

    def add(self, part: Part, sign: int = 1) -> None:
        """Count a part in, or with ``sign=-1`` out."""
        self.compute += sign * part.compute
        self.memory += sign * part.memory
        self.whole += sign * part.whole
        self.light += sign * part.light
        self.other += sign * (not part.light)

    def copy(self) -> Tally:
        """An independent copy."""
        twin = Tally()
        twin.compute, twin.memory, twin.whole = self.compute, self.memory, self.whole
        twin.light, twin.other = self.light, self.other
        return twin

    @property
    def empty(self) -> bool:
        """Nobody is counted here."""
        return not (self.light or self.other)


NOTHING = Tally()


class Resident(NamedTuple):
    """A job that holds a placement.

    ``end`` is its expected end, not clamped to the present: infinite where unknown.
    """

    job: int
    placement: Placement
    light: bool
    exclusive: bool
    end: float


class Space:
    """One GPU: who holds what of it, and what jobs ahead in the queue claim of it."""

    __slots__ = (
        "card", "claimants", "claimed", "free", "gpu", "held", "index", "outside", "parts",
        "shared", "total",
    )  # fmt: skip

    def __init__(self, card: Card, *, shared: bool, free_perc: int) -> None:
        self.card = card
        self.gpu = card.gpu
        self.index = card.gpu.index
        self.total = card.gpu.memory
        self.outside = max(0, card.outside)
        self.shared = shared
        self.free = _is_free(self.total, self.outside, free_perc)
        self.held = Tally()
        self.claimed = Tally()
        self.parts: dict[int, Part] = {}
        self.claimants: list[tuple[int, int]] = []

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

    def fits(self, need: Need, *, claims: bool = True) -> bool:
        """Whether one more job of this need may start here now.

        ``claims=False`` overlooks what jobs ahead of it have claimed.
        """
        return self.admits(need, self.held, self.claimed if claims else NOTHING)

    def admits(self, need: Need, held: Tally, ahead: Tally) -> bool:
        """Whether the need fits beside ``held`` and ``ahead`` on this GPU."""
        part = self.part(need)
        if part is None or not self.mixes(need, held, ahead):
            return False
        if need.whole:
            return self.total is None or need.memory is None or need.memory <= part.memory
        # what it does not ask for it cannot take from the jobs ahead, however much they claim
        claimed = ahead.compute if part.compute else 0
        if held.compute + claimed + part.compute > WHOLE:
            return False
        claimed = ahead.memory if part.memory else 0
        taken = self.outside + held.memory + claimed
        return self.total is None or taken + part.memory <= self.total

    def mixes(self, need: Need, held: Tally, ahead: Tally) -> bool:
        """Whether the kinds of jobs go together, whatever their amounts."""
        if held.whole or ahead.whole:
            return False
        empty = held.empty
        if empty and not self.free:
            return False
        if need.whole:
            return empty and ahead.empty
        if need.light:
            return self.shared and not (held.other or ahead.other)
        return not (held.light or ahead.light)

    def grant(self, need: Need) -> Grant:
        """The grant that a need becomes on this GPU."""
        part = self.part(need)
        assert part is not None
        return Grant(self.gpu.uuid, part.compute, part.memory, part.whole)

    def left_over(self, need: Need) -> int:
        """How much stays unused if the need starts here: thousandths of compute plus of memory."""
        part = self.part(need)
        assert part is not None
        compute = WHOLE - self.held.compute - part.compute
        if not self.total:
            return compute
        memory = self.total - self.outside - self.held.memory - part.memory
        return compute + memory * WHOLE // self.total

    @property
    def memory_left(self) -> int | None:
        """Bytes that nobody holds or uses, claims overlooked; None where the size is unknown."""
        if self.total is None:
            return None
        return max(0, self.total - self.outside - self.held.memory)


def _is_free(total: int | None, outside: int, free_perc: int) -> bool:
    if total is None:
        # a percentage of an unknown size says nothing, so any stranger makes it taken
        return outside == 0
    return (total - outside) * 100 >= free_perc * total


class Board:
    """All GPUs and slots of the machine during one pass."""

    __slots__ = ("claimed_slots", "credited", "exclusive", "residents", "slots", "spaces", "used")

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        policy = snapshot.policy
        cards = sorted(snapshot.cards, key=lambda card: (card.gpu.index, card.gpu.uuid))
        self.spaces = tuple(
            Space(card, shared=card.gpu.uuid == policy.shared_gpu, free_perc=policy.gpu_free_perc)
            for card in cards
        )
        self.slots = policy.slots
        self.used = 0
        self.exclusive: int | None = None
        self.residents: dict[int, Resident] = {}
        self.claimed_slots = 0
        self.credited: set[int] = set()
        for job in snapshot.running:
            self.take(job, job.placement or Placement(), end_of(snapshot, job, now))

    @property
    def open_slots(self) -> int:
        """Slots that are neither used nor claimed; may be below zero."""
        return self.slots - self.used - self.claimed_slots

    def take(self, job: Job, placement: Placement, end: float) -> None:
        """Count a job's placement in."""
        light = job.request.preset is Preset.LIGHT
        exclusive = job.request.preset is Preset.EXCLUSIVE
        self.residents[job.id] = Resident(job.id, placement, light, exclusive, end)
        self.used += placement.slots
        if exclusive:
            self.exclusive = job.id
        for space, grant in self._granted(placement):
            part = Part(grant.compute, grant.memory, grant.whole, light)
            space.parts[job.id] = part
            space.held.add(part)

    def release(self, job_id: int) -> None:
        """Count a job's placement out."""
        resident = self.residents.pop(job_id)
        self.used -= resident.placement.slots
        if self.exclusive == job_id:
            self.exclusive = None
        for space, _ in self._granted(resident.placement):
            space.held.add(space.parts.pop(job_id), -1)

    def _granted(self, placement: Placement) -> Iterable[tuple[Space, Grant]]:
        # a grant on a GPU that is no longer managed has no ledger to count in
        by_uuid = {grant.gpu: grant for grant in placement.grants}
        return [
            (space, by_uuid[space.gpu.uuid]) for space in self.spaces if space.gpu.uuid in by_uuid
        ]

    def clear_claims(self) -> None:
        """Forget all claims: each pass makes them anew."""
        self.claimed_slots = 0
        self.credited.clear()
        for space in self.spaces:
            if space.claimants:
                space.claimed = Tally()
                space.claimants = []


def run_time(snapshot: Snapshot, job: Job) -> float | None:
    """Expected run time in seconds: the estimate, else what the request says; None if unknown."""
    estimate = snapshot.estimates.get(job.id)
    if estimate is not None and estimate.run_time is not None:
        return estimate.run_time
    return job.request.eta


def end_of(snapshot: Snapshot, job: Job, now: float) -> float:
    """When a running job is expected to end, in seconds since the epoch.

    In the past where it has outrun its estimate; infinite where unknown, as for a frozen job;
    minus infinite for a job that is being evicted, which ends at any moment.
    """
    if job.state is JobState.EVICTING:
        return -inf
    if job.state is JobState.FROZEN:
        return inf
    seconds = run_time(snapshot, job)
    if seconds is None:
        return inf
    return (now if job.started is None else job.started) + seconds


def end_if_started(snapshot: Snapshot, now: float, job: Job) -> float:
    """When a job that starts at ``now`` is expected to end; infinite where unknown."""
    seconds = run_time(snapshot, job)
    return inf if seconds is None else now + seconds
