from __future__ import annotations

from dataclasses import replace

import pytest
from machines import NOW, G, card, job, machine, policy, run

from gpuqueue.model import JobState
from gpuqueue.plan import Snapshot, Wait, WaitReason, plan

TRAIN = run(job(3, tag="train", owner="alice", eta=50), 0, slots=1)
EVAL = run(job(4, tag="eval", owner="bob", eta=100), 1, slots=1)


def wait(snapshot: Snapshot, id_: int) -> Wait:
    found = plan(snapshot, NOW).wait(id_)
    assert found is not None
    return found


class TestSentences:
    def test_a_free_gpu(self) -> None:
        assert wait(machine(2, [job(7)], [TRAIN, EVAL]), 7) == Wait(
            1,
            NOW + 40,
            WaitReason.GPU,
            "waits for a free GPU: GPU 0 is held by job 3 (train, alice), "
            "GPU 1 by job 4 (eval, bob)",
        )

    def test_a_gang(self) -> None:
        found = wait(machine(2, [job(7, "two")], [TRAIN]), 7)
        assert found.sentence == (
            "waits for 2 free GPUs, 1 is free: GPU 0 is held by job 3 (train, alice)"
        )

    def test_memory(self) -> None:
        held = [
            run(job(i), gpu, compute=0, memory=size, whole=False)
            for i, gpu, size in ((1, 0, 20 * G), (2, 1, 11 * G))
        ]
        cards = [card(0), card(1, outside=3 * G, who=("pid 4711 (alice, 3G)",))]
        found = wait(machine(cards, [job(7, memory=24 * G)], held), 7)
        assert (found.reason, found.sentence, found.hint) == (
            WaitReason.MEMORY,
            "waits for 24G on one GPU: the most that is free is 10G on GPU 1 "
            "(pid 4711 (alice, 3G) uses it outside the queue)",
            "with --mem 10G or less it would fit on GPU 1 now",
        )

    def test_outside_use(self) -> None:
        cards = [card(0, outside=20 * G, who=("pid 4711 (alice, 17G)", "pid 4712 (alice, 3G)"))]
        found = wait(machine(cards, [job(7)]), 7)
        assert (found.reason, found.expected) == (WaitReason.OUTSIDE, None)
        assert found.sentence == (
            "waits for a free GPU: GPU 0 is used outside the queue by "
            "pid 4711 (alice, 17G) and pid 4712 (alice, 3G)"
        )

    def test_a_share(self) -> None:
        held = run(job(1), 0, compute=750, memory=6 * G, whole=False)
        found = wait(machine(1, [job(7, share=500)], [held]), 7)
        assert found.reason is WaitReason.GPU
        assert found.sentence == (
            "waits for a share of 0.5 of one GPU: "
            "the most that is free beside enough memory is 0.25 of GPU 0"
        )
        assert found.hint == "a share of 0.25 would fit on GPU 0 now"

    def test_light(self) -> None:
        found = wait(machine(2, [job(7, "light")], [TRAIN]), 7)
        assert found.sentence == (
            "waits for the GPU for light jobs: GPU 0 is held by job 3 (train, alice)"
        )

    def test_slots(self) -> None:
        busy = [run(job(i, "cpu")) for i in (1, 2, 3)]
        found = wait(machine(1, [job(7)], busy), 7)
        assert (found.reason, found.sentence) == (
            WaitReason.SLOTS,
            "waits for slots: needs 2, 1 of 4 is free",
        )

    def test_parents(self) -> None:
        parents = {12: JobState.RUNNING, 13: JobState.QUEUED}
        jobs = [job(7, after=(12,)), job(8, after=(12, 13))]
        snapshot = machine(1, jobs, parents=parents)
        assert wait(snapshot, 7).sentence == "waits for job 12 (running) to succeed"
        assert wait(snapshot, 8).sentence == (
            "waits for jobs 12 (running) and 13 (queued) to succeed"
        )
        assert wait(snapshot, 7).reason is WaitReason.AFTER

    def test_a_reservation(self) -> None:
        found = wait(machine(2, [job(7, "two"), job(8)], [TRAIN]), 8)
        assert (found.reason, found.sentence) == (
            WaitReason.RESERVATION,
            "job 7 (train, alice) ahead of it is waiting for both GPUs",
        )

    def test_a_reservation_of_slots(self) -> None:
        busy = [run(job(i, "cpu")) for i in (1, 2, 3)]
        found = wait(machine(1, [job(7), job(8, "cpu")], busy), 8)
        assert found.sentence == "job 7 (train, alice) ahead of it is waiting for 2 slots"

    def test_exclusive(self) -> None:
        snapshot = machine(2, [job(7, "exclusive", tag=""), job(8, "cpu")], [TRAIN])
        assert wait(snapshot, 7) == Wait(
            1,
            NOW + 40,
            WaitReason.EXCLUSIVE,
            "starts when nothing else runs: waits for job 3 (train, alice)",
        )
        assert wait(snapshot, 8).sentence == "job 7 (alice) ahead of it is waiting to run alone"

    def test_behind_an_exclusive_job_that_runs(self) -> None:
        alone = run(job(1, "exclusive"), 0, 1, slots=4)
        found = wait(machine(2, [job(7, "cpu")], [alone]), 7)
        assert found.sentence == "waits for job 1 (train, alice), which runs alone, to end"

    def test_never(self) -> None:
        found = wait(machine(2, [job(7, gpus=3)]), 7)
        assert (found.reason, found.expected, found.sentence) == (
            WaitReason.NEVER,
            None,
            "can never start here: asks for 3 GPUs, this machine has 2",
        )

    def test_starting(self) -> None:
        found = wait(machine(2, [job(7), job(8, "cpu")]), 7)
        assert found == Wait(1, NOW, WaitReason.STARTING, "starts now on GPU 1")
        assert wait(machine(2, [job(8, "cpu")]), 8).sentence == "starts now"

    def test_many_holders_are_counted(self) -> None:
        held = [run(job(i), 0, compute=0, memory=G, whole=False) for i in (1, 2, 3, 4)]
        found = wait(machine(1, [job(7)], held, policy(8)), 7)
        assert "job 1 (train, alice), job 2 (train, alice) and 2 more" in found.sentence

    def test_many_gpus_are_counted(self) -> None:
        held = [run(job(i), i) for i in range(6)]
        found = wait(machine(6, [job(9)], held, policy(16)), 9)
        assert found.sentence.endswith("GPU 3 by job 3 (train, alice) and 2 more")


