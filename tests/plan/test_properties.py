"""What must hold for any machine and any queue."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NOW, G, begun, card, job, machine, places, policy

from gpuqueue.model import Job, JobState, Preset, Request
from gpuqueue.plan import Estimate, Snapshot, WaitReason, need_of, never_fits, plan
from gpuqueue.plan.decide import Decision
from gpuqueue.simulate import TraceJob, replay

SIZES = [None, 8 * G, 24 * G, 80 * G]


@st.composite
def requests(draw: st.DrawFn) -> dict[str, object]:
    """Fields of a request."""
    return {
        "preset": draw(st.sampled_from([preset.value for preset in Preset])),
        "gpus": draw(st.sampled_from([None, None, None, 0, 1, 2, 3])),
        "share": draw(st.sampled_from([None, None, 1, 250, 333, 500, 1000])),
        "memory": draw(st.sampled_from([None, None, G, 8 * G, 12 * G, 24 * G, 90 * G])),
        "slots": draw(st.sampled_from([None, None, None, 1, 2, 5])),
        "priority": draw(st.sampled_from([0, 0, 0, 1, -1])),
        "eta": draw(st.sampled_from([None, 10.0, 60.0, 600.0])),
    }


@st.composite
def snapshots(draw: st.DrawFn, *, parents: bool = True) -> Snapshot:
    """A machine with what earlier plans have put on it, and a queue."""
    count = draw(st.integers(0, 4))
    sizes = [draw(st.sampled_from(SIZES)) for _ in range(count)]
    outside = [draw(st.sampled_from([0, 0, 0, G, 5 * G])) for _ in range(count)]
    rules = policy(
        draw(st.integers(1, 8)),
        draw(st.integers(0, count - 1)) if count else None,
        packing=draw(st.sampled_from([True, True, False])),
        gpu_free_perc=draw(st.sampled_from([0, 75, 100])),
    )
    cards = [card(i, size) for i, size in enumerate(sizes)]
    jobs = [
        job(i, position=draw(st.integers(0, 5)), **asked)  # type: ignore[arg-type]
        for i, asked in enumerate(draw(st.lists(requests(), max_size=14)), 1)
    ]
    cut = draw(st.integers(0, len(jobs)))
    before = machine(cards, jobs[:cut], rules=rules)
    active = [
        replace(begun(before, start, NOW - 20), state=draw(st.sampled_from(ACTIVE)))
        for start in plan(before, NOW - 20).starts
    ]
    waiting = [j for j in jobs if j.id not in {a.id for a in active}]
    states: dict[int, JobState] = {}
    if parents and waiting:
        states, waiting = draw(families(waiting))
    cards = [
        card(i, size, outside=used)
        for i, (size, used) in enumerate(zip(sizes, outside, strict=True))
    ]
    return machine(cards, waiting, active, rules, parents=states)


@st.composite
def contests(draw: st.DrawFn) -> Snapshot:
    """A small machine, nothing unforeseen, and jobs that get into each other's way."""
    asked = [
        {}, {"gpus": 2}, {"memory": 8 * G}, {"memory": 12 * G}, {"share": 333}, {"share": 700},
        {"preset": "light"}, {"preset": "cpu"}, {"preset": "cpu", "slots": 3}, {"slots": 4},
    ]  # fmt: skip
    count = draw(st.integers(1, 3))
    picked = draw(st.lists(st.sampled_from(asked), min_size=3, max_size=12))
    jobs = [
        job(i, eta=float(draw(st.integers(1, 9)) * 10), **fields)  # type: ignore[arg-type]
        for i, fields in enumerate(picked, 1)
    ]
    rules = policy(draw(st.integers(4, 9)), draw(st.sampled_from([None, 0])))
    before = machine(count, jobs[: draw(st.integers(1, 4))], rules=rules)
    active = [begun(before, s, NOW - draw(st.integers(0, 9))) for s in plan(before, NOW).starts]
    ids = {each.id for each in active}
    return machine(count, [j for j in jobs if j.id not in ids], active, rules)


def _in_turn(snapshot: Snapshot) -> Snapshot:
    """The same where nothing goes ahead of its turn."""
    return replace(snapshot, policy=replace(snapshot.policy, reorder_slack=0))


