"""What ``%%gpu`` costs: a small cell, a large array there and back, a notebook with torch.

    python bench/cells.py            about two minutes
    python bench/cells.py --quick    fewer cells and a smaller array

Measured in a kernel, as a notebook would run it, on a queue of its own with a pretend GPU:

round trip    ``x = x + 1`` under ``%%gpu``, from the request to the idle kernel; the median of the
              cells that come to the notebook's spare kernel, one right after the other, and (as
              "fresh") of cells without one; beside the plain cell and, if it is installed,
              ipyparallel's ``%%px`` of the same on one engine.
array         A cell that reads a large array, and one that returns one, beside a copy of that array
              in memory; as a fraction of the copy's rate.
torch         The round trip in a notebook that has torch imported, where torch is installed.

The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).parent))

from transparency import own_queue, wait_for_spare


class _Kernel:
    def __init__(self) -> None:
        self.client = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3", timeout=600)

    def run(self, source: str) -> tuple[float, str]:
        """Seconds that a cell took, and what it printed."""
        cell: Any = nbformat.v4.new_code_cell(source)  # type: ignore[no-untyped-call]
        self.client.nb.cells.append(cell)
        began = time.perf_counter()
        self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        seconds = time.perf_counter() - began
        return seconds, "".join(o.get("text", "") for o in cell.outputs)

    def median(self, source: str, count: int) -> float:
        return statistics.median(self.run(source)[0] for _ in range(count))


def _spares(number: int) -> None:
    """Have so many spare kernels from the next cell on."""
    config = Path(os.environ["GPUQUEUE_HOME"]) / "config.toml"
    config.write_text(f"spare_kernels = {number}\n")
    time.sleep(2.5)  # the controller looks once a second


def _warm(kernel: _Kernel) -> None:
    """Have a spare kernel ready."""
    # the first cell has one started, and the second tells it what the magic itself has imported
    for _ in range(2):
        kernel.run("%%gpu\npass")
        wait_for_spare(os.environ["GPUQUEUE_HOME"])


def _small(kernel: _Kernel, count: int) -> dict[str, float]:
    kernel.run("%reload_ext gpuqueue\nx = 0")
    _spares(0)
    found = {"first": kernel.run("%%gpu\nx = x + 1")[0]}
    found["fresh"] = kernel.median("%%gpu\nx = x + 1", count)
    _spares(1)
    _warm(kernel)
    found["gpu"] = kernel.median("%%gpu\nx = x + 1", count)
    found["plain"] = kernel.median("x = x + 1", count)
    return found


def _parallel(kernel: _Kernel, count: int) -> float:
    kernel.run(
        "import ipyparallel as ipp\ncluster = ipp.Cluster(n=1, log_level=40)\n"
        "rc = cluster.start_and_connect_sync()\nrc[:].push({'x': 0})"
    )
    kernel.run("%%px\nx = x + 1")
    median = kernel.median("%%px\nx = x + 1", count)
    kernel.run("cluster.stop_cluster_sync()")
    return median


def _array(kernel: _Kernel, size: int) -> dict[str, float]:
    kernel.run(f"import numpy as np, time\na = np.ones({size} // 8)\nb = a.copy(); del b")
    copy = kernel.run("t = time.perf_counter(); b = a.copy(); print(time.perf_counter() - t)")[1]
    kernel.run("del b")
    _warm(kernel)
    empty = kernel.median("%%gpu\nimport numpy", 3)
    there = kernel.run("%%gpu\nr = float(a[::512].sum())")[0]
    kernel.run("%%gpu\nr = 0")
    back = kernel.run(f"%%gpu\nimport numpy as np\nmade = np.ones({size} // 8)")[0]
    read = kernel.run("r = float(made[::512].sum())")[0]
    rate = size / float(copy)
    return {
        "bytes": size,
        "copy_seconds": float(copy),
        "there_seconds": there - empty,
        "back_seconds": back - empty + read,
        "there_of_copy": size / max(there - empty, 1e-3) / rate,
        "back_of_copy": size / max(back - empty + read, 1e-3) / rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer cells, a smaller array")
    quick = parser.parse_args().quick
    count, size = (5, 128 << 20) if quick else (20, 1 << 30)
    found: dict[str, Any] = {}
    with own_queue(real=False):
        kernel = _Kernel()
        with kernel.client.setup_kernel():
            found["round_trip"] = small = _small(kernel, count)
            if importlib.util.find_spec("ipyparallel"):
                small["px"] = _parallel(kernel, count)
        for name, seconds in small.items():
            print(f"round trip {name:<6} {seconds * 1000:8.1f} ms", flush=True)
        if importlib.util.find_spec("numpy"):
            kernel = _Kernel()
            with kernel.client.setup_kernel():
                kernel.run("%reload_ext gpuqueue")
                found["array"] = _array(kernel, size)
            for name, value in found["array"].items():
                print(f"array {name:<14} {value:12.3f}", flush=True)
        if importlib.util.find_spec("torch"):
            kernel = _Kernel()
            with kernel.client.setup_kernel():
                kernel.run("import torch")
                found["torch"] = _small(kernel, count)
            for name, seconds in found["torch"].items():
                print(f"with torch {name:<6} {seconds * 1000:8.1f} ms", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
