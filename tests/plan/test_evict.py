"""Who has to make room for whom."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NOW, G, job, machine, places, policy, run

from gpuqueue.model import JobState, Request
from gpuqueue.plan import Evict, Snapshot, evict, plan
from gpuqueue.plan.evict import SPARED, STOPS
from gpuqueue.simulate import TraceJob, measure, replay

DAY = 86_400.0


def _loose(id_: int, gpu: int, ran: float, priority: int = 0, *, preemptible: bool = True):
    asked = job(id_, eta=DAY, preemptible=preemptible, restartable=True, priority=priority)
    return run(asked, gpu, started=NOW - ran)


def test_the_newest_of_lowest_priority_goes() -> None:
    running = [_loose(1, 0, 900), _loose(2, 1, 100), _loose(3, 2, 10, 1)]
    found = plan(machine(3, [job(9, eta=60.0, priority=2)], running, policy(20, None)), NOW)
    assert found.evictions == (Evict(2, 9),)
    assert found.starts == ()


def test_one_that_saves_when_asked_loses_nothing() -> None:
    running = [_loose(1, 0, 10 * SPARED), _loose(2, 1, 100)]
    found = machine(2, [job(9, eta=60.0, priority=2)], running, policy(20, None))
    assert plan(found, NOW).evictions == (Evict(2, 9),)
    found = replace(found, saves=frozenset({1}))
    assert plan(found, NOW).evictions == (Evict(1, 9),)


def test_one_that_saves_is_never_left_to_end() -> None:
    running = [replace(_loose(1, 0, 10 * SPARED), attempt=STOPS + 1)]
    found = machine(1, [job(9, eta=60.0, priority=2)], running, policy(20, None))
    assert plan(found, NOW).evictions == ()
    assert plan(replace(found, saves=frozenset({1})), NOW).evictions == (Evict(1, 9),)


def test_as_few_as_do_where_least_is_lost() -> None:
    shared = [
        run(job(i, share=250, eta=DAY, preemptible=True), 0, compute=250, memory=6 * G,
            whole=False, started=NOW - i) for i in (1, 2, 3, 4)
    ]  # fmt: skip
    waiting = [job(9, eta=60.0, priority=1)]
    for ran, victims in ((5000, {1, 2, 3, 4}), (8, {5})):
        found = plan(machine(2, waiting, [*shared, _loose(5, 1, ran)], policy(20, None)), NOW)
        assert {stop.job for stop in found.evictions} == victims
    half = [job(9, eta=60.0, priority=1, share=500, memory=12 * G)]
    found = plan(machine(1, half, shared, policy(20, None)), NOW)
    assert found.evictions == (Evict(1, 9), Evict(2, 9))


def test_what_was_saved_at_a_checkpoint_is_not_lost() -> None:
    running = [_loose(1, 0, 3600 + 5), _loose(2, 1, 1800)]
    waiting = [job(9, eta=60.0, priority=1)]
    for every, victim in ((0.0, 2), (3600.0, 1)):
        rules = policy(20, None, checkpoint=every)
        assert plan(machine(2, waiting, running, rules), NOW).evictions == (Evict(victim, 9),)


def test_nobody_goes_in_vain() -> None:
    high = [job(9, gpus=2, eta=60.0, priority=1)]
    firm = [_loose(1, 0, 10, preemptible=False), _loose(2, 1, 10)]
    assert plan(machine(2, high, firm, policy(20, None)), NOW).evictions == ()
    # of equal priority, about to end by itself, or making room already
    equal = [_loose(1, 0, 10, 1), _loose(2, 1, 10, 1)]
    assert plan(machine(2, high, equal, policy(20, None)), NOW).evictions == ()
    soon = [_loose(1, 0, DAY - 30), _loose(2, 1, DAY - 30)]
    assert plan(machine(2, high, soon, policy(20, None)), NOW).evictions == ()
    asked = [replace(each, state=JobState.EVICTING) for each in (_loose(1, 0, 10), _loose(2, 1, 9))]
    assert plan(machine(2, high, asked, policy(20, None)), NOW).evictions == ()


@st.composite
def mixed(draw: st.DrawFn) -> Snapshot:
    """Preemptible and other jobs on a machine that is full, and a queue."""
    running = [
        _loose(i, i - 1, draw(st.integers(1, 5000)), draw(st.integers(-1, 1)),
               preemptible=draw(st.booleans()))
        for i in range(1, draw(st.integers(1, 4)) + 1)
    ]  # fmt: skip
    waiting = [
        job(10 + i, gpus=draw(st.integers(1, 3)), eta=draw(st.sampled_from([60.0, DAY])),
            priority=draw(st.integers(-1, 2)))
        for i in range(draw(st.integers(1, 5)))
    ]  # fmt: skip
    return machine(4, waiting, running, policy(100, None, reorder_slack=0))


@given(mixed())
def test_whoever_it_is_done_for_starts(snapshot: Snapshot) -> None:
    found = plan(snapshot, NOW)
    assert plan(snapshot, NOW).evictions == found.evictions
    by_id = {each.id: each for each in (*snapshot.running, *snapshot.waiting)}
    victims = {stop.job for stop in found.evictions}
    assert len(victims) == len(found.evictions)
    for stop in found.evictions:
        victim = by_id[stop.job].request
        assert victim.preemptible
        assert victim.priority < by_id[stop.for_job].request.priority
    left = tuple(each for each in snapshot.running if each.id not in victims)
    begun = places(found) | places(plan(replace(snapshot, running=left), NOW))
    assert {stop.for_job for stop in found.evictions} <= set(begun)
    # each of them is needed, beside those who went for others ahead
    for stop in found.evictions:
        order = by_id[stop.for_job].order
        others = {
            other.job
            for other in found.evictions
            if other is not stop and by_id[other.for_job].order <= order
        }
        kept = plan(
            replace(
                snapshot,
                running=tuple(each for each in snapshot.running if each.id not in others),
                waiting=tuple(each for each in snapshot.waiting if each.order <= order),
            ),
            NOW,
        )
        ahead = {other.for_job for other in found.evictions if by_id[other.for_job].order <= order}
        assert not ahead <= set(places(kept))


@given(mixed())
def test_higher_priority_is_planned_as_if_those_that_yield_were_not_there(
    snapshot: Snapshot,
) -> None:
    top = tuple(each for each in snapshot.waiting if each.request.priority == 2)
    firm = tuple(each for each in snapshot.running if not each.request.preemptible)
    alone = plan(replace(snapshot, waiting=top, running=firm), NOW)
    found = plan(snapshot, NOW)
    served = set(places(found)) | {stop.for_job for stop in found.evictions}
    assert set(places(alone)) == {each.id for each in top} & served
    for each in top:
        assert found.expected.get(each.id) == alone.expected.get(each.id)


def test_a_promise_to_a_preemptible_job_does_not_bind_others() -> None:
    busy = [run(job(1, eta=100.0), 0, started=NOW)]
    loose = job(2, eta=DAY, preemptible=True)
    high = job(9, eta=DAY, priority=1)
    seen = machine(1, [loose, high], busy, policy(20, None))
    found = plan(replace(seen, latest={2: NOW + 100}), NOW)
    assert found.expected == {9: NOW + 100, 2: NOW + 100 + DAY}


def test_who_would_lose_much_or_was_stopped_often_is_left_to_end() -> None:
    high = [job(9, eta=60.0, priority=1)]
    rules = policy(20, None)
    for ran, attempt, stopped in (
        (SPARED - 1, STOPS, True),
        (SPARED, 1, False),
        (10, STOPS + 1, False),
    ):
        running = [replace(_loose(1, 0, ran), attempt=attempt)]
        found = plan(machine(1, high, running, rules), NOW)
        assert bool(found.evictions) == stopped
        if not stopped:
            assert found.expected == {9: NOW + DAY - ran}
        # what is saved at checkpoints is not lost
        saving = replace(rules, checkpoint=600.0)
        assert plan(machine(1, high, running, saving), NOW).evictions == (Evict(1, 9),)
    # a wide job may cost more
    two = [_loose(1, 0, SPARED), _loose(2, 1, 1.5 * SPARED)]
    wide = [job(9, gpus=2, eta=60.0, priority=1)]
    assert {stop.job for stop in plan(machine(2, wide, two, rules), NOW).evictions} == {1, 2}


def test_room_that_comes_by_itself_is_waited_for_while_that_costs_less() -> None:
    high = [job(9, eta=60.0, priority=1)]
    for ran, left, stopped in ((3600, 600, False), (3600, 800, True), (10, 59, False)):
        ends = run(job(2, eta=1000.0), 1, started=NOW - 1000 + left)
        found = plan(machine(2, high, [_loose(1, 0, ran), ends], policy(20, None)), NOW)
        assert bool(found.evictions) == stopped
        assert found.starts == ()
        assert found.expected == {9: NOW if stopped else NOW + left}


def test_a_share_is_not_put_where_somebody_is_spared() -> None:
    spared = run(
        job(1, share=500, eta=DAY, preemptible=True), 0, compute=500, memory=12 * G,
        whole=False, started=NOW - SPARED,
    )  # fmt: skip
    beside = run(job(2, share=250, eta=DAY), 0, compute=250, memory=6 * G, whole=False)
    waiting = [job(9, share=500, memory=12 * G, eta=60.0, priority=1)]
    found = plan(machine(2, waiting, [spared, beside], policy(20, None)), NOW)
    assert places(found) == {9: (1,)}


@st.composite
def classes(draw: st.DrawFn) -> list[TraceJob]:
    """Jobs that arrive over time, some of them preemptible and behind the others."""
    at, jobs = 0, []
    for number in range(draw(st.integers(3, 25))):
        at += draw(st.sampled_from([0, 60, 600, 3600]))
        loose = draw(st.booleans())
        request = Request(
            gpus=draw(st.sampled_from([1, 1, 3])), share=1000, memory=0, slots=1,
            preemptible=loose, restartable=loose, priority=-loose,
        )  # fmt: skip
        run = draw(st.sampled_from([60, 600, 3600, 4 * 3600, 24 * 3600]))
        jobs.append(TraceJob(number, at, run, request, float(request.gpus or 0)))
    return jobs


@given(classes(), st.sampled_from([0.0, 3600.0]))
@settings(deadline=None)
def test_they_start_when_they_would_without_the_preemptible_ones(
    jobs: list[TraceJob], slack: float
) -> None:
    """Where work is saved, and nobody waits for room that comes by itself."""
    gpus = [each.gpu for each in machine(3).cards]
    rules = policy(100, None, reorder_slack=slack, checkpoint=600.0)
    firm = [each for each in jobs if not each.request.preemptible]
    with patch.multiple(evict, _PATIENCE=0.0, _WORTH=0.0):
        mixed = replay(jobs, gpus, rules)
    assert len(mixed.end) == len(jobs)
    alone = replay(firm, gpus, rules)
    assert {each.id: mixed.start[each.id] for each in firm} == alone.start


@given(classes())
@settings(deadline=None)
def test_nobody_is_stopped_more_often_than_is_said(jobs: list[TraceJob]) -> None:
    gpus = [each.gpu for each in machine(3).cards]
    with patch.object(evict, "STOPS", 2):
        out = replay(jobs, gpus, policy(100, None))
    assert len(out.end) == len(jobs)
    assert max(out.evicted.values(), default=0) <= 2


def test_a_replay_counts_what_is_lost() -> None:
    gpu = [each.gpu for each in machine(1).cards]
    low = Request(gpus=1, share=1000, memory=0, slots=1, preemptible=True, priority=-1)
    high = replace(low, preemptible=False, priority=0)
    jobs = [TraceJob(1, 0, 1000, low, 1.0), TraceJob(2, 300, 500, high, 1.0)]
    for every, end, lost in ((0.0, 1800.0, 300.0), (200.0, 1600.0, 100.0)):
        out = replay(jobs, gpu, policy(9, None, checkpoint=every))
        assert (out.start, out.end) == ({1: 0, 2: 300}, {1: end, 2: 800})
        assert (out.evicted, out.lost) == ({1: 1}, lost)
        found = measure(jobs, out, 1)
        assert found["wait_firm_mean_s"] == 0
        assert found["wait_preemptible_mean_s"] == end - 1000
        assert found["lost_share"] == round(lost / (1500 + lost), 4)
