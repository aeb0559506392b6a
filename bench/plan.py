"""What a decision costs: JSON with milliseconds by number of waiting jobs, as the last line.

    python bench/plan.py [--seed 1] [--repeat 7]

A machine of 8 GPUs, all busy for 1 to 8 hours but for a quarter of the first, which has just come
free. A job that wants all GPUs heads the queue; behind it wait jobs drawn at random: fractions,
whole GPUs and gangs, from a minute to two days. Each figure is CPU time of one process, the median
over several queues of the decision *with* the expected starts of the first 500 waiting jobs:

- ``ms``: jobs have been seen before, as after any event but a submission;
- ``first``: nobody has been seen before, so that every job is given its promise;
- ``nothing``: an event that changes nothing, as no job fits in what is free;
- ``deep``: as ``ms``, with queues of long jobs only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import median

from gpuqueue.model import Gpu, Grant, Job, JobKind, JobState, Origin, Placement, Request
from gpuqueue.plan import Card, Policy, Snapshot, plan

GIB = 1024**3
GPUS = [Gpu(f"GPU-{i}", i, "bench", 80 * GIB) for i in range(8)]
CARDS = tuple(Card(gpu) for gpu in GPUS)
SIZES = (100, 10_000, 100_000)


def _job(id_: int, gpus: int, share: int, eta: float) -> Job:
    request = Request(gpus=gpus, share=share, memory=share * 80 * GIB // 1000, slots=1, eta=eta)
    return Job(
        id=id_, kind=JobKind.SCRIPT, state=JobState.QUEUED, request=request, tag="t", owner="o",
        command="c", cwd="/", origin=Origin(), submitted=0.0, position=id_,
    )  # fmt: skip


def snapshot(seed: int, waiting: int, free: int, shortest: float = 60.0) -> Snapshot:
    """A busy machine with ``free`` thousandths of its first GPU left, and a queue."""
    random = Random(seed)
    running = []
    for i in range(8):
        share = 1000 - free if i == 0 else 1000
        grant = Grant(f"GPU-{i}", share, share * 80 * GIB // 1000, whole=share == 1000)
        held = replace(_job(-i, 1, share, 3600.0 * (i + 1)), state=JobState.RUNNING, started=0.0)
        running.append(replace(held, placement=Placement((grant,), 1)))
    queue = [_job(1, 8, 1000, 7200.0)]
    for id_ in range(2, waiting + 1):
        gpus, share = random.choices(
            [(1, 125), (1, 250), (1, 333), (1, 500), (1, 810), (1, 1000), (2, 1000), (4, 1000)],
            [8, 12, 8, 14, 8, 36, 8, 6],
        )[0]
        eta = float(round(min(172_800.0, max(shortest, random.lognormvariate(7.5, 1.6)))))
        queue.append(_job(id_, gpus, share, eta))
    return Snapshot(CARDS, tuple(queue), tuple(running), Policy(10**6, GPUS[-1].uuid))


def seen(found: Snapshot) -> Snapshot:
    """The same, all of whose jobs have been given their promises."""
    return replace(found, latest={each.job: each.latest for each in plan(found, 0.0).promises})


def cost(snapshots: list[Snapshot]) -> float:
    """Median milliseconds of CPU for a decision and the expected starts."""
    took = []
    for found in snapshots:
        began = time.process_time()
        decision = plan(found, 0.0)
        assert len(decision.expected) + len(decision.starts) > 0
        took.append(1000 * (time.process_time() - began))
    return round(median(took), 2)


def main() -> None:
    """Print the table, and the JSON line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--repeat", type=int, default=7)
    asked = options.parse_args()
    seeds = range(asked.seed, asked.seed + asked.repeat)
    kinds: dict[str, Callable[[int, int], Snapshot]] = {
        "ms": lambda seed, size: seen(snapshot(seed, size, 250)),
        "first": lambda seed, size: snapshot(seed, size, 250),
        "nothing": lambda seed, size: seen(snapshot(seed, size, 50)),
        "deep": lambda seed, size: seen(snapshot(seed, size, 250, 7200.0)),
    }
    found: dict[str, dict[str, float]] = {}
    for name, make in kinds.items():
        found[name] = {}
        for size in SIZES:
            found[name][str(size)] = cost([make(seed, size) for seed in seeds])
            print(f"{name:<8} {size:>7} waiting: {found[name][str(size)]:8.2f} ms", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
