"""Notebooks' kernels in the plan: no slot, a share or a refusal, and never too much of a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import NOW, G, card, job, machine, places, policy, run

from gpuqueue.model import (
    WHOLE,
    Job,
    JobKind,
    JobState,
    Mode,
    ModeName,
    Origin,
    ProcessId,
    Request,
)
from gpuqueue.plan import Card, plan, refusal


def kernel(id_: int, tag: str = "", **asked: object) -> Job:
    """A notebook's kernel that asks for a share."""
    asked = {"gpus": 1, "share": 250, **asked}
    return replace(
        job(id_, tag=tag or f"n{id_}.ipynb"), kind=JobKind.KERNEL,
        request=Request(**asked),  # type: ignore[arg-type]
    )  # fmt: skip


def as_begun(cards: list[Card], waiting: list[Job], running: list[Job]) -> list[Job]:
    """Those that a plan starts, running."""
    by_id = {each.id: each for each in waiting}
    decision = plan(machine(cards, waiting, running), NOW)
    return [
        replace(by_id[s.job], state=JobState.RUNNING, placement=s.placement, started=NOW)
        for s in decision.starts
    ]


def test_it_takes_no_slot_and_needs_none() -> None:
    rules = policy(slots=1)
    full = run(job(1, "cpu"), slots=1)
    assert places(plan(machine(1, [kernel(2)], [full], rules), NOW)) == {2: (0,)}
    (start,) = plan(machine(1, [kernel(2)], [full], rules), NOW).starts
    assert start.placement.slots == 0
    beside = replace(kernel(2), state=JobState.RUNNING, placement=start.placement, started=NOW)
    light = job(3, memory=4 * G)
    assert places(plan(machine(1, [light], [beside], rules), NOW)) == {3: (0,)}


def test_it_does_not_go_ahead_of_who_waits_for_that_gpu() -> None:
    held = run(job(1, memory=8 * G), 0, compute=0, memory=8 * G, whole=False)
    waits = job(2)  # for the whole GPU
    decision = plan(machine(1, [waits, kernel(3)], [held]), NOW)
    assert places(decision) == {}
    words = refusal(decision, kernel(3))
    assert words.startswith("There is no room now for a share of 0.25 of a GPU.\n")
    assert "Job 2 (train, alice) ahead of it is waiting for GPU 0." in words
    assert "Wait for that job or cancel it, or ask for less." in words
    assert "Shut one of these notebooks down" not in words


def test_what_a_refusal_tells() -> None:
    cards = [card(0, 80 * G), card(1, 80 * G), card(2, 80 * G)]
    holders = [
        replace(run(kernel(n), 0, compute=250, memory=20 * G, whole=False), tag=f"n{n}.ipynb")
        for n in range(1, 5)
    ]
    whole = run(job(9, tag="train"), 1, memory=80 * G)
    big = run(job(10, tag="eval"), 2, compute=700, memory=70 * G, whole=False)
    decision = plan(machine(cards, [kernel(20, share=500)], [*holders, whole, big]), NOW)
    words = refusal(decision, kernel(20, share=500))
    assert words == (
        "There is no room now for a share of 0.5 of a GPU.\n"
        "GPU 0 has nothing left:\n"
        "    notebook n1.ipynb (job 1, alice) has 0.25 and 20G\n"
        "    notebook n2.ipynb (job 2, alice) has 0.25 and 20G\n"
        "    notebook n3.ipynb (job 3, alice) has 0.25 and 20G\n"
        "    notebook n4.ipynb (job 4, alice) has 0.25 and 20G\n"
        "GPU 1 has nothing left:\n"
        "    job 9 (train, alice) has all of it\n"
        "GPU 2 has 0.3 of its compute and 10G left:\n"
        "    job 10 (eval, alice) has 0.7 and 70G\n"
        "Shut one of these notebooks down, or release its share in it, or ask for less.\n"
        "Cells can be queued without a share."
    )


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        (
            [card(0, outside=20 * G, who=("pid 7 (bob, 20G)",))],
            "GPU 0 is used outside the queue by",
        ),
        ([], "this machine has no GPU that the queue may use"),
    ],
)
def test_a_refusal_for_other_reasons(cards: list[Card], words: str) -> None:
    asking = kernel(1, share=None, memory=10 * G)
    assert words in refusal(plan(machine(cards, [asking]), NOW), asking)


def test_a_refusal_in_free_mode() -> None:
    snapshot = replace(machine(1, [kernel(1)]), mode=Mode(ModeName.FREE, by="person"))
    assert refusal(plan(snapshot, NOW), kernel(1)).endswith(
        "of a GPU: free mode: nothing starts until `jupyter gpuqueue resume`."
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("kernel"),
            st.sampled_from([1, 100, 250, 333, 500, 1000]),
            st.sampled_from([None, G, 8 * G, 20 * G]),
            st.sampled_from([1, 1, 1, 2]),
        ),
        st.tuples(st.just("job"), st.sampled_from([None, 250, 500]), st.just(8 * G), st.just(1)),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("restart"), st.integers(0, 50)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 3), st.sampled_from([1, 125, 250]))
