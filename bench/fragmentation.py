"""What is left of a machine when the first job does not fit; the last line is JSON, in per cent.

    python bench/fragmentation.py TRACE.csv.gz [--gpus 8] [--draws 1000] [--seed 0]

One draw: jobs of the trace, picked at random with replacement, are started one by one on an empty
machine, each where ``gpuqueue.plan`` puts it, and none ends. What counts is the compute that nobody
holds when the first of them finds no room. The question is that of Weng et al. 2023 (*Beware of
Fragmentation*, USENIX ATC), asked of one machine.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean

from gpuqueue.gpus.fake import parse_fake
from gpuqueue.model import Job, JobKind, JobState, Origin
from gpuqueue.plan import Card, Policy, Snapshot, plan
from gpuqueue.simulate import TraceJob, read_trace


def left_at_first_refusal(trace: list[TraceJob], cards: tuple[Card, ...], random: Random) -> float:
    """The part of all compute that is left when the first job drawn does not fit."""
    policy = Policy(10**6, cards[-1].gpu.uuid)
    running: list[Job] = []
    held = 0
    while True:
        drawn = random.choice(trace)
        job = Job(
            id=len(running) + 1, kind=JobKind.SCRIPT, state=JobState.QUEUED,
            request=replace(drawn.request, eta=None), tag="", owner=drawn.owner, command="",
            cwd="/", origin=Origin(), submitted=0.0, position=len(running) + 1,
        )  # fmt: skip
        starts = plan(Snapshot(cards, (job,), tuple(running), policy), 0.0).starts
        if not starts:
            return 1 - held / (1000 * len(cards))
        placement = starts[0].placement
        held += sum(grant.compute for grant in placement.grants)
        running.append(replace(job, state=JobState.RUNNING, started=0.0, placement=placement))


def main() -> None:
    """Print the mean over all draws."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("trace", type=Path)
    options.add_argument("--gpus", type=int, default=8)
    options.add_argument("--draws", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    cards = tuple(Card(gpu) for gpu in parse_fake(f"{asked.gpus}x80G", "gpus"))
    trace = list(read_trace(asked.trace, asked.gpus))
    seeds = range(asked.seed, asked.seed + asked.draws)
    left = [left_at_first_refusal(trace, cards, Random(seed)) for seed in seeds]
    print(json.dumps({"left_percent": round(100 * mean(left), 2), "draws": asked.draws}))


if __name__ == "__main__":
    main()
