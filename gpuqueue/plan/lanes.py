"""All GPUs and slots of a machine in one integer, so that one operation looks at all of them.

Every quantity that a job can take has a field of its own, with a guard bit above it. For a free
vector ``F``, all guards set, and a need ``N``, ``F - N`` keeps the guard of exactly those fields in
which the need fits: the borrow of each field stops at its own guard. (The technique is
known as SIMD within a register; Python's integers make the register as wide as the machine.)

Each GPU has a lane of these fields, lowest first:

- *room*: compute and company in one. A sharing job takes ``compute * 4096 + 1``, a whole job all of
  it, so that a whole job fits only where nobody is, and nobody fits beside it.
- *memory* in bytes.
- *light* and *other*, only where the queue has light jobs: each kind needs the other's field full.

Above the lanes is one field of slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from gpuqueue.model import WHOLE, Grant, Job, JobKind, Placement, Preset, Request
from gpuqueue.plan.need import could_hold, need_of, never_fits
from gpuqueue.plan.types import Card, Need, Policy, Snapshot

__all__ = ["COMPANY", "FULL", "Form", "Forms", "Lane", "Lanes", "is_open"]

COMPANY = 4096
"""Units of room in a thousandth of compute: the jobs of one GPU that can be told apart."""
_ROOM_BITS = 22
FULL = WHOLE * COMPANY + COMPANY - 1
"""The room of an empty GPU."""
_KIND_BITS = 12
_KIND = COMPANY - 1


class Form:
    """What all requests of one form have in common. Compared by identity.

    Attributes
    ----------
    need, never
        As ``need_of`` and ``never_fits`` tell.
    """

    __slots__ = ("able", "count", "gpus", "need", "never", "takes", "taking", "test", "whole")

    def __init__(self, need: Need, never: str | None) -> None:
        self.need = need
        self.never = never
        self.gpus = need.gpus
        self.whole = need.whole
        self.count = 0
        self.able = 0
        self.test = 0
        self.takes: tuple[int, ...] = ()
        self.taking: dict[int, int] = {}


class Forms:
    """Forms by the fields of the request that decide them, each worked out once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._gpus = [card.gpu for card in snapshot.cards]
        self._policy = snapshot.policy
        self._cards = snapshot.cards
        self._estimates = snapshot.estimates
        self._known: dict[tuple[object, ...], Form] = {}
        self._kernels: dict[Request, Form] = {}
        self._most: dict[tuple[int, bool], int | None] = {}

    def of(self, job: Job) -> Form:
        """The form of a job's request, with its learned memory where that decides anything.

        It does for a job that shares a GPU and named no memory. One that has whole GPUs keeps
        them: what was learned takes nothing from somebody who was promised a whole GPU.
        """
        request = job.wants  # one that is made to wait comes back with what it holds now
        if job.kind is JobKind.KERNEL:
            return self._resident(request)
        form = self[request]
        estimate = self._estimates.get(job.id)
        if estimate is None or estimate.memory is None or request.memory is not None:
            return form
        if form.whole or not form.gpus or form.never is not None:
            return form
        most = self.most(form)
        if most is None:
            return form
        return self[replace(request, memory=min(estimate.memory, most))]

    def each(self, jobs: Iterable[Job]) -> list[Form]:
        """The form of each job; as ``of``, and faster for many."""
        known, found = self._known, []
        remembers = any(each.memory is not None for each in self._estimates.values())
        kernel = JobKind.KERNEL
        for job in jobs:
            request = job.request
            form = known.get(
                (request.gpus, request.share, request.memory, request.slots, request.preset)
            )
            if form is None or remembers or job.kind is kernel or job.resized is not None:
                form = self.of(job)
            found.append(form)
        return found

    def _resident(self, request: Request) -> Form:
        """The form of a notebook's kernel: it takes no slot, since most of the time it idles."""
        form = self._kernels.get(request)
        if form is None:
            same = self[request]
            form = self._kernels[request] = Form(replace(same.need, slots=0), same.never)
        return form

    def most(self, form: Form) -> int | None:
        """Bytes that a sharing job can be given on each of its GPUs, on an empty machine.

        An estimate above that must not keep a job waiting for what there is nowhere. GPUs on
        which nobody may start count only where there are too few others. None where some GPU
        does not tell its size: a job of known memory could not go there.
        """
        key = form.gpus, form.need.light
        if key not in self._most:
            self._most[key] = self._find_most(*key)
        return self._most[key]

    def _find_most(self, gpus: int, light: bool) -> int | None:
        shared = self._policy.shared_gpu
        cards = [card for card in self._cards if not light or card.gpu.uuid == shared]
        sizes: dict[str, int] = {}
        for card in cards:
            if card.gpu.memory is None:
                return None
            sizes[card.gpu.uuid] = card.gpu.memory
        perc, drained = self._policy.gpu_free_perc, self._policy.drained
        usable = [
            sizes[card.gpu.uuid] - max(0, card.outside)
            for card in cards
            if is_open(card, perc) and card.gpu.uuid not in drained
        ]
        found = sorted(usable if len(usable) >= gpus else sizes.values(), reverse=True)
        return found[gpus - 1] if 0 < gpus <= len(found) else None

    def __getitem__(self, request: Request) -> Form:
        key = (request.gpus, request.share, request.memory, request.slots, request.preset)
        form = self._known.get(key)
        if form is None:
            form = self._known[key] = Form(
                need_of(request, self._gpus, self._policy),
                never_fits(request, self._gpus, self._policy),
            )
        return form


