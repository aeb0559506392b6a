from __future__ import annotations

import pytest
from machines import NOW, G, begun, card, job, machine, places, policy, run

from gpuqueue.model import Grant, Job, JobState, Placement
from gpuqueue.plan import Card, Drop, Snapshot, Start, plan


def starts(snapshot: Snapshot) -> dict[int, tuple[int, ...]]:
    return places(plan(snapshot, NOW))


class TestFitting:
    def test_a_whole_job_gets_the_rest_of_its_card(self) -> None:
        found = plan(machine([card(0, outside=2 * G)], [job(1)]), NOW)
        grant = Grant("GPU-0", 1000, 22 * G, whole=True)
        assert found.starts == (Start(1, Placement((grant,), 2)),)

    def test_three_thirds_start_together(self) -> None:
        thirds = [job(i, share=333) for i in (1, 2, 3)]
        assert starts(machine(1, thirds)) == {1: (0,), 2: (0,), 3: (0,)}

    def test_three_times_8g_fill_a_24g_card(self) -> None:
        jobs = [job(i, memory=8 * G) for i in (1, 2, 3, 4)]
        assert starts(machine(1, jobs)) == {1: (0,), 2: (0,), 3: (0,)}

    def test_exactly_what_is_free_fits_and_a_byte_more_does_not(self) -> None:
        held = run(job(1), 0, compute=0, memory=16 * G, whole=False)
        assert starts(machine(1, [job(2, memory=8 * G)], [held])) == {2: (0,)}
        assert starts(machine(1, [job(2, memory=8 * G + 1)], [held])) == {}

    def test_outside_use_counts_on_a_shared_card(self) -> None:
        held = run(job(1), 0, compute=0, memory=8 * G, whole=False)
        cards = [card(0, outside=8 * G + 1)]
        assert starts(machine(cards, [job(2, memory=8 * G)], [held])) == {}

    def test_a_share_takes_its_part_of_the_card_it_lands_on(self) -> None:
        grants = [
            plan(machine([card(0, size)], [job(1, share=250)]), NOW).starts[0].placement.grants[0]
            for size in (24 * G, 80 * G, None)
        ]
        assert [grant.memory for grant in grants] == [6 * G, 20 * G, 0]

    def test_memory_alone_promises_no_compute(self) -> None:
        held = run(job(1), 0, compute=1000, memory=8 * G, whole=False)
        assert starts(machine(1, [job(2, memory=G)], [held])) == {2: (0,)}
        assert starts(machine(1, [job(2, memory=G, share=1)], [held])) == {}

    def test_nobody_joins_a_whole_job(self) -> None:
        held = run(job(1), 0, memory=0)
        assert starts(machine(1, [job(2, memory=G), job(3, "light")], [held])) == {}

    @pytest.mark.parametrize("asked", [{}, {"memory": G}, {"share": 100}, {"preset": "light"}])
    @pytest.mark.parametrize(("outside", "free"), [(6 * G, True), (6 * G + 1, False)])
    def test_an_unheld_gpu_is_free_at_the_percentage(
        self, asked: dict[str, object], outside: int, free: bool
    ) -> None:
        found = starts(machine([card(0, outside=outside)], [job(1, **asked)]))
        assert found == ({1: (0,)} if free else {})

    def test_a_gpu_of_unknown_size_is_free_only_of_everybody(self) -> None:
        assert starts(machine([card(0, None)], [job(1)])) == {1: (0,)}
        assert starts(machine([card(0, None, outside=1)], [job(1)])) == {}

    def test_slots(self) -> None:
        jobs = [job(i, "cpu") for i in (1, 2, 3)]
        assert starts(machine(0, jobs, rules=policy(2, None))) == {1: (), 2: ()}

    def test_a_gang_starts_all_at_once_in_index_order(self) -> None:
        assert starts(machine(4, [job(1, gpus=3)])) == {1: (1, 2, 3)}
        assert starts(machine(2, [job(1, "two")], [run(job(9), 1)])) == {}

    def test_a_grant_on_a_gpu_that_is_gone_only_takes_slots(self) -> None:
        held = run(job(1), 7, slots=3)
        assert starts(machine(1, [job(2, memory=G), job(3, memory=G)], [held])) == {2: (0,)}


class TestChoice:
    def test_a_shared_gpu_first(self) -> None:
        held = run(job(1), 1, compute=0, memory=G, whole=False)
        assert starts(machine(2, [job(2, memory=G)], [held])) == {2: (1,)}

    def test_then_the_one_with_least_left_over(self) -> None:
        cards = [card(0, 80 * G), card(1, 24 * G)]
        assert starts(machine(cards, [job(2, memory=20 * G)])) == {2: (1,)}

    def test_whole_jobs_leave_the_shared_gpu_for_last(self) -> None:
        assert starts(machine(3, [job(1)])) == {1: (1,)}
        assert starts(machine(2, [job(1)], [run(job(9), 1)])) == {1: (0,)}

    def test_ties_go_by_index(self) -> None:
        assert starts(machine(3, [job(1)], rules=policy(shared=None))) == {1: (0,)}