def _told(snapshot: Snapshot) -> Snapshot:
    """The same with no job frozen and every run time known."""

    def told(each: Job) -> Job:
        state = each.state if each.state is JobState.QUEUED else JobState.RUNNING
        eta = each.request.eta or 100.0
        if state is JobState.RUNNING:
            eta = max(eta, 60.0)  # it has run for 20 s
        request = replace(each.request, eta=eta)
        return replace(each, state=state, request=request)

    running, waiting = map(told, snapshot.running), map(told, snapshot.waiting)
    return replace(snapshot, running=tuple(running), waiting=tuple(waiting))


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceJob]:
    """Jobs that arrive over time, of all widths, some of them long."""
    forms = [(1, 1000), (1, 1000), (2, 1000), (3, 1000), (1, 500), (1, 250), (1, 810)]
    at, jobs = 0, []
    for number in range(draw(st.integers(5, 40))):
        at += draw(st.sampled_from([0, 60, 600, 3600]))
        gpus, share = draw(st.sampled_from(forms))
        run = draw(st.sampled_from([60, 600, 3600, 4 * 3600, 24 * 3600]))
        request = Request(gpus=gpus, share=share, memory=0, slots=1)
        jobs.append(TraceJob(number, at, run, request, gpus * share / 1000))
    return jobs


@given(workloads(), st.sampled_from([600.0, 3600.0]))
@settings(deadline=None)
def test_no_promise_is_ever_broken(jobs: list[TraceJob], slack: float) -> None:
    gpus = [card(i).gpu for i in range(3)]
    out = replay(jobs, gpus, policy(100, 2, reorder_slack=slack))
    assert len(out.start) == len(jobs)
    for id_, latest in out.latest.items():
        assert out.start[id_] <= latest


ACTIVE = [JobState.RUNNING, JobState.RUNNING, JobState.STARTING, JobState.FROZEN]


@st.composite
def families(draw: st.DrawFn, waiting: list[Job]) -> tuple[dict[int, JobState], list[Job]]:
    """Some of the jobs come after jobs 91 to 95."""
    states = {
        parent: state
        for parent in range(91, 95)
        if (state := draw(st.sampled_from([None, *JobState]))) is not None
    }
    grown = []
    for child in waiting:
        after = draw(st.sampled_from([(), (), (91,), (92, 93), (95,)]))
        grown.append(replace(child, request=replace(child.request, after=after)))
    return states, grown


@given(snapshots())
def test_nothing_is_promised_twice(snapshot: Snapshot) -> None:
    found = plan(snapshot, NOW)
    started = [begun(snapshot, start) for start in found.starts]
    jobs = [*snapshot.running, *started]
    compute: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    on: dict[str, list[Job]] = defaultdict(list)
    whole = set()
    for each in jobs:
        assert each.placement is not None
        assert len(set(each.placement.gpus)) == len(each.placement.gpus)
        for grant in each.placement.grants:
            compute[grant.gpu] += grant.compute
            memory[grant.gpu] += grant.memory
            on[grant.gpu].append(each)
            if grant.whole:
                whole.add(grant.gpu)
    touched = {uuid for each in started for uuid in each.placement.gpus}  # type: ignore[union-attr]
    for each in snapshot.cards:
        uuid = each.gpu.uuid
        if uuid not in touched:
            continue
        assert compute[uuid] <= 1000
        assert each.gpu.memory is None or memory[uuid] + each.outside <= each.gpu.memory
        assert uuid not in whole or len(on[uuid]) == 1
        assert len({j.request.preset is Preset.LIGHT for j in on[uuid]}) == 1
    if started:
        assert sum(j.placement.slots for j in jobs if j.placement) <= snapshot.policy.slots
        alone = [j for j in jobs if j.request.preset is Preset.EXCLUSIVE]
        assert not alone or len(jobs) == 1


@given(snapshots())
def test_a_start_is_what_the_request_needs(snapshot: Snapshot) -> None:
    gpus = [each.gpu for each in snapshot.cards]
    by_id = {j.id: j for j in snapshot.waiting}
    for start in plan(snapshot, NOW).starts:
        request = by_id[start.job].request
        need = need_of(request, gpus, snapshot.policy)
        assert never_fits(request, gpus, snapshot.policy) is None
        assert start.placement.slots == need.slots
        assert len(start.placement.grants) == need.gpus
        for grant in start.placement.grants:
            assert (grant.compute, grant.whole) == (need.compute, need.whole)
            assert need.whole or need.memory in {None, grant.memory}
            assert not need.light or grant.gpu == snapshot.policy.shared_gpu


@given(snapshots())
def test_jobs_come_after_their_parents(snapshot: Snapshot) -> None:
    found = plan(snapshot, NOW)
    started = {start.job for start in found.starts}
    dropped = {drop.job for drop in found.drops}
    lost = {JobState.FAILED, JobState.CANCELLED, None}
    for each in snapshot.waiting:
        states = {snapshot.parents.get(parent) for parent in each.request.after}
        assert each.id not in started or states <= {JobState.SUCCEEDED}
        assert (each.id in dropped) == bool(states & lost)