class TestHints:
    def test_a_whole_job_could_share(self) -> None:
        held = run(job(1), 0, compute=0, memory=8 * G, whole=False)
        found = wait(machine(1, [job(7)], [held]), 7)
        assert found.hint == "with --mem, up to 16G, it could share GPU 0 now"

    def test_no_hint_where_it_would_not_help(self) -> None:
        held = run(job(1), 0, compute=0, memory=8 * G, whole=False)
        assert wait(machine(1, [job(7)], [TRAIN]), 7).hint == ""
        assert wait(machine(1, [job(6), job(7)], [held]), 7).hint == ""
        assert wait(machine(1, [job(7)], [held], policy(packing=False)), 7).hint == ""


class TestExpected:
    def test_one_after_the_other(self) -> None:
        jobs = [job(i, eta=10 * i) for i in (5, 6, 7)]
        waits = plan(machine(1, jobs, [TRAIN]), NOW).waits
        assert [w.expected for w in waits.values()] == [NOW + 40, NOW + 90, NOW + 150]
        assert [w.position for w in waits.values()] == [1, 2, 3]

    def test_the_estimate_goes_before_what_the_request_says(self) -> None:
        assert wait(machine(1, [job(7)], [TRAIN], times={3: 30.0}), 7).expected == NOW + 20

    def test_behind_what_nobody_can_foresee(self) -> None:
        unknown = run(job(1), 0)
        jobs = [job(5, eta=10), job(6, after=(1,)), job(7, "cpu", after=(2,))]
        parents = {1: JobState.RUNNING, 2: JobState.RUNNING}
        waits = plan(machine(1, jobs, [unknown], parents=parents), NOW).waits
        assert [w.expected for w in waits.values()] == [None, None, None]

    def test_a_frozen_job_has_no_end(self) -> None:
        frozen = replace(TRAIN, state=JobState.FROZEN)
        assert wait(machine(1, [job(7)], [frozen]), 7).expected is None

    def test_past_its_estimate(self) -> None:
        late = run(job(3, eta=50), 0, started=NOW - 350)
        found = wait(machine(1, [job(7)], [late]), 7)
        assert found.expected == NOW + 350 // 4
        assert "job 3 (train, alice, 5m past its estimate)" in found.sentence

    def test_through_parents(self) -> None:
        jobs = [job(5, eta=20), job(6, "cpu", after=(5,))]
        snapshot = machine(1, jobs, [TRAIN], parents={5: JobState.QUEUED})
        assert wait(snapshot, 6).expected == NOW + 60

    def test_deep_in_the_queue(self) -> None:
        jobs = [job(100 + i, eta=1) for i in range(1600)]
        waits = list(plan(machine(1, jobs, [TRAIN]), NOW).waits.values())
        assert waits[499].expected == NOW + 40 + 499
        assert (waits[500].expected, waits[500].sentence) == (None, "500 jobs are ahead of it")
        assert waits[1599].later_than == NOW + 40 + 500


class TestPlan:
    def test_waits_are_worked_out_once_and_cannot_be_changed(self) -> None:
        found = plan(machine(1, [job(7)]), NOW)
        assert found.waits is found.waits
        with pytest.raises(TypeError):
            found.waits[7] = found.waits[7]  # type: ignore[index]

    def test_who_does_not_wait_has_no_wait(self) -> None:
        assert plan(machine(1, [job(7)], [TRAIN]), NOW).wait(3) is None

    def test_what_changes_nothing_is_not_laid_out_again(self) -> None:
        from unittest.mock import patch

        from gpuqueue.plan.timeline import Timeline

        jobs = [job(100 + i, eta=10) for i in range(10_000)]
        snapshot = machine(2, jobs, [TRAIN, EVAL], policy(64))
        promised = {p.job: p.latest for p in plan(snapshot, NOW).promises}
        snapshot = replace(snapshot, latest=promised | {j.id: NOW for j in jobs})
        with patch.object(Timeline, "lay", autospec=True) as lay:
            assert plan(snapshot, NOW).starts == ()
        assert lay.call_count == 0
