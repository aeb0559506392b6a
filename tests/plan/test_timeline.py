"""Where jobs fall: reservations, backfill, promises, and short work ahead of long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines import NOW, G, begun, card, job, machine, places, policy, run

from gpuqueue.model import JobState
from gpuqueue.plan import Estimate, Snapshot, WaitReason, plan

HOUR = 3600.0
SLOTS = 64


def starts(snapshot: Snapshot) -> dict[int, tuple[int, ...]]:
    return places(plan(snapshot, NOW))


def held(id_: int, gpu: int, left: float, **about: object):
    """A whole job on a GPU that has ``left`` seconds to go."""
    return run(job(id_, eta=100 + left), gpu, started=NOW - 100, **about)  # type: ignore[arg-type]


def expected(snapshot: Snapshot) -> dict[int, float]:
    return {id_: at - NOW for id_, at in plan(snapshot, NOW).expected.items()}


class TestBackfill:
    def test_it_fills_a_gap_only_if_it_ends_in_time(self) -> None:
        """Two GPUs, one busy for 10 minutes, and a job that waits for both."""
        runner = held(1, 0, 600)
        wide = job(2, "two", eta=60)
        rules = policy(SLOTS, reorder_slack=0)
        assert starts(machine(2, [wide, job(3, eta=300)], [runner], rules)) == {3: (1,)}
        assert starts(machine(2, [wide, job(3, eta=600)], [runner], rules)) == {3: (1,)}
        assert starts(machine(2, [wide, job(3, eta=601)], [runner], rules)) == {}
        assert starts(machine(2, [wide, job(3)], [runner], rules)) == {}

    def test_it_may_touch_what_the_others_do_not_need(self) -> None:
        runner = held(1, 0, 600)
        jobs = [job(2, gpus=2, eta=60), job(3, eta=9999)]
        assert starts(machine(3, jobs, [runner], policy(SLOTS))) == {2: (1, 2)}
        jobs = [job(2, gpus=3, eta=60), job(3, share=500, eta=9999)]
        assert starts(machine(3, jobs, [runner], policy(SLOTS, reorder_slack=0))) == {}

    def test_nothing_goes_ahead_on_the_guess_about_a_job_past_its_estimate(self) -> None:
        late = run(job(1, eta=50), 0, started=NOW - 350)
        wide = job(2, "two", eta=60)
        assert starts(machine(2, [wide, job(3, eta=5)], [late], policy(SLOTS))) == {}

    def test_a_learned_estimate_was_a_guess_from_the_first(self) -> None:
        late = run(job(1), 0, started=NOW - 350)
        snapshot = machine(2, [job(2, "two", eta=60), job(3, eta=5)], [late], policy(SLOTS))
        snapshot = replace(snapshot, estimates={1: Estimate(50.0, learned=True)})
        assert starts(snapshot) == {3: (1,)}

    def test_every_waiting_job_has_its_own_reservation(self) -> None:
        runners = [held(1, 0, 100), held(2, 1, 200)]
        jobs = [job(3, eta=50), job(4, eta=50), job(5, "two", eta=10), job(6, eta=10)]
        found = expected(machine(2, jobs, runners, policy(SLOTS, reorder_slack=0)))
        assert found == {3: 100, 4: 150, 5: 200, 6: 210}

    def test_off_it_is_first_come_first_served(self) -> None:
        rules = policy(SLOTS, reorder_slack=0, backfill=False)
        jobs = [job(2, "two", eta=60), job(3, eta=5), job(4, "cpu", eta=5)]
        assert starts(machine(2, jobs, [held(1, 0, 600)], rules)) == {}
        assert expected(machine(2, jobs, [held(1, 0, 600)], rules)) == {2: 600, 3: 660, 4: 660}

    def test_those_too_deep_for_a_reservation_still_fill_gaps(self) -> None:
        jobs = [job(100 + i, "two", eta=60) for i in range(1500)]
        snapshot = machine(2, [*jobs, job(9000, eta=500)], [held(1, 0, 600)], policy(SLOTS))
        assert starts(snapshot) == {9000: (1,)}

    def test_a_gang_that_programs_outside_keep_waiting_holds_nothing(self) -> None:
        """Nobody can foresee their end; when it comes, the gang has its reservation."""
        cards = [card(0, outside=20 * G), card(1)]
        assert starts(machine(cards, [job(1, "two", eta=5), job(2, eta=5)], rules=policy(9))) == {
            2: (1,)
        }


class TestPromise:
    def test_the_start_in_queue_order_and_an_hour_or_half_the_run_time(self) -> None:
        jobs = [job(2, eta=60), job(3, eta=4 * HOUR)]
        found = plan(machine(1, jobs, [held(1, 0, 600)], policy(SLOTS)), NOW).promises
        assert [(p.job, p.expected - NOW, p.latest - NOW) for p in found] == [
            (2, 600, 600 + HOUR),
            (3, 660, 660 + 2 * HOUR),
        ]

    def test_it_is_given_once(self) -> None:
        snapshot = machine(1, [job(2, eta=60)], [held(1, 0, 600)], policy(SLOTS))
        assert plan(replace(snapshot, latest={2: NOW}), NOW).promises == ()

    def test_who_starts_at_once_needs_none(self) -> None:
        assert plan(machine(1, [job(2, eta=60)], rules=policy(SLOTS)), NOW).promises == ()

    def test_there_is_none_where_nobody_can_foresee_the_start(self) -> None:
        unknown = run(job(1), 0)
        assert plan(machine(1, [job(2, eta=60)], [unknown], policy(SLOTS)), NOW).promises == ()

    def test_off_it_is_the_queue_order_start_itself(self) -> None:
        snapshot = machine(1, [job(2, eta=60)], [held(1, 0, 9)], policy(9, reorder_slack=0))
        (found,) = plan(snapshot, NOW).promises
        assert found.latest == found.expected == NOW + 9


class TestReorder:
    def test_a_batch_of_short_jobs_goes_ahead_of_a_long_one(self) -> None:
        """A 4 h job is put off for at most 2 h by ten jobs of 15 minutes that need both GPUs."""
        jobs = [job(1, eta=4 * HOUR), *(job(i, "two", eta=900) for i in range(2, 12))]
        started = _played(machine(2, jobs, rules=policy(SLOTS)))
        assert started[1] == 2 * HOUR
        assert [started[i] for i in range(2, 10)] == [900.0 * i for i in range(8)]
        in_turn = _played(machine(2, jobs, rules=policy(SLOTS, reorder_slack=0)))
        assert in_turn[1] == 0
        assert sum(started.values()) < sum(in_turn.values())

    def test_never_past_a_job_that_was_moved_up(self) -> None:
        jobs = [job(1, eta=4 * HOUR, priority=1), job(2, "two", eta=900)]
        assert starts(machine(2, jobs, rules=policy(SLOTS))) == {1: (1,)}

    def test_equal_jobs_keep_their_order(self) -> None:
        jobs = [job(i, "two", eta=600) for i in (1, 2, 3)]
        assert starts(machine(2, jobs, rules=policy(SLOTS))) == {1: (0, 1)}

    def test_only_short_of_a_promise(self) -> None:
        jobs = [job(1, eta=4 * HOUR), job(2, "two", eta=900)]
        snapshot = machine(2, jobs, rules=policy(SLOTS))
        assert starts(replace(snapshot, latest={1: NOW + 900})) == {2: (0, 1)}
        assert starts(replace(snapshot, latest={1: NOW + 899})) == {1: (1,)}

    def test_not_on_an_estimate_that_has_not_held(self) -> None:
        jobs = [job(1, eta=4 * HOUR), job(2, "two")]
        snapshot = machine(2, jobs, rules=policy(SLOTS))
        sound = replace(snapshot, estimates={2: Estimate(900.0, learned=True)})
        assert starts(sound) == {2: (0, 1)}
        doubtful = replace(snapshot, estimates={2: Estimate(900.0, learned=True, sound=False)})
        assert starts(doubtful) == {1: (1,)}

    def test_not_where_the_end_is_unknown(self) -> None:
        jobs = [job(1, eta=4 * HOUR), job(2, "two")]
        assert starts(machine(2, jobs, rules=policy(SLOTS))) == {1: (1,)}


class TestFairShare:
    RULES = policy(SLOTS, fair_share=True)

    def test_whoever_has_had_the_least_comes_first(self) -> None:
        jobs = [job(2, eta=9, owner="alice"), job(3, eta=9, owner="bob")]
        snapshot = replace(machine(1, jobs, rules=self.RULES), usage={"alice": 60.0, "bob": 59.0})
        assert starts(snapshot) == {3: (0,)}
        assert starts(replace(snapshot, usage={"alice": 59.0, "bob": 59.0})) == {2: (0,)}

    def test_turns_take_each_other(self) -> None:
        """13 jobs of one owner and one of another: that one is second."""
        jobs = [
            *(job(i, eta=60, owner="alice") for i in range(1, 14)),
            job(14, eta=60, owner="bob"),
        ]
        found = expected(machine(1, jobs, [held(99, 0, 100)], self.RULES))
        assert sorted(found, key=found.__getitem__)[:3] == [1, 14, 2]

    def test_priority_comes_before_it(self) -> None:
        jobs = [job(2, eta=9, owner="alice", priority=1), job(3, eta=9, owner="bob")]
        snapshot = machine(1, jobs, rules=self.RULES)
        assert starts(replace(snapshot, usage={"alice": 60.0})) == {2: (0,)}


class TestDrained:
    RULES = policy(SLOTS, drained=frozenset({"GPU-1"}))

    def test_it_takes_no_new_jobs_and_lets_the_others_end(self) -> None:
        jobs = [job(2, eta=9), job(3, eta=9), job(4, memory=G, eta=9)]
        half = run(job(1, eta=50), 1, compute=500, memory=G, whole=False)
        assert starts(machine(2, jobs, [half], self.RULES)) == {2: (0,)}

    def test_a_job_that_waits_for_it_says_so_and_holds_nothing(self) -> None:
        snapshot = machine(2, [job(2, "two", eta=9), job(3, eta=9)], rules=self.RULES)
        found = plan(snapshot, NOW)
        assert places(found) == {3: (0,)}
        wait = found.waits[2]
        assert (wait.reason, wait.expected) == (WaitReason.DRAINED, None)
        assert wait.sentence.endswith("GPU 1 takes no new jobs")


class TestUncertainty:
    @pytest.mark.parametrize("state", [JobState.FROZEN, JobState.EVICTING])
    def test_nothing_jumps_ahead_while_a_job_steps_aside(self, state: JobState) -> None:
        aside = replace(held(1, 0, 600), state=state)
        assert starts(machine(2, [job(2, "two", eta=9), job(3, eta=9)], [aside], policy(9))) == {}

    def test_more_held_than_there_is(self) -> None:
        """A program outside took memory that a running job was promised; slots were made fewer."""
        both = run(job(1, eta=50), 0, compute=0, memory=20 * G, whole=False, slots=9)
        snapshot = machine([card(0, outside=5 * G)], [job(2, memory=G, eta=9)], [both], policy(4))
        assert starts(snapshot) == {}
        assert expected(snapshot) == {2: 40}


def _played(snapshot: Snapshot) -> dict[int, float]:
    """When each job starts, in seconds from now, if jobs take what they say."""
    at, found, latest = NOW, {}, {}
    while snapshot.waiting:
        decision = plan(replace(snapshot, latest=latest), at)
        latest |= {each.job: each.latest for each in decision.promises}
        now_running = [begun(snapshot, start, at) for start in decision.starts]
        found |= {each.id: at - NOW for each in now_running}
        snapshot = replace(
            snapshot,
            running=(*snapshot.running, *now_running),
            waiting=tuple(j for j in snapshot.waiting if j.id not in found),
        )
        at = min((j.started or 0) + (j.request.eta or 0) for j in snapshot.running)
        left = (j for j in snapshot.running if (j.started or 0) + (j.request.eta or 0) > at)
        snapshot = replace(snapshot, running=tuple(left))
    return found