@given(snapshots(), st.randoms(use_true_random=False))
def test_it_is_a_pure_function_of_a_set(snapshot: Snapshot, random: Random) -> None:
    before = deepcopy(snapshot)
    found = plan(snapshot, NOW)
    waits = dict(found.waits)
    assert snapshot == before
    assert plan(snapshot, NOW) == found
    mixed = replace(
        snapshot,
        cards=tuple(random.sample(snapshot.cards, len(snapshot.cards))),
        waiting=tuple(random.sample(snapshot.waiting, len(snapshot.waiting))),
        running=tuple(random.sample(snapshot.running, len(snapshot.running))),
    )
    again = plan(mixed, NOW)
    assert again == found
    assert dict(again.waits) == waits
    assert list(again.waits) == list(waits)


@given(snapshots())
def test_everybody_who_waits_is_told_why(snapshot: Snapshot) -> None:
    found = plan(snapshot, NOW)
    started = {start.job for start in found.starts}
    dropped = {drop.job for drop in found.drops}
    assert set(found.waits) == {j.id for j in snapshot.waiting} - dropped
    assert [w.position for w in found.waits.values()] == list(range(1, len(found.waits) + 1))
    for id_, wait in found.waits.items():
        assert (wait.reason is WaitReason.STARTING) == (id_ in started)
        assert wait.expected is None or wait.expected >= NOW
        assert wait.sentence.strip() == wait.sentence != ""
        assert "\n" not in wait.sentence + wait.hint
        assert "None" not in wait.sentence + wait.hint
        if id_ in started:
            assert wait.expected == NOW
        if wait.reason is WaitReason.NEVER:
            assert wait.expected is None


@given(snapshots())
def test_the_plan_is_made_in_one_go(snapshot: Snapshot) -> None:
    """Once its starts are carried out there is nothing more to start at that moment."""
    found = plan(snapshot, NOW)
    after = _carried_out(snapshot, NOW)
    assert len(after.running) == len(snapshot.running) + len(found.starts)
    assert plan(after, NOW).starts == ()


@given(
    contests() | snapshots(parents=False),
    requests(),
    st.sampled_from([None, (1.0, True), (300.0, False)]),
    st.sampled_from([{}, {"backfill": False}, {"reorder_slack": 0.0}]),
)
def test_the_short_way_for_jobs_that_are_all_alike_is_the_long_way(
    snapshot: Snapshot,
    asked: dict[str, object],
    learned: tuple[float, bool] | None,
    rules: dict[str, object],
) -> None:
    like = [
        replace(each, request=job(each.id, **asked).request)  # type: ignore[arg-type]
        for each in snapshot.waiting
    ]
    estimates = {}
    if learned is not None:
        estimate = Estimate(learned[0], learned=True, sound=learned[1])
        estimates = {each.id: estimate for each in like}
    snapshot = replace(
        snapshot,
        waiting=tuple(like),
        estimates=estimates,
        policy=replace(snapshot.policy, **rules),  # type: ignore[arg-type]
    )
    short = plan(snapshot, NOW)
    with patch.object(Decision, "_are_alike", return_value=False):
        long = plan(snapshot, NOW)
    assert short == long
    assert dict(short.waits) == dict(long.waits)
    assert short.expected == long.expected


@given((contests() | snapshots(parents=False).map(_told)).map(_in_turn))
def test_jobs_behind_never_put_off_the_first_in_line(snapshot: Snapshot) -> None:
    """Whoever is first starts as soon as with nobody behind it, where run times are as told."""
    gpus = [each.gpu for each in snapshot.cards]
    queue = sorted(snapshot.waiting, key=lambda j: j.order)
    first = next((j for j in queue if never_fits(j.request, gpus, snapshot.policy) is None), None)
    if first is not None:
        lonely = replace(snapshot, waiting=(first,))
        assert _plays(snapshot).get(first.id) == _plays(lonely).get(first.id)


@given(contests())
def test_everybody_starts_in_the_end(snapshot: Snapshot) -> None:
    gpus = [each.gpu for each in snapshot.cards]
    able = {j.id for j in snapshot.waiting if never_fits(j.request, gpus, snapshot.policy) is None}
    assert set(_plays(snapshot)) == able


@given((contests() | snapshots(parents=False).map(_told)).map(_in_turn))
def test_the_forecast_is_what_then_happens(snapshot: Snapshot) -> None:
    happens = _plays(snapshot)
    for id_, wait in plan(snapshot, NOW).waits.items():
        assert wait.expected == happens.get(id_)