class Lane(NamedTuple):
    """One GPU's place in the integer: the shifts of its fields, and the card itself."""

    number: int
    card: Card
    room: int
    memory: int
    light: int
    other: int
    guard: int
    shared: bool
    closed: bool


class Lanes:
    """The layout for one snapshot, and the conversion of needs and placements into it.

    Attributes
    ----------
    guards
        All guard bits; ``slot_guard`` is that of the slots.
    folds
        Shifts that bring the guards of a lane's other fields down to that of its room.
    marks
        The room guards of all lanes: a set of GPUs is a selection of these bits.
    closed
        Marks of the GPUs on which nobody may be the first, for the programs outside the queue.
    full
        The empty machine.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        policy = snapshot.policy
        self.policy: Policy = policy
        cards = sorted(snapshot.cards, key=lambda card: (card.gpu.index, card.gpu.uuid))
        self.kinds = _has_light(snapshot.running) or _has_light(snapshot.waiting)
        memory_bits = max((c.gpu.memory or 0 for c in cards), default=0).bit_length() or 1
        width = _ROOM_BITS + 1 + memory_bits + 1
        self.folds = [memory_bits + 1]
        if self.kinds:
            self.folds += [memory_bits + 2 + _KIND_BITS, memory_bits + 3 + 2 * _KIND_BITS]
            width += 2 * (_KIND_BITS + 1)
        self.width = width
        self.lanes: list[Lane] = []
        self.full = self.guards = self.marks = self.closed = 0
        self.rooms = 0
        for number, card in enumerate(cards):
            base = number * width
            memory = base + _ROOM_BITS + 1
            kind = memory + memory_bits + 1
            mark = 1 << (base + _ROOM_BITS)
            closed = not is_open(card, policy.gpu_free_perc)
            shared = card.gpu.uuid == policy.shared_gpu
            other = kind + _KIND_BITS + 1
            lane = Lane(number, card, base, memory, kind, other, mark, shared, closed)
            self.lanes.append(lane)
            self.marks |= mark
            self.closed |= mark if closed else 0
            self.rooms |= ((1 << _ROOM_BITS) - 1) << base
            self.guards |= mark | 1 << (memory + memory_bits)
            free = 0 if card.gpu.memory is None else max(0, card.gpu.memory - max(0, card.outside))
            self.full |= FULL << base | free << memory
            if self.kinds:
                self.guards |= 1 << (kind + _KIND_BITS) | 1 << (other + _KIND_BITS)
                self.full |= _KIND << kind | _KIND << other
        self.slot_shift = len(cards) * width
        slots = max(0, policy.slots)
        self.slot_bits = max(slots, 1).bit_length()
        self.slot_guard = 1 << (self.slot_shift + self.slot_bits)
        # never taken: what brings other guards down to those of room brings this to that of slots
        self.guards |= self.slot_guard | self.slot_guard << self.folds[0]
        self.full |= slots << self.slot_shift
        self.by_uuid = {lane.card.gpu.uuid: lane for lane in self.lanes}
        self.memory_mask = (1 << memory_bits) - 1
        self.wholes: list[Lane] = []
        self.dear: Mapping[int, int]
        self.barred: float
        self.prefer({})
        self._memory_bits = memory_bits
        empty = sum(FULL << lane.room for lane in self.lanes)
        self.empty = empty + sum(_KIND << lane.light for lane in self.lanes if self.kinds)

    def prefer(self, dear: Mapping[int, int], barred: float = inf) -> None:
        """Of GPUs that do as well, choose those first whose number has the lowest rank here.

        One of rank ``barred`` or above is taken only where no other does.
        """
        self.dear, self.barred = dear, barred
        self.wholes = sorted(
            self.lanes, key=lambda lane: (dear.get(lane.number, 0), lane.shared, lane.room)
        )

    def bits_at(self, shift: int) -> int:
        """Width of the field that begins at a shift."""
        if shift >= self.slot_shift:
            return self.slot_bits
        within = shift % self.width
        if not within:
            return _ROOM_BITS
        return self._memory_bits if within == _ROOM_BITS + 1 else _KIND_BITS

    # -- needs -------------------------------------------------------------------------------

    def compile(self, form: Form) -> None:
        """Work out a form's test and takes in this layout, once."""
        if form.takes:
            return
        need = form.need
        form.count = need.slots
        slots = self.policy.slots if need.exclusive else need.slots
        # one that can never fit must not spill over into another field
        slots = min(slots, (1 << self.slot_bits) - 1)
        test = slots << self.slot_shift
        takes = []
        for lane in self.lanes:
            part = self._part(lane, need)
            if part is None:
                takes.append(0)
                continue
            form.able |= lane.guard
            fit, take = part
            test |= fit
            takes.append(take)
        form.test = test
        form.takes = (*takes, slots << self.slot_shift)

    def claim(self, job: Job) -> Form:
        """The form of what a running borrower lacks: the compute that it has borrowed, there."""
        grants = [g for g in (job.placement or Placement()).grants if g.gpu in self.by_uuid]
        compute = max((grant.compute for grant in grants), default=0)
        need = Need(len(grants), compute, 0, whole=False, light=False, slots=0, exclusive=False)
        form = Form(need, None)
        takes = [0] * (len(self.lanes) + 1)
        for grant in grants:
            lane = self.by_uuid[grant.gpu]
            form.able |= lane.guard
            takes[lane.number] = grant.compute * COMPANY << lane.room
        form.takes = tuple(takes)
        form.test = sum(takes)
        return form

    def without_compute(self, form: Form) -> Form:
        """What a compiled form takes but for its compute: where that would only be lent to it."""
        compute = form.need.compute * COMPANY
        twin = Form(replace(form.need, compute=0), form.never)
        *parts, slots = form.takes
        less = [compute << lane.room if parts[lane.number] else 0 for lane in self.lanes]
        twin.takes = (*(take - cut for take, cut in zip(parts, less, strict=True)), slots)
        twin.test, twin.able, twin.count = form.test - sum(less), form.able, form.count
        return twin

    def _part(self, lane: Lane, need: Need) -> tuple[int, int] | None:
        """What a need tests and takes of one GPU; None where it can never go."""
        card = lane.card
        total = card.gpu.memory
        if card.gpu.uuid in self.policy.drained:
            return None
        if not could_hold(card.gpu, need) or (need.light and not lane.shared):
            return None
        if need.whole:
            room = total is None or need.memory is None
            if not room and (need.memory or 0) > (total or 0) - max(0, card.outside):
                return None
            fit = take = FULL << lane.room
            if self.kinds:
                fit |= _KIND << lane.light | 1 << lane.other
                take |= 1 << lane.other
            return fit, take
        memory = need.memory if need.memory is not None else need.compute * (total or 0) // WHOLE
        amount = need.compute * COMPANY << lane.room | memory << lane.memory
        if need.light:
            return amount | _KIND << lane.other | 1 << lane.light, amount | 1 << lane.light
        amount += 1 << lane.room
        if not self.kinds:
            return amount, amount
        return amount | _KIND << lane.light | 1 << lane.other, amount | 1 << lane.other

    # -- what is held ------------------------------------------------------------------------

    def held(self, job: Job) -> list[tuple[int, int, int]]:
        """What a running job holds as (shift, bits, amount), field by field.

        Compute that it has only borrowed is not counted: that is its owners'.
        """
        placement = job.placement or Placement()
        request = job.request
        light = request.preset is Preset.LIGHT
        if request.preset is Preset.EXCLUSIVE:
            parts = [(self.slot_shift, self.slot_bits, max(0, self.policy.slots))]
        else:
            parts = [(self.slot_shift, self.slot_bits, placement.slots)]
        memory_bits = self.folds[0] - 1
        for grant in placement.grants:
            lane = self.by_uuid.get(grant.gpu)
            if lane is None:
                continue  # a grant on a GPU that is no longer managed has no ledger
            room = (0 if job.borrows else grant.compute * COMPANY) + (not light)
            parts.append((lane.room, _ROOM_BITS, FULL if grant.whole else room))
            if not grant.whole:
                parts.append((lane.memory, memory_bits, grant.memory))
            if self.kinds:
                parts.append((lane.light if light else lane.other, _KIND_BITS, 1))
        return parts

    def taking(self, form: Form, marks: int) -> int:
        """What a form takes on these GPUs, all in one."""
        return form.takes[-1] + sum(form.takes[lane.number] for lane in self.chosen(marks))

    def parts(self, form: Form, marks: int) -> list[tuple[int, int, int]]:
        """What a form takes on these GPUs, field by field as ``held`` has it."""
        fields = [(self.slot_shift, self.slot_bits)]
        take = self.taking(form, marks)
        for lane in self.chosen(marks):
            fields += [(lane.room, _ROOM_BITS), (lane.memory, self._memory_bits)]
            if self.kinds:
                fields += [(lane.light, _KIND_BITS), (lane.other, _KIND_BITS)]
        return [(shift, bits, take >> shift & (1 << bits) - 1) for shift, bits in fields]

    def clamped(self, free: int, parts: Iterable[tuple[int, int, int]]) -> int:
        """``free`` less the parts, each field at zero at the least."""
        for shift, bits, amount in parts:
            left = free >> shift & (1 << bits) - 1
            free -= min(left, amount) << shift
        return free

    def held_back(self, free: int, form: Form, lanes: Iterable[Lane], slots: int) -> int:
        """``free`` less what a form takes of these GPUs and slots, as far as it is there.

        Of what the form does not ask for, nothing is taken.
        """
        for lane in lanes:
            take = form.takes[lane.number]
            wanted = [(lane.memory, self._memory_bits)]
            if self.kinds:
                wanted += [(lane.light, _KIND_BITS), (lane.other, _KIND_BITS)]
                if form.need.light:
                    # nobody of the other kind may join
                    free -= (free >> lane.other & _KIND) << lane.other
                else:
                    free -= (free >> lane.light & _KIND) << lane.light
            for shift, bits in wanted:
                ask = take >> shift & (1 << bits) - 1
                free -= min(ask, free >> shift & (1 << bits) - 1) << shift
            room = free >> lane.room & (1 << _ROOM_BITS) - 1
            if form.whole:
                free -= room << lane.room
            else:
                free -= min(form.need.compute, room // COMPANY) * COMPANY << lane.room
        left = free >> self.slot_shift & (1 << self.slot_bits) - 1
        return free - (min(slots, left) << self.slot_shift)

    # -- answers -----------------------------------------------------------------------------

    def fits(self, form: Form, free: int, *, first: bool = True) -> int:
        """Marks of the GPUs on which the form fits; its slots are not looked at.

        ``first`` says that it would start with this, and not be there before.
        """
        found = free - form.test
        marks = found & form.able
        for fold in self.folds:
            marks &= found >> fold
        if self.closed and first:
            marks &= ~self.vacant(free) | ~self.closed
        return marks

    def startable(self, form: Form, free: int) -> bool:
        """Whether one more job of this form may start beside what is free."""
        if not (free - form.test) & self.slot_guard:
            return False
        return not form.gpus or self.fits(form, free).bit_count() >= form.gpus

    def some_room(self, free: int) -> bool:
        """Whether a slot is left; without one nothing starts."""
        return free >> self.slot_shift & (1 << self.slot_bits) - 1 > 0

    def vacant(self, free: int) -> int:
        """Marks of the GPUs that no job is on."""
        found = free - self.empty
        marks = found & self.marks
        if self.kinds:
            marks &= found >> self.folds[1]
        return marks

    def chosen(self, marks: int) -> list[Lane]:
        """The lanes whose marks are set, by index."""
        return [lane for lane in self.lanes if marks & lane.guard]

    def placement(self, form: Form, marks: int) -> Placement:
        """The placement that a form becomes on these GPUs."""
        need = form.need
        grants = []
        for lane in self.chosen(marks):
            gpu, outside = lane.card.gpu, max(0, lane.card.outside)
            if need.whole:
                left = 0 if gpu.memory is None else max(0, gpu.memory - outside)
                grants.append(Grant(gpu.uuid, WHOLE, left, whole=True))
                continue
            memory = need.memory
            if memory is None:
                memory = need.compute * (gpu.memory or 0) // WHOLE
            grants.append(Grant(gpu.uuid, need.compute, memory, whole=False))
        return Placement(tuple(grants), need.slots)


def _has_light(jobs: Iterable[Job]) -> bool:
    return Preset.LIGHT in {job.request.preset for job in jobs}


def is_open(card: Card, free_perc: int) -> bool:
    """Whether a job may be the first on a GPU, for all that programs outside the queue use."""
    total, outside = card.gpu.memory, max(0, card.outside)
    if total is None:
        # a percentage of an unknown size says nothing, so any stranger makes it taken
        return outside == 0
    return (total - outside) * 100 >= free_perc * total
