"""Compute that idle notebooks lend: who borrows it, who stands still, and who is an owner again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NOW, G, card, job, machine, policy

from gpuqueue.model import WHOLE, Grant, Job, JobKind, JobState, Loan, Placement, Request
from gpuqueue.plan import Card, Plan, Policy, Snapshot, WaitReason, plan, stranded
from gpuqueue.plan.lend import Allotted, allot

CARD = 80 * G


def book(id_: int, gpu: int = 0, share: int = 250, memory: int = 10 * G, **more: object) -> Job:
    """A notebook's kernel that runs in its share."""
    made = replace(
        job(id_, tag=f"n{id_}.ipynb"), kind=JobKind.KERNEL, submitted=NOW - 1000 + id_,
        request=Request(gpus=1, share=share, memory=memory), state=JobState.RUNNING,
        started=NOW - 900, placement=_placed((gpu,), share, memory, slots=0),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def _placed(gpus: tuple[int, ...], share: int, memory: int, slots: int = 1) -> Placement:
    return Placement(tuple(Grant(f"GPU-{n}", share, memory) for n in gpus), slots)


def borrower(
    id_: int, share: int, *gpus: int, paused: bool = False, started: float = NOW - 50,
    priority: int = 0, memory: int = G, eta: float | None = 600.0,
) -> Job:  # fmt: skip
    """A job that runs on lent compute, or stands still."""
    placement = _placed(gpus or (0,), share, memory)
    away = tuple((grant.gpu, share) for grant in placement.grants) if paused else ()
    made = job(id_, share=share, memory=memory, priority=priority, eta=eta, gpus=len(gpus) or 1)
    return replace(
        made, state=JobState.FROZEN if paused else JobState.RUNNING, placement=placement,
        started=started, loan=Loan(borrows=True, away=away), frozen_at=NOW - 5 if paused else None,
    )  # fmt: skip


def scene(
    running: list[Job], waiting: list[Job] = (), *, cards: int = 1,  # type: ignore[assignment]
    idle: dict[int, float] | None = None, **rules: object,
) -> Snapshot:  # fmt: skip
    """Cards of 80 GiB; ``idle`` maps kernels to how many seconds ago they computed last."""
    made = machine(
        [card(n, CARD) for n in range(cards)], waiting, running,
        policy(8, None, **rules),
    )  # fmt: skip
    since = {id_: NOW - ago for id_, ago in (idle or {}).items()}
    return replace(made, idle=since)


def quarters(count: int = 4, gpu: int = 0, first: int = 1) -> list[Job]:
    return [book(n, gpu) for n in range(first, first + count)]


def long_idle(jobs: list[Job]) -> dict[int, float]:
    return {each.id: 300.0 for each in jobs}


def starts(found: Plan) -> dict[int, bool]:
    """Which jobs start, and whether they borrow."""
    return {start.job: start.borrows for start in found.starts}


# -- who borrows -----------------------------------------------------------------------------------


def test_idle_notebooks_lend_their_compute_but_no_memory() -> None:
    books = quarters()
    fits, too_large = job(10, share=500, memory=40 * G), job(11, share=500, memory=41 * G)
    found = plan(scene(books, [fits], idle=long_idle(books)), NOW)
    assert starts(found) == {10: True}
    (start,) = found.starts
    assert start.placement == _placed((0,), 500, 40 * G)
    wait = found.waits[10]
    assert wait.reason is WaitReason.STARTING
    assert wait.sentence == "starts now on GPU 0, on compute that notebooks lend while they idle"
    assert starts(plan(scene(books, [too_large], idle=long_idle(books)), NOW)) == {}


def test_a_notebook_lends_only_after_a_while() -> None:
    books = quarters()
    waits = [job(10, share=500, memory=G)]
    assert starts(plan(scene(books, waits, idle=dict.fromkeys(range(1, 5), 59.0)), NOW)) == {}
    some = {1: 61.0, 2: 61.0, 3: 3.0}
    assert starts(plan(scene(books, waits, idle=some), NOW)) == {10: True}
    assert starts(plan(scene(books, [job(10, share=501, memory=G)], idle=some), NOW)) == {}


def test_who_can_start_otherwise_does_not_borrow() -> None:
    books = quarters()
    found = plan(scene(books, [job(10, share=500, memory=G)], cards=2, idle=long_idle(books)), NOW)
    assert starts(found) == {10: False}
    assert found.starts[0].placement.gpus == ("GPU-1",)


def test_what_is_free_is_borrowed_beside_what_is_lent() -> None:
    books = quarters(2)
    found = plan(scene(books, [job(10, share=900, memory=G)], idle={1: 100.0}), NOW)
    assert starts(found) == {}
    found = plan(scene(books, [job(10, share=750, memory=G)], idle={1: 100.0}), NOW)
    assert starts(found) == {10: True}


def test_only_those_borrow_that_the_setting_names() -> None:
    books = quarters()
    firm = job(10, share=500, memory=G)
    loose = job(11, share=500, memory=G, preemptible=True)
    idle = long_idle(books)
    assert starts(plan(scene(books, [firm, loose], idle=idle, lend="preemptible"), NOW)) == {
        11: True
    }
    assert starts(plan(scene(books, [firm, loose], idle=idle, lend="off"), NOW)) == {}


def test_neither_whole_gpus_nor_light_work_is_borrowed() -> None:
    books = quarters()
    for waits in (job(10), job(10, "light", memory=G), job(10, share=1000, memory=G)):
        assert starts(plan(scene(books, [waits], idle=long_idle(books)), NOW)) == {}


def test_a_borrower_touches_no_memory_that_is_reserved() -> None:
    """Another will start on that card when a job there ends; memory for it stays free."""
    holds = replace(
        job(5, eta=100.0), state=JobState.RUNNING, started=NOW - 10,
        placement=_placed((0,), 250, 10 * G),
    )  # fmt: skip
    books = quarters(3)
    ahead = job(9, share=250, memory=50 * G, eta=1000.0)
    idle = long_idle(books)
    for memory, length, starts_now in ((10, 50.0, True), (10, 500.0, False), (0, 500.0, True)):
        comes = job(10, share=500, memory=memory * G, eta=length)
        found = plan(scene([holds, *books], [ahead, comes], idle=idle), NOW)
        # the one ahead may borrow itself; leave it out of that by who may
        found = plan(
            replace(
                found.snapshot,
                waiting=(ahead, replace(comes, request=replace(comes.request, preemptible=True))),
                policy=replace(found.snapshot.policy, lend="preemptible"),
            ),
            NOW,
        )
        assert starts(found) == ({10: True} if starts_now else {}), (memory, length)


def test_several_borrow_until_nothing_is_left_to_lend() -> None:
    books = quarters()
    waits = [job(n, share=400, memory=G) for n in range(10, 14)]
    assert starts(plan(scene(books, waits, idle=long_idle(books)), NOW)) == {10: True, 11: True}


def test_nobody_new_borrows_where_a_borrower_stands_still() -> None:
    books = quarters()
    stands = borrower(10, 800, paused=True)
    waits = [job(11, share=250, memory=G)]
    idle = {1: 300.0, 2: 300.0, 3: 300.0}
    assert starts(plan(scene([*books, stands], waits, idle=idle), NOW)) == {}


# -- who stands still ------------------------------------------------------------------------------


def standing(found: dict[int, Allotted]) -> set[int]:
    return {id_ for id_, each in found.items() if each.stands}


def test_an_owner_that_computes_has_its_compute_back() -> None:
    books = quarters()
    runs = borrower(10, 900)
    calm = dict(allot(scene([*books, runs], idle=long_idle(books)), NOW))
    assert calm[10] == Allotted(Loan(borrows=True), for_=(("GPU-0", (1, 2, 3, 4)),))
    assert [calm[n].loan for n in (1, 4)] == [
        Loan(away=(("GPU-0", 250),)), Loan(away=(("GPU-0", 150),)),
    ]  # fmt: skip
    idle = long_idle(books[:2]) | {3: 4.0}  # the third has rested for less than it takes
    found = dict(allot(scene([*books, runs], idle=idle), NOW))
    assert found[10].stands
    assert found[10].for_ == (("GPU-0", (3, 4)),)
    assert found[10].loan == Loan(borrows=True, away=(("GPU-0", 900),))
    lent = [each.loan for id_, each in found.items() if id_ != 10 and each.loan]
    assert lent == []


def test_as_few_stand_still_as_do_the_lowest_and_newest_first() -> None:
    books = quarters()
    idle = long_idle(books[1:])  # the first computes: 250 are to be given back
    low, old = borrower(10, 250, priority=-1, started=NOW - 90), borrower(11, 250)
    new, big = borrower(12, 250, started=NOW - 5), borrower(13, 250, priority=1)
    assert standing(dict(allot(scene([*books, low, old, new, big], idle=idle), NOW))) == {10}
    assert standing(dict(allot(scene([*books, old, new, big], idle=idle), NOW))) == set()
    three = [old, new, big, borrower(14, 250, started=NOW - 1)]
    assert standing(dict(allot(scene([*books, *three], idle=idle), NOW))) == {14}
    # one that is large enough rather than two that are newer
    wide = [borrower(15, 500, started=NOW - 80), borrower(16, 250), borrower(17, 250)]
    idle = long_idle(books[2:])
    assert standing(dict(allot(scene([*books, *wide], idle=idle), NOW))) == {15}


def test_they_go_on_oldest_first_and_nobody_passes_one_that_came_before() -> None:
    books = quarters()
    first, second = (
        borrower(10, 500, paused=True, started=NOW - 90),
        borrower(11, 250, paused=True, started=NOW - 80),
    )
    idle = long_idle(books[:1])
    both = [*books, first, second]
    assert standing(dict(allot(scene(both, idle=idle), NOW))) == {10, 11}
    assert standing(dict(allot(scene(both, idle=long_idle(books[:2])), NOW))) == {11}
    assert standing(dict(allot(scene(both, idle=long_idle(books[:3])), NOW))) == set()


def test_a_borrower_on_two_cards_needs_both() -> None:
    books = [*quarters(), *quarters(4, 1, 5)]
    runs = borrower(10, 500, 0, 1)
    idle = long_idle(books[:7])
    assert standing(dict(allot(scene([*books, runs], cards=2, idle=idle), NOW))) == set()
    idle = long_idle(books[:4])
    found = dict(allot(scene([*books, runs], cards=2, idle=idle), NOW))
    assert standing(found) == {10}
    assert found[10].for_ == (("GPU-1", (5, 6, 7, 8)),)
    assert all(each.loan is None or id_ == 10 for id_, each in found.items())


# -- owners again ----------------------------------------------------------------------------------


def test_a_borrower_is_settled_once_there_is_compute_of_its_own() -> None:
    books = quarters()
    for stands in (False, True):
        runs = borrower(10, 500, paused=stands)
        assert plan(scene([*books, runs], idle=long_idle(books)), NOW).settled == ()
        assert plan(scene([*books[:3], runs]), NOW).settled == ()
        assert plan(scene([*books[:2], runs]), NOW).settled == (10,)


def test_it_is_in_line_for_that_where_it_was() -> None:
    books = quarters(2)
    behind, ahead = job(11, share=500, memory=G), job(9, share=500, memory=G)
    runs = borrower(10, 500)
    found = plan(scene([*books, runs], [behind], idle=long_idle(books), lend="off"), NOW)
    assert (found.settled, starts(found)) == ((10,), {})
    found = plan(scene([*books, runs], [behind], idle=long_idle(books)), NOW)
    assert (found.settled, starts(found)) == ((10,), {11: True})
    found = plan(scene([*books, runs], [ahead], idle=long_idle(books)), NOW)
    assert (found.settled, starts(found)) == ((), {9: False})
    # who owns compute takes it from who has only borrowed it, once it runs
    found = plan(scene([*books, runs], [replace(ahead, position=99)], idle={}), NOW)
    assert found.settled == (10,)


def test_nobody_is_told_of_a_promise_to_one_that_runs() -> None:
    books = quarters()
    runs = borrower(10, 500)
    found = plan(scene([*books, runs], [job(11, share=500, memory=G)]), NOW)
    assert 10 not in found.waits
    assert 10 not in {promise.job for promise in found.promises}


def test_one_that_stands_still_for_long_starts_elsewhere_if_it_may_be_run_again() -> None:
    books = quarters()
    loose = replace(borrower(10, 500, paused=True), frozen_at=NOW - 301)
    loose = replace(loose, request=replace(loose.request, restartable=True))
    assert stranded(scene([*books, loose]), NOW) is None
    assert stranded(scene([*books, loose], cards=2), NOW) is loose
    firm = replace(loose, request=replace(loose.request, restartable=False))
    assert stranded(scene([*books, firm], cards=2), NOW) is None
    young = replace(loose, frozen_at=NOW - 299)
    assert stranded(scene([*books, young], cards=2), NOW) is None
    runs = replace(loose, state=JobState.RUNNING, frozen_at=None)
    assert stranded(scene([*books, runs], cards=2), NOW) is None


# -- more notebooks than compute -------------------------------------------------------------------


def asks(id_: int, **asked: object) -> Job:
    asked = {"gpus": 1, "share": 250, "memory": 10 * G, **asked}
    return replace(
        job(id_), kind=JobKind.KERNEL, request=Request(**asked),  # type: ignore[arg-type]
    )  # fmt: skip


def test_more_notebooks_than_compute_only_where_it_is_allowed() -> None:
    books = quarters()
    idle = long_idle(books)
    assert starts(plan(scene(books, [asks(10)], idle=idle), NOW)) == {}
    assert starts(plan(scene(books, [asks(10)], idle=idle, overcommit=1250), NOW)) == {10: True}
    assert starts(plan(scene(books, [asks(10)], overcommit=1250), NOW)) == {10: True}
    assert starts(plan(scene(books, [asks(10)], idle=idle, overcommit=1249), NOW)) == {}
    room = [replace(each, placement=_placed((0,), 250, 20 * G, 0)) for each in books]
    assert starts(plan(scene(room, [asks(10)], idle=idle, overcommit=2000), NOW)) == {}
    # what jobs hold they do not let go of
    holds = replace(job(5), state=JobState.RUNNING, started=NOW, placement=_placed((0,), 900, G))
    assert starts(plan(scene([holds], [asks(10)], overcommit=2000), NOW)) == {}


def test_the_most_junior_of_the_busy_notebooks_waits() -> None:
    seniors = quarters()
    juniors = [
        book(n, loan=Loan(borrows=True, away=(("GPU-0", 250),)), memory=5 * G) for n in range(5, 9)
    ]
    all_ = [*seniors, *juniors]
    idle = dict.fromkeys((1, 2, 3, 4, 7, 8), 300.0)
    found = dict(allot(scene(all_, idle=idle), NOW))
    assert standing(found) == set()
    assert [found[n].loan for n in (5, 7)] == [
        Loan(borrows=True), Loan(borrows=True, away=(("GPU-0", 250),)),
    ]  # fmt: skip
    idle = {4: 300.0}  # all the others compute: the oldest junior has what the fourth lends
    found = dict(allot(scene(all_, idle=idle), NOW))
    assert standing(found) == {6, 7, 8}
    assert found[6].for_ == (("GPU-0", (1, 2, 3, 5)),)
    # other borrowers make way for a notebook's cell
    runs = borrower(20, 250)
    found = dict(allot(scene([*all_, runs], idle={4: 300.0, 6: 9.0, 7: 9.0, 8: 9.0}), NOW))
    assert standing(found) == {20}


# -- whatever happens ------------------------------------------------------------------------------


class World:
    """Plays what the controller does with plans and allotments, and checks it at each step."""

    def __init__(self, cards: list[Card], rules: Policy) -> None:
        self.cards, self.rules, self.now = cards, rules, NOW
        self.running: dict[int, Job] = {}
        self.waiting: dict[int, Job] = {}
        self.idle: dict[int, float] = {}

    def snapshot(self) -> Snapshot:
        idle = {id_: at for id_, at in self.idle.items() if id_ in self.running}
        made = machine(self.cards, self.waiting.values(), self.running.values(), self.rules)
        return replace(made, idle=idle)

    def turn(self) -> None:
        found = plan(self.snapshot(), self.now)
        for id_ in found.settled:
            own = self.running[id_]
            self.running[id_] = replace(own, loan=None, state=JobState.RUNNING)
        for start in found.starts:
            begun = self.waiting.pop(start.job)
            self.running[start.job] = replace(
                begun, state=JobState.RUNNING, placement=start.placement, started=self.now,
                loan=Loan(borrows=True) if start.borrows else None,
            )  # fmt: skip
        for id_ in [id_ for id_, each in self.waiting.items() if each.kind is JobKind.KERNEL]:
            del self.waiting[id_]  # it is refused
        for id_, each in allot(self.snapshot(), self.now).items():
            state = JobState.FROZEN if each.stands else JobState.RUNNING
            self.running[id_] = replace(self.running[id_], loan=each.loan, state=state)
        self.check()

    def check(self) -> None:
        used: dict[str, int] = defaultdict(int)
        memory: dict[str, int] = defaultdict(int)
        for each in self.running.values():
            assert each.placement is not None
            for grant in each.placement.grants:
                away = 0 if each.loan is None else each.loan.on(grant.gpu)
                assert 0 <= away <= grant.compute
                used[grant.gpu] += grant.compute - away
                memory[grant.gpu] += grant.memory
                # what a borrower lacks is all or nothing, and it stands still without it
                if each.borrows:
                    assert away in (0, grant.compute)
                    rests = each.id in self.idle
                    assert (away > 0) == (each.state is JobState.FROZEN) or rests
                elif away:
                    # only who rests lends: an owner that computes has all that it owns
                    assert self.now - self.idle[each.id] >= self.rules.lend_again
        for one in self.cards:
            assert used[one.gpu.uuid] <= WHOLE
            assert memory[one.gpu.uuid] <= (one.gpu.memory or 0)
        slots = sum(each.placement.slots for each in self.running.values() if each.placement)
        assert slots <= self.rules.slots


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["job", "book", "busy", "rest", "end", "wait", "resize", "restart"]),
        st.integers(0, 30),
        st.sampled_from([125, 250, 333, 500, 750, 900]),
        st.sampled_from([0, G, 10 * G, 30 * G]),
    ),
    max_size=40,
)