class TestLight:
    def test_light_jobs_sit_together_on_the_shared_gpu(self) -> None:
        jobs = [job(i, "light") for i in (1, 2, 3)]
        assert starts(machine(2, jobs, rules=policy(shared=1))) == {1: (1,), 2: (1,), 3: (1,)}

    def test_others_do_not_join_them_nor_they_the_others(self) -> None:
        light = run(job(1, "light"), 0, compute=0, memory=0, whole=False)
        other = run(job(2), 0, compute=0, memory=G, whole=False)
        assert starts(machine(1, [job(3, memory=G)], [light])) == {}
        assert starts(machine(1, [job(3, "light")], [other])) == {}
        assert starts(machine(1, [job(3, "light")], [light])) == {3: (0,)}


class TestExclusive:
    def test_it_waits_for_everything_and_holds_everything_behind_it(self) -> None:
        jobs = [job(2, "exclusive"), job(3, "cpu")]
        assert starts(machine(2, jobs, [run(job(1, "cpu"))])) == {}
        assert starts(machine(2, jobs)) == {2: (0, 1)}

    def test_what_is_ahead_of_it_starts(self) -> None:
        assert starts(machine(2, [job(1, "cpu"), job(2, "exclusive"), job(3, "cpu")])) == {1: ()}

    def test_nothing_starts_beside_it(self) -> None:
        alone = run(job(1, "exclusive", gpus=1), 0, slots=1)
        assert starts(machine(2, [job(2), job(3, "cpu")], [alone])) == {}

    def test_without_gpus_it_is_just_alone(self) -> None:
        jobs = [job(1, "exclusive"), job(2, "cpu")]
        assert starts(machine(0, jobs, rules=policy(shared=None))) == {1: ()}


class TestOrder:
    def test_priority_then_position_then_arrival(self) -> None:
        jobs = [job(1), job(2, position=0), job(3, priority=1), job(4, position=0)]
        order = []
        for _ in range(4):
            (start,) = plan(machine(1, jobs), NOW).starts
            order.append(start.job)
            jobs = [j for j in jobs if j.id != start.job]
        assert order == [3, 2, 4, 1]

    def test_a_job_that_never_fits_holds_nothing_up(self) -> None:
        assert starts(machine(1, [job(1, gpus=2), job(2)])) == {2: (0,)}


class TestAfter:
    def test_it_waits_for_success_and_holds_nothing_up(self) -> None:
        jobs = [job(2, "exclusive", after=(1,)), job(3)]
        assert starts(machine(1, jobs, parents={1: JobState.QUEUED})) == {3: (0,)}
        assert starts(machine(1, jobs, parents={1: JobState.SUCCEEDED})) == {2: (0,)}

    @pytest.mark.parametrize(
        ("state", "reason"),
        [
            (JobState.FAILED, "comes after job 1, which failed"),
            (JobState.CANCELLED, "comes after job 1, which was cancelled"),
            (None, "comes after job 1, which is gone"),
        ],
    )
    def test_it_is_dropped_when_a_parent_cannot_succeed(
        self, state: JobState | None, reason: str
    ) -> None:
        parents = {5: JobState.RUNNING} | ({} if state is None else {1: state})
        found = plan(machine(1, [job(2, after=(5, 1))], parents=parents), NOW)
        assert found.drops == (Drop(2, reason),)
        assert found.starts == ()
        assert found.waits == {}


