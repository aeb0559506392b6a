"""While the GPUs are the person's, the plan starts nothing, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines import NOW, job, machine, run

from gpuqueue.model import JobState, Mode, ModeName
from gpuqueue.plan import WaitReason, plan


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (
            Mode(ModeName.FREE, "person", since=NOW),
            "nothing starts until `jupyter gpuqueue resume`",
        ),
        (Mode(ModeName.FREEING, "person", since=NOW), "nothing starts until"),
        (
            Mode(ModeName.FREE, "automatic", since=NOW, program="blender (pid 7)"),
            "blender (pid 7) has the GPUs; nothing starts until it has gone",
        ),
    ],
)
def test_while_the_person_has_the_gpus_nothing_starts(mode: Mode, words: str) -> None:
    waiting = [job(1), job(2, "cpu"), job(3, priority=5, eta=60), job(4, after=(9,))]
    low = run(job(8, preemptible=True), 0)
    snapshot = machine(2, waiting, [low], parents={9: JobState.FAILED})
    free = replace(snapshot, mode=mode)
    assert plan(snapshot, NOW).starts
    made = plan(free, NOW)
    assert (made.starts, made.promises, made.evictions) == ((), (), ())
    assert made.expected == {}
    assert [drop.job for drop in made.drops] == [4]
    assert list(made.waits) == [3, 1, 2]
    assert {wait.reason for wait in made.waits.values()} == {WaitReason.FREE}
    assert [wait.position for wait in made.waits.values()] == [1, 2, 3]
    assert all(words in wait.sentence for wait in made.waits.values())


def test_seconds_frozen_do_not_bring_the_end_nearer() -> None:
    ran = replace(run(job(1, eta=100.0), 0, started=NOW - 90), frozen=60.0)
    found = plan(machine(1, [job(2)], [ran]), NOW)
    assert found.expected == {2: NOW + 70}
    frozen = replace(ran, state=JobState.FROZEN, frozen_at=NOW - 5)
    assert plan(machine(1, [job(2)], [frozen]), NOW).expected == {}
    assert ran.ran(NOW) == 30
    assert frozen.ran(NOW) == 25