@given(
    STEPS,
    st.integers(1, 3),
    st.sampled_from(["all", "all", "preemptible", "off"]),
    st.sampled_from([1000, 1000, 1500, 3000]),
)
@settings(deadline=None)
def test_never_more_in_use_than_there_is_and_owners_have_theirs(
    steps: list[tuple[str, int, int, int]], cards: int, lend: str, overcommit: int
) -> None:
    rules = policy(6, None, lend=lend, overcommit=overcommit, lend_after=60.0, lend_again=5.0)
    world = World([card(n, CARD) for n in range(cards)], rules)
    for number, step in enumerate(steps, 1):
        world.now += 1 + step[1] % 3
        _step(world, number, step)
        world.turn()
    # once every notebook rests and nobody waits, none stands still for whom there is room
    world.idle = dict.fromkeys(_books(world), NOW)
    world.now += 1000
    world.waiting.clear()
    world.turn()
    taken: dict[str, int] = defaultdict(int)
    for each in world.running.values():
        for grant in each.placement.grants if each.placement else ():
            taken[grant.gpu] += 0 if each.kind is JobKind.KERNEL else grant.compute
    for each in world.running.values():
        gpus = each.placement.gpus if each.placement else ()
        assert each.state is JobState.RUNNING or max(taken[gpu] for gpu in gpus) > WHOLE