class TestReservation:
    def test_a_whole_job_waiting_keeps_its_gpu_from_sharers(self) -> None:
        held = run(job(1, eta=60), 0, compute=0, memory=G, whole=False)
        assert starts(machine(1, [job(2), job(3, memory=G)], [held])) == {}

    def test_it_leaves_the_other_gpu_to_those_behind(self) -> None:
        soon = run(job(1, eta=60), 1, compute=0, memory=G, whole=False)
        late = run(job(2, eta=600), 0, compute=0, memory=G, whole=False)
        jobs = [job(3), job(4, memory=G)]
        assert starts(machine(2, jobs, [soon, late], policy(shared=None))) == {4: (0,)}

    def test_a_gpu_of_unknown_end_is_claimed_last(self) -> None:
        known = run(job(1, eta=9999), 1, compute=0, memory=G, whole=False)
        unknown = run(job(2), 0, compute=0, memory=G, whole=False)
        jobs = [job(3), job(4, memory=G)]
        assert starts(machine(2, jobs, [known, unknown], policy(shared=None))) == {4: (0,)}

    def test_a_gang_holds_the_free_gpu_too(self) -> None:
        assert starts(machine(2, [job(2, "two"), job(3)], [run(job(1), 0)])) == {}

    def test_a_sharer_claims_only_its_own_part(self) -> None:
        held = run(job(1), 0, compute=900, memory=G, whole=False)
        jobs = [job(2, share=500, memory=8 * G), job(3, memory=15 * G), job(4, memory=G)]
        assert starts(machine(1, jobs, [held])) == {3: (0,)}

    def test_a_waiting_light_job_keeps_others_from_joining_its_gpu(self) -> None:
        held = run(job(1), 0, compute=0, memory=G, whole=False)
        assert starts(machine(1, [job(2, "light"), job(3, memory=G)], [held])) == {}

    def test_a_waiting_job_keeps_light_ones_from_joining_its_gpu(self) -> None:
        held = run(job(1, "light"), 0, compute=0, memory=0, whole=False)
        assert starts(machine(1, [job(2, memory=G), job(3, "light")], [held])) == {}

    def test_slots_that_come_back_are_counted_once(self) -> None:
        both = run(job(1, "two"), 0, 1, slots=2)
        jobs = [job(2), job(3), *(job(i, "cpu") for i in range(4, 9))]
        assert starts(machine(2, jobs, [both], policy(6))) == {4: (), 5: ()}

    def test_a_claim_of_compute_does_not_bar_those_who_want_none(self) -> None:
        held = run(job(1), 0, compute=900, memory=G, whole=False)
        jobs = [job(2, share=200, memory=G), job(3, memory=G), job(4, share=50, memory=G)]
        assert starts(machine(1, jobs, [held])) == {3: (0,)}

    def test_slots_are_held_too(self) -> None:
        busy = [run(job(i, "cpu")) for i in (1, 2, 3)]
        assert starts(machine(1, [job(4), job(5, "cpu")], busy)) == {}

    def test_slots_that_come_back_with_the_gpu_need_no_holding(self) -> None:
        held = run(job(1), 0, slots=2)
        jobs = [job(2), job(3), job(4, "cpu"), job(5, "cpu"), job(6, "cpu")]
        assert starts(machine(1, jobs, [held])) == {4: (), 5: ()}

    def test_a_wide_job_starts_when_those_before_it_end(self) -> None:
        """A stream of small jobs behind it never puts it off."""
        wide = job(10, "two")
        small = [job(100 + i, memory=4 * G, eta=30) for i in range(50)]
        old = [
            run(job(i, eta=eta), gpu, compute=0, memory=4 * G, whole=False, started=NOW)
            for i, gpu, eta in ((1, 0, 100), (2, 1, 40), (3, 1, 70))
        ]
        assert _start_of(wide, [wide, *small], old) == NOW + 100

    @pytest.mark.parametrize("told", [True, False])
    def test_a_whole_job_is_not_put_off_by_a_stream_of_sharers(self, told: bool) -> None:
        whole = job(10)
        small = [job(100 + i, memory=4 * G, eta=25 if told else None) for i in range(60)]
        old = [
            run(job(1, eta=100 if told else None), 0, compute=0, memory=4 * G, whole=False),
            run(job(2, eta=90 if told else None), 1, compute=0, memory=4 * G, whole=False),
        ]
        lasts = {1: 110.0, 2: 100.0} | {j.id: 25.0 for j in small}
        assert _start_of(whole, [whole, *small], old, lasts) <= NOW + 100


def _start_of(
    target: Job, waiting: list[Job], active: list[Job], lasts: dict[int, float] | None = None
) -> float:
    """Play the plan forward; small jobs arrive one by one, each as its forerunner starts."""
    now = NOW
    for _ in range(500):
        arrived = waiting[:8]
        snapshot = machine(2, arrived, active, policy(8, reorder_slack=0))
        for start in plan(snapshot, now).starts:
            if start.job == target.id:
                return now
            active = [*active, begun(snapshot, start, now)]
            waiting = [j for j in waiting if j.id != start.job]
        ends = {
            j.id: (j.started or now) + (lasts[j.id] if lasts else float(j.request.eta or 0))
            for j in active
        }
        now = min(ends.values())
        active = [j for j in active if ends[j.id] > now]
    raise AssertionError("it never started")


def test_cards_and_jobs_may_come_in_any_order() -> None:
    cards: list[Card] = [card(1), card(0)]
    assert starts(machine(cards, [job(2, memory=G), job(1, "two")])) == {1: (0, 1)}
