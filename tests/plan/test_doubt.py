"""Learned run times: who keeps a reservation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from machines import NOW, begun, job, machine, places, policy, run

from gpuqueue.model import Job
from gpuqueue.plan import Estimate, History, Snapshot, plan


def _learned(snapshot: Snapshot, times: dict[int, float]) -> Snapshot:
    guesses = {id_: Estimate(each, learned=True, sound=False) for id_, each in times.items()}
    return replace(snapshot, estimates=guesses)


def _busy() -> list[Job]:
    return [run(job(1, eta=600.0), 0, started=NOW), run(job(2, eta=6000.0), 1, started=NOW)]


def test_only_the_first_in_line_holds_up_learned_work() -> None:
    # 3 waits for both GPUs of the first pair; 4 would be in the way of 5 alone
    waiting = [job(3, gpus=3), job(5, gpus=2), job(4)]
    found = machine(3, waiting, _busy(), policy(20, None))
    times = {3: 600.0, 5: 600.0, 4: 5500.0}
    assert places(plan(_learned(found, times), NOW)) == {4: (2,)}
    # past what the first in line has reserved it may not go
    assert places(plan(_learned(found, times | {4: 7000.0}), NOW)) == {}


def test_whoever_tells_a_run_time_keeps_a_reservation() -> None:
    waiting = [job(3, gpus=3), job(4, gpus=2, eta=600.0), job(5)]
    found = machine(3, waiting, _busy(), policy(20, None))
    times = {3: 600.0, 5: 5500.0}
    assert places(plan(_learned(found, times), NOW)) == {}
    assert places(plan(_learned(found, times | {5: 500.0}), NOW)) == {5: (2,)}


@st.composite
def guesses(draw: st.DrawFn) -> Snapshot:
    """A machine at work, and a queue in turn; some have told their run time."""
    lengths = st.sampled_from([60.0, 600.0, 6000.0])
    jobs = [
        job(i, gpus=draw(st.integers(1, 3)), share=draw(st.sampled_from([None, 250, 500])))
        for i in range(1, draw(st.integers(2, 12)))
    ]
    rules = policy(100, None, reorder_slack=0)
    times = {each.id: draw(lengths) for each in jobs}
    cut = draw(st.integers(0, len(jobs)))
    before = _learned(machine(3, jobs[:cut], (), rules), times)
    running = [begun(before, start, NOW - 20) for start in plan(before, NOW - 20).starts]
    held = {each.id for each in running}
    waiting = []
    for each in jobs:
        if each.id not in held:
            told = draw(st.booleans())
            eta = times.pop(each.id) if told else None
            waiting.append(replace(each, request=replace(each.request, eta=eta)))
    return _learned(machine(3, waiting, running, rules), times)


@given(guesses())
def test_it_fits_and_the_first_in_line_is_never_put_off(snapshot: Snapshot) -> None:
    found = plan(snapshot, NOW)
    assert plan(snapshot, NOW).starts == found.starts
    room = dict.fromkeys((each.gpu.uuid for each in snapshot.cards), 1000)
    placed = [each.placement for each in snapshot.running] + [s.placement for s in found.starts]
    for placement in placed:
        for grant in placement.grants if placement else ():
            room[grant.gpu] -= grant.compute
    assert min(room.values()) >= 0
    if snapshot.waiting:
        first = min(snapshot.waiting, key=lambda each: each.order)
        lonely = replace(snapshot, waiting=(first,))
        assert found.expected[first.id] == plan(lonely, NOW).expected[first.id]


@given(guesses())
def test_the_told_do_not_wait_for_what_comes_after_them(snapshot: Snapshot) -> None:
    """A reservation of a told run time is where it would be with nobody behind it."""
    begun_now = set(places(plan(snapshot, NOW)))
    for each in snapshot.waiting:
        if each.request.eta is None or each.id in begun_now:
            continue
        upto = tuple(other for other in snapshot.waiting if other.order <= each.order)
        assert each.id not in places(plan(replace(snapshot, waiting=upto), NOW))


@given(guesses())
def test_everybody_is_told_why_and_nobody_of_a_reservation_that_is_not(snapshot: Snapshot) -> None:
    found = plan(snapshot, NOW)
    assert set(found.waits) == {each.id for each in snapshot.waiting}
    by_id = {each.id: each for each in snapshot.waiting}
    after = replace(
        snapshot,
        running=(*snapshot.running, *(begun(snapshot, start) for start in found.starts)),
    )
    for id_, wait in found.waits.items():
        if wait.reason == "reservation":
            alone = replace(after, waiting=(by_id[id_],))
            assert id_ in places(plan(alone, NOW))


def test_memory_is_the_largest_peak_and_a_margin_that_shrinks() -> None:
    history = History()
    for number, peak in enumerate([1000, 4000, 2000, 2000], 1):
        history.add("kind", 60.0, peak)
        largest = 1000 if number == 1 else 4000
        found = history.estimate("kind")
        assert found is not None
        assert found.memory == int(largest * (1.05 + 0.5 / number))
    for _ in range(19):
        history.add("kind", 60.0, 2000)
    found = history.estimate("kind")
    assert found is not None
    # the peak of 4,000 is the second of 23, too long ago
    assert found.memory == int(2000 * (1.05 + 0.5 / 20))


def test_a_new_command_is_taken_for_what_is_like_it() -> None:
    history = History()
    assert history.estimate("new", like="alice, one GPU") is None
    history.add("old", 60.0, like="alice, one GPU")
    history.add("older", 90.0, like="alice, one GPU")
    assert history.estimate("new") is None
    assert history.estimate("new", like="alice, one GPU") == Estimate(
        90.0, learned=True, sound=False
    )
    assert history.estimate("old", like="alice, one GPU") == Estimate(
        60.0, learned=True, sound=False
    )


def test_a_start_that_rests_on_learned_run_times_is_a_range() -> None:
    found = machine(3, [job(3, gpus=3)], _busy(), policy(20, None))
    wait = plan(_learned(found, {3: 600.0}), NOW).waits[3]
    assert (wait.expected, wait.by) == (NOW + 6000, NOW + 6000 + 5400)
    promised = replace(_learned(found, {3: 600.0}), latest={3: NOW + 7000})
    assert plan(promised, NOW).waits[3].by == NOW + 7000
    told = machine(3, [job(3, gpus=3, eta=600.0)], _busy(), policy(20, None))
    assert plan(told, NOW).waits[3].by is None


def test_without_the_guard_a_wide_job_starves() -> None:
    waiting = [job(3, gpus=2, eta=600.0), job(4, eta=9000.0), job(5, eta=60.0)]
    held = [run(job(1, eta=600.0), 0, started=NOW)]
    guarded = machine(2, waiting, held, policy(20, None, reorder_slack=0))
    assert places(plan(guarded, NOW)) == {5: (1,)}
    found = plan(machine(2, waiting, held, policy(20, None, starvation_guard=False)), NOW)
    assert places(found) == {4: (1,)}
    assert found.promises == ()
    assert found.waits[3].reason == "gpu"


@given(guesses())
def test_without_the_guard_whatever_fits_starts(snapshot: Snapshot) -> None:
    loose = replace(snapshot, policy=replace(snapshot.policy, starvation_guard=False))
    found = plan(loose, NOW)
    assert found.promises == ()
    started = {start.job for start in found.starts}
    after = replace(
        loose,
        running=(*loose.running, *(begun(loose, start, NOW) for start in found.starts)),
        waiting=tuple(each for each in loose.waiting if each.id not in started),
    )
    for each in after.waiting:
        alone = replace(after, waiting=(each,))
        assert places(plan(alone, NOW)) == {}


def test_a_range_that_begins_far_ahead_is_wider() -> None:
    """By a third of what it is expected to wait; not where everybody has told a run time."""
    busy = [run(job(1, eta=30_000.0), 0, started=NOW)]
    learned = _learned(machine(1, [job(3)], busy, policy(20, None)), {3: 600.0})
    (promise,) = plan(learned, NOW).promises
    assert (promise.expected, promise.latest) == (NOW + 30_000, NOW + 40_000)
    told = machine(1, [job(3, eta=600.0)], busy, policy(20, None))
    (promise,) = plan(told, NOW).promises
    assert promise.latest == NOW + 33_600
    strict = replace(learned, policy=policy(20, None, reorder_slack=0.0))
    (promise,) = plan(strict, NOW).promises
    assert promise.latest == NOW + 30_000
