"""Who has to make room for whom."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from machines import NOW, G, job, machine, places, policy, run

from gpuqueue.model import JobState, Request
from gpuqueue.plan import Evict, Snapshot, plan
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
