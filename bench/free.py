"""How long until the GPUs are the person's, and what it costs a job to be ready for that.

    python bench/free.py [--jobs 8] [--rounds 3] [--save 0.2]

It prints a table and, as its last line, one JSON object. Pretend GPUs and real processes: 8 jobs
that look at ``should_stop()`` every 10 ms and take ``--save`` seconds to save. ``free`` is measured
from the call to the moment at which no process of any of them is left, ``free --soft`` to the
moment at which all of their processes stand still. ``resume`` is until the last frozen one moves.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAIN = """
import os, sys, time
from gpuqueue import checkpoint
save, number = float(sys.argv[1]), sys.argv[2]
steps = 0
while True:
    steps += 1
    if checkpoint.should_stop():
        time.sleep(save)
        sys.exit(0)
    if steps % 5 == 0:
        with open(number, "a") as file:
            file.write(".")
    time.sleep(0.01)
"""
ASKING = """
import sys, time
from gpuqueue import checkpoint
checkpoint.should_stop()
count, best = 200_000, 1.0
for _ in range(7):
    began = time.process_time()
    for _ in range(count):
        checkpoint.should_stop()
    asked = time.process_time() - began
    began = time.process_time()
    for _ in range(count):
        pass
    best = min(best, (asked - (time.process_time() - began)) / count)
print(best)
"""


def until(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    """Wait for something that comes soon, looking often."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"never came: {condition}")
        time.sleep(0.001)


class Bench:
    """The jobs, on a state directory of their own."""

    def __init__(self, folder: Path, jobs: int, save: float) -> None:
        import gpuqueue
        from gpuqueue.client import default_client

        self.folder, self.save = folder, save
        self.client = default_client()
        self.queue = gpuqueue
        (folder / "train.py").write_text(TRAIN)
        words = ["python", "train.py", str(save)]
        self.jobs = [gpuqueue.submit([*words, str(n)], cwd=folder) for n in range(jobs)]

    def ready(self) -> list[Any]:
        """Wait until all run and can save; their runners."""
        from gpuqueue.model import JobState
        from gpuqueue.run.files import is_resumable

        def all_run() -> bool:
            records = [job.record for job in self.jobs]
            return all(
                record.state is JobState.RUNNING
                and is_resumable(self.client.home.attempt(record.id, record.attempt))
                for record in records
            )

        until(all_run)
        return [job.record.process for job in self.jobs]

    def steps(self) -> list[int]:
        """How far each job has come."""
        files = [self.folder / str(n) for n in range(len(self.jobs))]
        return [file.stat().st_size if file.exists() else 0 for file in files]

    def full(self) -> float:
        """Seconds from ``free`` until nothing of them is left, beyond the time that they save."""
        from gpuqueue.run.process import alive

        runners = self.ready()
        began = time.perf_counter()
        self.queue.free()
        until(lambda: not any(alive(runner) for runner in runners))
        taken = time.perf_counter() - began
        self.queue.resume()
        return taken - self.save

    def soft(self) -> tuple[float, float]:
        """Seconds from ``free --soft`` until all stand still, and back until all have moved."""
        from gpuqueue.run.freezing import are_frozen

        runners = self.ready()
        began = time.perf_counter()
        self.queue.free(soft=True)
        until(lambda: are_frozen(runners))
        frozen = time.perf_counter() - began
        before = self.steps()
        began = time.perf_counter()
        self.queue.resume()
        until(lambda: all(now > then for now, then in zip(self.steps(), before, strict=True)))
        return frozen, time.perf_counter() - began


def measure(jobs: int, rounds: int, save: float) -> dict[str, float]:
    """All figures, in seconds; of the rounds the median and the worst."""
    folder = Path(tempfile.mkdtemp(prefix="gpuqueue-bench-"))
    os.environ.update(GPUQUEUE_HOME=str(folder / "home"), GPUQUEUE_FAKE_GPUS=f"{jobs}x24G")
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(f"slots = {2 * jobs}\n")
    bench = Bench(folder, jobs, save)
    try:
        full = [bench.full() for _ in range(rounds)]
        pairs = [bench.soft() for _ in range(rounds)]
        asked = subprocess.run(
            [sys.executable, "-c", ASKING], capture_output=True, text=True, check=True,
            env={**os.environ, "GPUQUEUE_ATTEMPT_DIR": str(_attempt(folder))},
        ).stdout  # fmt: skip
    finally:
        for job in bench.jobs:
            job.cancel()
        for job in bench.jobs:
            job.wait()
        stop_lead(bench.client)
        shutil.rmtree(folder, ignore_errors=True)
    soft, back = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found: dict[str, float] = {"jobs": jobs, "rounds": rounds, "save": save}
    for name, values in (("full", full), ("soft", soft), ("resume", back)):
        found |= {f"{name}_median": statistics.median(values), f"{name}_worst": max(values)}
    return found | {"should_stop": float(asked)}


def _attempt(folder: Path) -> Path:
    attempt = folder / "attempt"
    attempt.mkdir()
    return attempt


def stop_lead(client: Any) -> None:
    """End the controller in the background."""
    import signal

    from gpuqueue.model import ProcessId
    from gpuqueue.run.process import send_signal

    lead = client.lead()
    if lead is not None:
        send_signal(ProcessId(lead["pid"], lead["start"], lead["boot"]), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=float, default=0.2)
    asked = parser.parse_args()
    for name in list(os.environ):
        if name.startswith("GPUQUEUE_"):
            del os.environ[name]
    from gpuqueue.client.rights import MARKERS

    for name in MARKERS:  # a bench is nobody's wish
        os.environ.pop(name, None)
    found = measure(asked.jobs, asked.rounds, asked.save)
    rows = [
        (f"free: {asked.jobs} jobs gone, over the {asked.save:g} s that they save", "full", 1.0),
        (f"free --soft: {asked.jobs} jobs stand still", "soft", 0.3),
        ("resume: all of them have moved", "resume", None),
    ]
    print(f"{'':<58} {'median':>9} {'worst':>9} {'target':>9}")
    for words, name, target in rows:
        aim = "" if target is None else f"{target:.1f} s"
        median, worst = found[f"{name}_median"], found[f"{name}_worst"]
        print(f"{words:<58} {median:>7.3f} s {worst:>7.3f} s {aim:>9}")
    print(f"{'should_stop(), of processor time':<58} {found['should_stop'] * 1e9:>6.0f} ns"
          f" {'':>9} {'1000 ns':>9}")  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
