"""Where learned memory decides anything, and where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NOW, G, card, job, machine, places, policy, run

from gpuqueue.model import Job, Request
from gpuqueue.plan import Estimate, History, Snapshot, WaitReason, plan, work_of


def _knowing(snapshot: Snapshot, memory: int, *ids: int) -> Snapshot:
    wanted = ids or [each.id for each in snapshot.waiting]
    return replace(snapshot, estimates={id_: Estimate(memory=memory) for id_ in wanted})


def _granted(snapshot: Snapshot) -> dict[int, int]:
    return {s.job: s.placement.grants[0].memory for s in plan(snapshot, NOW).starts}


def test_jobs_that_share_are_packed_by_it() -> None:
    found = machine(1, [job(i, share=100) for i in range(1, 6)], rules=policy(8, None))
    # in proportion each has a tenth
    assert _granted(found) == dict.fromkeys(range(1, 6), 24 * G // 10)
    assert _granted(_knowing(found, 10 * G)) == dict.fromkeys((1, 2), 10 * G)
    wait = plan(_knowing(found, 10 * G), NOW).waits[3]
    assert wait.reason is WaitReason.MEMORY
    assert "10G" in wait.sentence
    # less than in proportion leaves room for others
    big = [*found.waiting, job(9, share=100, memory=20 * G)]
    assert 9 in _granted(_knowing(replace(found, waiting=tuple(big)), G // 2, *range(1, 6)))


def test_light_jobs_are_packed_by_it_among_themselves() -> None:
    found = machine(2, [job(i, "light") for i in range(1, 4)], rules=policy(8, 0))
    assert len(plan(found, NOW).starts) == 3
    assert places(plan(_knowing(found, 10 * G), NOW)) == {1: (0,), 2: (0,)}


@pytest.mark.parametrize(
    "asked",
    [{}, {"share": 1000}, {"memory": 3 * G}, {"share": 100, "memory": 3 * G}, {"preset": "two"}],
    ids=["nothing", "a whole share", "memory", "both", "all GPUs"],
)
def test_it_changes_nothing_for_others(asked: dict[str, object]) -> None:
    found = machine(2, [job(i, **asked) for i in (1, 2, 3)])  # type: ignore[arg-type]
    for memory in (G, 10 * G, 100 * G):
        assert plan(_knowing(found, memory), NOW).starts == plan(found, NOW).starts


def test_where_packing_is_off_a_share_is_a_whole_gpu_as_before() -> None:
    found = machine(1, [job(1, share=100)], rules=policy(8, None, packing=False))
    assert plan(_knowing(found, G), NOW).starts == plan(found, NOW).starts


def test_more_than_there_is_is_all_there_is() -> None:
    found = machine(2, [job(1, share=100)], rules=policy(8, None))
    assert _granted(_knowing(found, 40 * G)) == {1: 24 * G}
    # and where programs outside the queue always hold some, what they leave
    cards = [card(0, outside=G), card(1, outside=2 * G)]
    used = machine(cards, [job(1, share=100)], rules=policy(8, None))
    assert _granted(_knowing(used, 40 * G)) == {1: 23 * G}
    # of each of two
    both = machine(cards, [job(1, "two", share=100)], rules=policy(8, None))
    assert _granted(_knowing(both, 40 * G)) == {1: 22 * G}


def test_a_gpu_that_others_have_taken_is_no_measure() -> None:
    # otherwise it would start in the little that is left there
    runner = run(job(9), 0, compute=100, memory=G, whole=False)
    found = machine([card(0, outside=20 * G)], [job(1, share=100)], [runner], policy(8, None))
    assert places(plan(found, NOW)) == {1: (0,)}
    assert not plan(_knowing(found, 22 * G), NOW).starts
    assert "22G" in plan(_knowing(found, 22 * G), NOW).waits[1].sentence


def test_where_a_gpu_does_not_tell_its_size_nothing_is_learned_for_it() -> None:
    found = machine([card(0, None)], [job(1, share=100)], rules=policy(8, None))
    assert places(plan(_knowing(found, G), NOW)) == {1: (0,)}


def test_memory_alone_leaves_the_run_time_as_it_was_told() -> None:
    runner = run(job(9, eta=600.0), 0)
    found = machine(1, [job(1, eta=60.0), job(2, eta=60.0)], [runner], policy(8, None))
    known = _knowing(found, G)
    for fair in (False, True):
        one, other = (
            plan(replace(each, policy=replace(each.policy, fair_share=fair)), NOW)
            for each in (found, known)
        )
        assert {i: w.expected for i, w in one.waits.items()} == {
            i: w.expected for i, w in other.waits.items()
        }
        assert other.waits[1].by is None


def _beside(waiting: Job) -> Snapshot:
    runner = run(job(9), 0, compute=100, memory=20 * G, whole=False)
    return machine(1, [waiting], [runner], policy(8, None))


def test_a_hint_names_what_would_be_enough() -> None:
    assert plan(_beside(job(1)), NOW).waits[1].hint == (
        "with --mem, up to 4G, it could share GPU 0 now"
    )
    assert plan(_knowing(_beside(job(1)), 2 * G + 1), NOW).waits[1].hint == (
        "--mem 3G should be enough, by earlier runs of this command; with it, it could share "
        "GPU 0 now"
    )
    # it would not be enough
    assert plan(_knowing(_beside(job(1)), 5 * G), NOW).waits[1].hint == ""


def test_a_smaller_share_is_not_bound_to_less_memory() -> None:
    runner = run(job(9), 0, compute=900, memory=G, whole=False)
    found = machine(1, [job(1, share=500)], [runner], policy(8, None))
    hint = plan(_knowing(found, 20 * G), NOW).waits[1].hint
    assert hint == "a share of 0.1 would fit on GPU 0 now"


def test_what_ran_out_teaches_that_it_was_too_little() -> None:
    history = History()
    assert history.memory("work") is None
    history.saw("work", 1000)
    assert history.memory("work") == 1550
    history.saw("work", 1550)
    assert history.memory("work") == int(1550 * 1.3)


def test_memory_is_learned_by_command_and_number_of_gpus() -> None:
    same = [Request(), Request(share=250), Request(gpus=1), Request(memory=G, eta=5.0)]
    assert len({work_of("ann", "python  train.py", request) for request in same}) == 1
    others = [Request(gpus=2), Request(preset="two")]  # type: ignore[arg-type]
    kinds = {work_of("ann", "python train.py", request) for request in (*same, *others)}
    assert len(kinds) == 3
    assert work_of("bob", "python train.py", Request()) not in kinds


@st.composite
def _learned(draw: st.DrawFn) -> Snapshot:
    forms = [{"share": 100}, {"share": 333}, {"preset": "light"}, {}, {"gpus": 2, "share": 250}]
    picked = draw(st.lists(st.sampled_from(forms), min_size=1, max_size=9))
    cards = [
        card(i, draw(st.sampled_from([8 * G, 24 * G])), outside=draw(st.sampled_from([0, G])))
        for i in range(draw(st.integers(1, 3)))
    ]
    jobs = [job(i, **fields) for i, fields in enumerate(picked, 1)]  # type: ignore[arg-type]
    found = machine(cards, jobs, rules=policy(12, draw(st.sampled_from([None, 0]))))
    sizes = st.sampled_from([None, G, 5 * G, 12 * G, 23 * G, 40 * G])
    known = {each.id: size for each in jobs if (size := draw(sizes)) is not None}
    return replace(found, estimates={id_: Estimate(memory=size) for id_, size in known.items()})


@settings(max_examples=200, deadline=None)
@given(_learned())
def test_it_never_gives_more_than_there_is_nor_keeps_anybody_out(snapshot: Snapshot) -> None:
    # outside use counts only on GPUs that are shared
    held = {each.gpu.uuid: each.outside for each in snapshot.cards}
    totals = {each.gpu.uuid: each.gpu.memory or 0 for each in snapshot.cards}
    for start in plan(snapshot, NOW).starts:
        for grant in start.placement.grants:
            held[grant.gpu] += grant.memory
    assert all(held[uuid] <= totals[uuid] for uuid in totals)
    for each in snapshot.waiting:
        alone = replace(snapshot, waiting=(each,))
        without = plan(replace(alone, estimates={}), NOW)
        if without.starts:
            assert plan(alone, NOW).starts