def _books(world: World) -> list[int]:
    return sorted(id_ for id_, each in world.running.items() if each.kind is JobKind.KERNEL)


def _step(world: World, number: int, step: tuple[str, int, int, int]) -> None:
    what, which, share, memory = step
    books = _books(world)
    picked = books[which % len(books)] if books else 0
    if what == "job":
        eta = [None, 60.0, 600.0][which % 3]
        world.waiting[number] = job(
            number, share=share, memory=memory, eta=eta, priority=which % 2,
            preemptible=which % 4 == 0, gpus=1 + which % 2,
        )  # fmt: skip
    elif what == "book":
        world.waiting[number] = asks(number, share=min(share, 500), memory=memory)
    elif what == "busy":
        world.idle.pop(picked, None)
    elif what == "rest" and picked:
        world.idle[picked] = world.now - [0.0, 3.0, 30.0, 300.0][which % 4]
    elif what == "end" and world.running:
        gone = sorted(world.running)[which % len(world.running)]
        del world.running[gone]
        world.idle.pop(gone, None)
    elif what == "wait":
        world.now += [1.0, 10.0, 100.0][which % 3]
    elif what == "resize" and picked:
        _resize(world, picked, share)
    elif what == "restart":
        world.idle.clear()


def _resize(world: World, id_: int, share: int) -> None:
    from gpuqueue.plan.resize import resized

    held = world.running[id_]
    wanted = replace(held.request, share=share)
    found = resized(world.snapshot(), held, wanted, world.now)
    if not isinstance(found, str):
        world.running[id_] = replace(held, placement=found, request=wanted)


@given(STEPS, st.integers(1, 2))
@settings(deadline=None)
def test_those_that_borrow_put_nobody_off_who_is_ahead(
    steps: list[tuple[str, int, int, int]], cards: int
) -> None:
    """The first in line is expected no later once those behind it have borrowed."""
    world = World([card(n, CARD) for n in range(cards)], policy(6, None, reorder_slack=0.0))
    for number, step in enumerate(steps, 1):
        world.now += 1 + step[1] % 3
        _step(world, number, step)
        before = plan(world.snapshot(), world.now)
        world.turn()
        left = sorted(world.waiting.values(), key=lambda each: each.order)
        if left and (expected := before.expected.get(left[0].id)) is not None:
            after = plan(world.snapshot(), world.now).expected.get(left[0].id)
            assert after is not None
            assert after <= expected