def test_never_more_than_there_is(steps: list[tuple[object, ...]], count: int, grain: int) -> None:
    """Over arrivals, restarts and ends: no GPU beyond its compute or memory, and none in between.

    A kernel that restarts keeps its share: nobody gets any of it meanwhile.
    """
    cards = [card(i, 24 * G) for i in range(count)]
    cards = [replace(c, gpu=replace(c.gpu, grain=grain)) for c in cards]
    running: list[Job] = []
    queued: list[Job] = []
    for number, (what, *how) in enumerate(steps, 1):
        if what == "end" and running:
            running.pop(int(how[0]) % len(running))  # type: ignore[call-overload]
        elif what == "restart" and running:
            place = int(how[0]) % len(running)  # type: ignore[call-overload]
            before = running[place]
            running[place] = replace(before, process=None)
            assert running[place].placement == before.placement
        elif what == "kernel":
            share, memory, gpus = how
            queued.append(kernel(number, share=share, memory=memory, gpus=gpus))
        elif what == "job":
            share, memory, _ = how
            queued.append(job(number, share=share, memory=memory))
        running += as_begun(cards, queued, running)
        started = {each.id for each in running}
        # a kernel starts at once, or has been refused
        queued = [j for j in queued if j.id not in started and j.kind is not JobKind.KERNEL]
        for each in cards:
            grants = [g for j in running for g in j.placement.grants if g.gpu == each.gpu.uuid]
            assert sum(g.compute for g in grants) <= WHOLE
            assert sum(g.memory for g in grants) <= (each.gpu.memory or 0)
            assert len(grants) == 1 or not any(g.whole for g in grants)
        assert all(j.placement.slots == 0 for j in running if j.kind is JobKind.KERNEL)


def test_who_waits_for_a_kernel_to_end_holds_up_nobody() -> None:
    """Nobody knows when a notebook lets go: what fits beside it goes on meanwhile."""
    seat = replace(
        run(kernel(1), 0, compute=250, memory=6 * G, whole=False, slots=0), tag="a.ipynb"
    )
    waiting = [job(2), job(3, gpus=2), job(4, share=500, memory=6 * G), job(5, "cpu"), kernel(6)]
    found = plan(machine(1, [waiting[0], *waiting[2:]], [seat], policy(3)), NOW)
    assert places(found) == {4: (0,), 5: (), 6: (0,)}
    assert found.waits[2].expected is None
    assert found.waits[2].reason == "gpu"
    assert "a.ipynb" in found.waits[2].sentence
    assert {promise.job for promise in found.promises} <= {4, 5, 6}
    # once it has let go, the queue is in order again
    found = plan(machine(1, [waiting[0], *waiting[2:4]], (), policy(3)), NOW)
    assert places(found) == {2: (0,), 5: ()}
    # on another GPU a wide job is expected as ever
    held = run(job(7, eta=600.0), 1, started=NOW)
    found = plan(machine(3, [waiting[1]], [seat, held], policy(9)), NOW)
    assert found.expected[3] == NOW + 600


def test_a_cell_that_waits_for_its_own_notebook_is_told_the_way_out() -> None:
    where = Origin("notebook", "/books/a.ipynb", "kernel-7")
    own = run(kernel(1, "a.ipynb"), 0, compute=250, memory=20 * G, whole=False)
    own = replace(own, origin=where)
    cell = replace(job(2), kind=JobKind.CELL, origin=replace(where, session="kernel-8"))
    wait = plan(machine(1, [cell], [own]), NOW).waits[2]
    assert wait.sentence == "waits for a free GPU: GPU 0 is held by this notebook itself (job 1)"
    assert wait.hint == (
        "with --mem, up to 4G, it could share GPU 0 now; "
        "%gpu release gives back what this notebook's kernel holds, so that it could start"
    )
    # a notebook without a name is known by its kernel's process
    unnamed = replace(own, origin=Origin("notebook", "", "x"), process=ProcessId(8, 1, "b"))
    cell = replace(cell, origin=replace(cell.origin, path=""))
    assert "itself" in plan(machine(1, [cell], [unnamed]), NOW).waits[2].sentence
    # what others hold is not said to be one's own, and where that is in the way, too, is no hint
    other = run(kernel(3, "b.ipynb"), 0, compute=250, memory=20 * G, whole=False)
    wait = plan(machine(1, [cell], [unnamed, other]), NOW).waits[2]
    assert "itself (job 1) and notebook b.ipynb (job 3, alice)" in wait.sentence
    assert "%gpu release" not in wait.hint


def test_who_waits_for_one_notebook_is_told_which() -> None:
    half = {"compute": 500, "memory": 12 * G, "whole": False}
    books = [run(kernel(n, f"{n}.ipynb"), n - 1, **half) for n in (1, 2)]
    wait = plan(machine(2, [job(5, share=250, memory=16 * G)], books), NOW).waits[5]
    way = "it could start if notebook 1.ipynb (job 1, alice) were shut down, or let go"
    assert wait.hint == f"{way}: `gpuqueue release 1`"
    # where one is not enough, none is named
    wait = plan(machine(2, [job(5, gpus=2)], books), NOW).waits[5]
    assert wait.hint == ""
