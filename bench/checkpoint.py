"""What the checkpoint helper costs a training: JSON as the last line.

    python bench/checkpoint.py [--mb 100] [--repeat 7]

- ``should_stop_ns``: one look in a job, processor time; ``first_ms``: the first, with its file;
- ``log_us``: one line of three metrics, processor time;
- ``save_ms``: ``torch.save`` of ``--mb`` MB; ``save_flushed_ms``: the same and an fsync; and
  ``atomic_ms``: the same through ``atomic_path``; medians of wall time, taken in turns;
- ``atomic_extra_ms``: what ``atomic_path`` adds to a save that is flushed, the median difference;
- ``import_ms``: ``from gpuqueue import checkpoint`` once ``gpuqueue`` is there, processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from gpuqueue import checkpoint


def cpu(act: Callable[[], object], times: int, repeat: int) -> float:
    """Least processor seconds of one call, of several rounds: the rest is noise."""
    found = []
    for _ in range(repeat):
        began = time.process_time()
        for _ in range(times):
            act()
        found.append((time.process_time() - began) / times)
    return min(found)


def wall(act: Callable[[], object]) -> float:
    """Milliseconds on the clock."""
    began = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - began)


def saves(folder: Path, mb: int, repeat: int) -> dict[str, float]:
    """What the three ways to save cost."""
    weights = {"w": torch.rand(mb * 250_000)}
    target = folder / "step1.pt"

    def flushed() -> None:
        torch.save(weights, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())

    def atomic() -> None:
        with checkpoint.atomic_path(target) as path:
            torch.save(weights, path)

    ways = {"save": lambda: torch.save(weights, target), "save_flushed": flushed, "atomic": atomic}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, act in ways.items():
            target.unlink(missing_ok=True)
            took[name].append(wall(act))
    found = {f"{name}_ms": round(median(each), 1) for name, each in took.items()}
    pairs = zip(took["atomic"], took["save_flushed"], strict=True)
    found["atomic_extra_ms"] = round(median(one - other for one, other in pairs), 2)
    return found


def import_ms() -> float:
    """Least of five fresh interpreters."""
    code = (
        "import time, gpuqueue; began = time.process_time()\n"
        "from gpuqueue import checkpoint; print(time.process_time() - began)"
    )
    words = [sys.executable, "-c", code]
    runs = [subprocess.run(words, capture_output=True, text=True, check=True) for _ in range(5)]
    return round(1000 * min(float(run.stdout) for run in runs), 1)


def main() -> None:
    """Print the JSON line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mb", type=int, default=100)
    options.add_argument("--repeat", type=int, default=7)
    asked = options.parse_args()
    torch.set_num_threads(1)
    found: dict[str, float] = {"mb": asked.mb}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as root:
        folder = Path(root)
        os.environ["GPUQUEUE_ATTEMPT_DIR"] = root
        found["first_ms"] = round(wall(checkpoint.should_stop), 2)
        found["should_stop_ns"] = round(1e9 * cpu(checkpoint.should_stop, 10**6, 3), 1)
        note = cpu(lambda: checkpoint.log(7, loss=0.1234, lr=1e-3, accuracy=0.9), 10**4, 3)
        found["log_us"] = round(1e6 * note, 1)
        found |= saves(folder, asked.mb, asked.repeat)
    found["import_ms"] = import_ms()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