@given(snapshots())
def test_a_hint_comes_true(snapshot: Snapshot) -> None:
    for id_, wait in plan(snapshot, NOW).waits.items():
        if not wait.hint.startswith("a share of "):
            continue
        share = round(float(wait.hint.split()[3]) * 1000)
        waiting = tuple(
            replace(j, request=replace(j.request, share=share)) if j.id == id_ else j
            for j in snapshot.waiting
        )
        assert id_ in places(plan(replace(snapshot, waiting=waiting), NOW))


@given(contests() | snapshots(parents=False).map(_told))
def test_nothing_that_could_start_is_left_waiting(snapshot: Snapshot) -> None:
    """Beside all that is reserved there is no room for one more."""
    decision = plan(snapshot, NOW).decision
    started = {job.id for job, _, _ in decision.starts}
    assert decision.order is not None or not decision.items
    for item in decision.items:
        if item.job.id not in started and decision.order is not None:
            assert decision.laid.timeline.copy().take_now(item) is None


@given((contests() | snapshots(parents=False).map(_told)).map(_in_turn), st.data())
def test_a_job_that_goes_away_delays_nobody_ahead_of_it(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    if not snapshot.waiting:
        return
    gone = data.draw(st.sampled_from(snapshot.waiting))
    before = plan(snapshot, NOW).expected
    rest = tuple(j for j in snapshot.waiting if j is not gone)
    after = plan(replace(snapshot, waiting=rest), NOW).expected
    for each in rest:
        if each.order < gone.order:
            assert after.get(each.id) == before.get(each.id)


@given(contests() | snapshots(parents=False).map(_told))
def test_first_come_first_served_where_all_else_is_off(snapshot: Snapshot) -> None:
    rules = replace(snapshot.policy, reorder_slack=0, backfill=False)
    snapshot = replace(snapshot, policy=rules)
    gpus = [each.gpu for each in snapshot.cards]
    able = [j for j in snapshot.waiting if never_fits(j.request, gpus, rules) is None]
    queue = [j.id for j in sorted(able, key=lambda j: j.order)]
    found = plan(snapshot, NOW)
    begun_ids = [start.job for start in found.starts]
    foreseen = [id_ for id_ in queue if id_ in found.expected]
    # those that only a program outside keeps waiting hold nobody up
    assert begun_ids == foreseen[: len(begun_ids)]
    starts = [found.expected[id_] for id_ in foreseen]
    assert starts == sorted(starts)


@given(contests() | snapshots().map(_told))
def test_what_a_job_is_said_to_wait_for_is_what_it_waits_for(snapshot: Snapshot) -> None:
    found = plan(snapshot, NOW)
    after = _carried_out(snapshot, NOW)
    by_id = {j.id: j for j in after.waiting}
    for id_, wait in found.waits.items():
        if id_ not in by_id or wait.reason is WaitReason.NEVER:
            continue
        alone = replace(after, waiting=(by_id[id_],))
        starts_alone = id_ in places(plan(alone, NOW))
        if wait.reason is WaitReason.RESERVATION:
            # nobody else in the queue: it starts
            assert starts_alone, wait
            continue
        assert not starts_alone, wait
        granted = alone
        if wait.reason is WaitReason.AFTER:
            granted = replace(
                granted, parents=dict.fromkeys(by_id[id_].request.after, JobState.SUCCEEDED)
            )
        if wait.reason is WaitReason.OUTSIDE:
            granted = replace(granted, cards=tuple(replace(c, outside=0) for c in granted.cards))
        else:
            # whoever it is said to wait for has ended
            granted = replace(granted, running=())
        if wait.reason is not WaitReason.OUTSIDE and any(c.outside for c in granted.cards):
            continue
        assert id_ in places(plan(replace(granted, running=()), NOW)), wait


def _carried_out(snapshot: Snapshot, at: float) -> Snapshot:
    starts = plan(snapshot, at).starts
    started = [begun(snapshot, start, at) for start in starts]
    ids = {j.id for j in started}
    return replace(
        snapshot,
        running=(*snapshot.running, *started),
        waiting=tuple(j for j in snapshot.waiting if j.id not in ids),
    )


def _plays(snapshot: Snapshot) -> dict[int, float]:
    """When each job starts if plans are carried out and jobs end as they said."""
    at = NOW
    starts: dict[int, float] = {}
    while True:
        held = {j.id for j in snapshot.running}
        snapshot = _carried_out(snapshot, at)
        starts |= {j.id: at for j in snapshot.running if j.id not in held}
        if not snapshot.running or not snapshot.waiting:
            return starts
        ends = {j.id: (j.started or 0) + (j.request.eta or 0) for j in snapshot.running}
        at = max(at, min(ends.values()))
        left = tuple(j for j in snapshot.running if ends[j.id] > at)
        snapshot = replace(snapshot, running=left)
