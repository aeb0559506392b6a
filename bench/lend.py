"""How long a cell waits for the compute that its idle notebook has lent.

    python bench/lend.py [--rounds 20] [--processes 8]

It prints a table and, as its last line, one JSON object. Four notebooks hold a quarter of a pretend
GPU each and idle; a job of so many processes runs on what they lend. One notebook tells, as its
kernel does, that a cell begins: ``stopped`` is from then until every process of the job stands
still, ``goes`` from the end of the cell until the first of them runs again, without ``lend_again``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from free import stop_lead, until

AGAIN = 0.5
WORK = "import time\nwhile True: sum(range(1000)); time.sleep(0.001)"


class Books:
    """Four kernels, which are processes that only live, and tell of cells as real ones do."""

    def __init__(self, client: Any) -> None:
        from gpuqueue.client.shares import acquire
        from gpuqueue.client.wishes import Wish
        from gpuqueue.run.kernelshare import Busy
        from gpuqueue.run.process import identify

        self.leases, self.kernels, self.cells = [], [], []
        for name in "abcd":
            lease = acquire(client, Wish(250, 10 << 30), path=f"/books/{name}.ipynb")
            kernel = subprocess.Popen(["sleep", "3600"], env=lease.environment(os.environ))
            process = identify(kernel.pid)
            assert process is not None
            lease.name(process)
            self.leases.append(lease)
            self.kernels.append(kernel)
            self.cells.append(Busy(lease.folder))
            self.cells[-1].tell(busy=False)

    def close(self) -> None:
        for kernel, lease in zip(self.kernels, self.leases, strict=True):
            kernel.kill()
            kernel.wait()
            lease.release()


def measure(rounds: int, processes: int) -> dict[str, float]:
    """All figures, in seconds; of the rounds the median and the worst."""
    import gpuqueue
    from gpuqueue.client import default_client
    from gpuqueue.model import JobState
    from gpuqueue.run.freezing import are_frozen
    from gpuqueue.run.process import descendants

    client = default_client()
    books = Books(client)
    each = " & ".join(f"python3 -c '{WORK}'" for _ in range(processes))
    job = gpuqueue.submit(["sh", "-c", f"{each} & wait"], share=0.9, mem="30G")
    stopped, goes = [], []
    try:
        until(lambda: job.state is JobState.RUNNING)
        runner = job.record.process
        until(lambda: len(descendants(runner.pid)) > processes)
        for number in range(rounds):
            cell = books.cells[number % 4]
            lends = Path(books.leases[number % 4].folder) / "lends"
            until(lends.exists)
            until(lambda: job.state is JobState.RUNNING and not are_frozen([runner]))
            began = time.perf_counter()
            cell.tell(busy=True)
            until(lambda: are_frozen([runner]))
            stopped.append(time.perf_counter() - began)
            until(lambda: job.state is JobState.FROZEN)
            began = time.perf_counter()
            cell.tell(busy=False)
            until(lambda: not are_frozen([runner]))
            goes.append(time.perf_counter() - began - AGAIN)
    finally:
        job.cancel()
        job.wait()
        books.close()
        stop_lead(client)
    found: dict[str, float] = {"rounds": rounds, "processes": processes}
    for name, values in (("stopped", stopped), ("goes", goes)):
        found |= {f"{name}_median": statistics.median(values), f"{name}_worst": max(values)}
    return found


def main() -> None:
    """Print the table, and the JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=8)
    asked = parser.parse_args()
    for name in list(os.environ):
        if name.startswith("GPUQUEUE_"):
            del os.environ[name]
    folder = Path(tempfile.mkdtemp(prefix="gpuqueue-bench-"))
    os.environ.update(GPUQUEUE_HOME=str(folder), GPUQUEUE_FAKE_GPUS="80G")
    (folder / "config.toml").write_text(f"lend_after = 1\nlend_again = {AGAIN}\n")
    try:
        found = measure(asked.rounds, asked.processes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [
        (f"a cell begins: {asked.processes} processes stand still", "stopped", "1.0 s"),
        (f"it has ended for {AGAIN:g} s: they go on", "goes", ""),
    ]
    print(f"{'':<52} {'median':>9} {'worst':>9} {'target':>9}")
    for words, name, target in rows:
        median, worst = found[f"{name}_median"], found[f"{name}_worst"]
        print(f"{words:<52} {median:>7.3f} s {worst:>7.3f} s {target:>9}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
