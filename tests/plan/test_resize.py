"""Another size for a job that runs: what is free counts, and nothing moves for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import NOW, G, begun, card, gpu, job, machine, places, policy, run
from test_properties import snapshots

from gpuqueue.model import WHOLE, Grant, Job, Placement, Preset
from gpuqueue.plan import Card, Estimate, Snapshot, plan
from gpuqueue.plan.resize import resized


def part(id_: int, *gpus: int, share: int = 250, memory: int = 6 * G, **asked: object) -> Job:
    asked = {"share": share, "memory": memory} | asked
    return run(job(id_, **asked), *gpus, compute=share, memory=memory, whole=False)


def ask(snapshot: Snapshot, one: Job, **size: int) -> Placement | str:
    return resized(snapshot, one, replace(one.wants, **size), NOW)


def test_it_grows_into_what_is_free_and_shrinks() -> None:
    one = part(1, 0)
    there = machine(1, running=[one, part(2, 0)])
    assert ask(there, one, share=750, memory=18 * G) == Placement((Grant("GPU-0", 750, 18 * G),), 1)
    assert ask(there, one, share=100) == Placement((Grant("GPU-0", 100, 6 * G),), 1)
    assert ask(there, one, memory=G) == Placement((Grant("GPU-0", 250, G),), 1)


def test_too_much_is_refused_with_what_is_free() -> None:
    one = part(1, 0)
    there = machine(1, running=[one, part(2, 0, share=500, memory=12 * G)])
    told = ask(there, one, share=750)
    assert told == (
        "cannot grow: GPU 0 has 0.5 of its compute for it, the 0.25 that it holds included, "
        "and it asks for 0.75"
    )
    told = ask(there, one, memory=13 * G)
    assert isinstance(told, str)
    assert "GPU 0 has 12G of memory for it, the 6G that it holds included" in told
    assert "it asks for 13G" in told


def test_every_card_must_have_room() -> None:
    one = part(1, 0, 1, gpus=2)
    there = machine(2, running=[one, part(2, 1, share=700, memory=G)])
    told = ask(there, one, share=500)
    assert isinstance(told, str)
    assert "GPU 1 has 0.3" in told
    assert "GPU 0" not in told


def test_what_programs_outside_the_queue_use_is_not_free() -> None:
    one = part(1, 0)
    there = machine([card(0, outside=10 * G)], running=[one])
    assert isinstance(ask(there, one, memory=15 * G), str)
    assert isinstance(ask(there, one, memory=14 * G), Placement)
    # one that shrinks is let, however much they use
    there = machine([card(0, outside=24 * G)], running=[one])
    assert isinstance(ask(there, one, memory=5 * G, share=500), Placement)


def test_a_whole_gpu_becomes_a_part_and_a_part_a_whole_one() -> None:
    one = run(job(1), 0, slots=2)
    half = ask(machine(1, running=[one]), one, share=500)
    assert half == Placement((Grant("GPU-0", 500, 12 * G),), 1)
    small = part(2, 0)
    assert ask(machine(1, running=[small]), small, share=WHOLE) == Placement(
        (Grant("GPU-0", WHOLE, 24 * G, whole=True),), 2
    )
    told = ask(machine(1, running=[small, part(3, 0)]), small, share=WHOLE)
    assert isinstance(told, str)
    assert "another job holds 0.25" in told
    told = ask(machine(1, running=[small], rules=policy(1)), small, share=WHOLE)
    assert isinstance(told, str) is False  # two slots of one are one: a preset's own are capped


def test_a_whole_one_needs_its_slots() -> None:
    one = part(1, 0)
    cpu = run(job(2, "cpu", slots=3), slots=3)
    told = ask(machine(1, running=[one, cpu], rules=policy(4)), one, share=WHOLE)
    assert told == "cannot grow: it would take 2 slots, and 1 of 4 are free"


def test_the_share_is_rounded_to_what_can_be_enforced() -> None:
    one = part(1, 0)
    there = machine([Card(gpu(0, grain=125))], running=[one])
    grown = ask(there, one, share=300)
    assert isinstance(grown, Placement)
    assert grown.grants[0].compute == 375


def test_memory_goes_with_the_share_unless_it_was_named_or_learned() -> None:
    one = run(job(1, share=250), 0, compute=250, memory=6 * G, whole=False)
    there = machine(1, running=[one])
    grown = ask(there, one, share=500)
    assert isinstance(grown, Placement)
    assert grown.grants[0].memory == 12 * G
    learned = replace(there, estimates={1: Estimate(memory=6 * G, learned=True)})
    grown = ask(learned, one, share=500)
    assert isinstance(grown, Placement)
    assert grown.grants[0].memory == 6 * G


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (run(job(1, "cpu")), "holds no GPU"),
        (run(job(1, "exclusive"), 0, 1), "whole machine"),
        (part(1, 0, memory=6 * G), "asks for 25G of device memory, the largest GPU has 24G"),
    ],
)
def test_what_has_no_other_size(one: Job, words: str) -> None:
    told = ask(machine(2, running=[one]), one, memory=25 * G)
    assert isinstance(told, str)
    assert words in told


def test_without_packing_there_are_only_whole_gpus() -> None:
    one = run(job(1), 0)
    told = ask(machine(1, running=[one], rules=policy(packing=False)), one, share=500)
    assert isinstance(told, str)
    assert "packing" in told


def test_a_gpu_that_is_gone() -> None:
    one = part(1, 3)
    told = ask(machine(2, running=[one]), one, share=500)
    assert isinstance(told, str)
    assert "GPU-3" in told


def test_it_does_not_take_what_a_waiting_job_was_promised() -> None:
    # GPU 1 is free in ten seconds; job 3 then starts on half of both GPUs, and is promised that
    one = part(1, 0, share=500, memory=G)
    other = replace(part(2, 1, share=WHOLE, memory=G, eta=20.0), started=NOW - 10)
    other = replace(other, placement=Placement((Grant("GPU-1", WHOLE, 24 * G, whole=True),), 1))
    wide = job(3, gpus=2, share=500, memory=G, eta=60.0)
    there = machine(2, waiting=[wide], running=[one, other])
    promise = plan(there, NOW).promises[0]
    there = replace(there, latest={3: promise.latest})
    told = ask(there, one, share=600)
    assert told == (
        "cannot grow: job 3 (train, alice) waits for that room, and would start later than it "
        "was promised"
    )
    assert isinstance(ask(there, one, memory=2 * G), Placement)
    assert isinstance(ask(there, one, share=400), Placement)


SHARES = st.sampled_from([1, 100, 250, 333, 500, 750, 1000])
MEMORY = st.sampled_from([G, 4 * G, 8 * G, 20 * G, 60 * G])


def promised(snapshot: Snapshot) -> dict[str, tuple[int, int, int]]:
    """Of each GPU what is promised: compute, memory, and how many have it whole."""
    sums = {one.gpu.uuid: (0, 0, 0) for one in snapshot.cards}
    for one in snapshot.running:
        for grant in one.placement.grants if one.placement else ():
            compute, memory, wholes = sums[grant.gpu]
            memory += 0 if grant.whole else grant.memory
            sums[grant.gpu] = compute + grant.compute, memory, wholes + grant.whole
    return sums


def check(snapshot: Snapshot) -> None:
    used = 0
    for one in snapshot.running:
        assert one.placement is not None
        exclusive = one.request.preset is Preset.EXCLUSIVE
        used += snapshot.policy.slots if exclusive else one.placement.slots
    assert used <= snapshot.policy.slots
    totals = {one.gpu.uuid: one.gpu.memory for one in snapshot.cards}
    for uuid, (compute, memory, wholes) in promised(snapshot).items():
        assert compute <= WHOLE
        assert wholes == 0 or compute == WHOLE
        total = totals[uuid]
        assert total is None or memory <= total


def shares() -> st.SearchStrategy[dict[str, object]]:
    """Requests for parts of GPUs, now and then for more."""
    return st.fixed_dictionaries(
        {
            "share": st.sampled_from([None, 100, 250, 333, 500, 1000]),
            "memory": st.sampled_from([None, G, 4 * G, 8 * G]),
            "gpus": st.sampled_from([None, None, None, 2]),
            "preset": st.sampled_from(["one", "one", "one", "one", "light", "cpu", "exclusive"]),
            "burst": st.booleans(),
        }
    )


@given(snapshots(parents=False) | st.none(), st.data())
def test_no_more_is_promised_than_there_is_whatever_comes(
    found: Snapshot | None, data: st.DataObject
) -> None:
    """Arrivals, starts, resizes and ends in any order, on any machine and on a crowded one."""
    cards = [card(index) for index in range(data.draw(st.integers(1, 2)))]
    there = found or machine(cards, rules=policy(16))
    there = replace(there, cards=tuple(replace(one, outside=0) for one in there.cards))
    now, next_id = NOW, 1000
    for _ in range(data.draw(st.integers(6, 25))):
        now += 1
        step = data.draw(st.sampled_from(["arrive", "arrive", "resize", "resize", "end"]))
        if step == "arrive":
            new_job = job(next_id, **data.draw(shares()))  # type: ignore[arg-type]
            there, next_id = replace(there, waiting=(*there.waiting, new_job)), next_id + 1
        elif there.running:
            one = data.draw(st.sampled_from(there.running))
            others = tuple(other for other in there.running if other.id != one.id)
            if step == "end":
                there = replace(there, running=others)
            else:
                size = {"share": data.draw(SHARES), "memory": data.draw(MEMORY)}
                name = data.draw(st.sampled_from([["share"], ["memory"], ["share", "memory"]]))
                wanted = replace(one.request, **{key: size[key] for key in name})
                after = resized(there, one, wanted, now)
                if isinstance(after, Placement):
                    assert after.gpus == (one.placement or Placement()).gpus
                    changed = replace(one, request=wanted, placement=after)
                    there = replace(there, running=(*others, changed))
        check(there)
        new = [begun(there, start, now) for start in plan(there, now).starts]
        names = {one.id for one in new}
        waiting = tuple(one for one in there.waiting if one.id not in names)
        there = replace(there, waiting=waiting, running=(*there.running, *new))
        check(there)


def test_what_was_given_up_is_given_to_who_waits() -> None:
    one = run(job(1), 0, slots=2)
    waiting = job(2, share=500, memory=G)
    there = machine(1, waiting=[waiting], running=[one])
    assert places(plan(there, NOW)) == {}
    half = ask(there, one, share=500)
    assert isinstance(half, Placement)
    there = replace(there, running=(replace(one, placement=half),))
    assert places(plan(there, NOW)) == {2: (0,)}
