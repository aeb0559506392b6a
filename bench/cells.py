"""What ``%%gpu`` costs: a small cell, a large array there and back, a notebook with torch.

    python bench/cells.py            some minutes
    python bench/cells.py --quick    fewer cells and a smaller array

Measured in a kernel, as a notebook would run it, on a queue of its own with a pretend GPU:

round trip    ``x = x + 1`` under ``%%gpu``, from the request to the idle kernel; the median of the
              cells that come to the notebook's spare kernel, one right after the other, and (as
              "fresh") of cells without one; beside the plain cell and, if it is installed,
              ipyparallel's ``%%px`` of the same on one engine.
array         Cells that read a large array (new, and as sent before), return one, and change one
              in place (ten places, all of it), each less a cell that does the same without the
              array's way; beside a copy of that array in memory in the same repetition. Medians.
array_alone   The same ways through the same functions, without the jobs around them.
small_objects Cells that read and return lists of ints, dicts and small arrays, beside pickle.
torch         The round trip in a notebook that has torch imported, where torch is installed: in
              turn with the one that has not.

The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
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

_CELL = "%%gpu\nx = x + 1"
_TURN = 5
_REST_BETWEEN = 0.5


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


def _round_trips(kernels: dict[str, _Kernel], count: int) -> dict[str, dict[str, float]]:
    """Medians for each of the notebooks.

    They take turns, some cells each, so that what else the machine does is the same for all; a turn
    begins when the processes for the next cell of both wait.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in kernels}
    for kernel in kernels.values():
        kernel.run("%reload_ext gpuqueue\nx = 0")
    _spares(0)
    for name, kernel in kernels.items():
        found[name]["first"] = kernel.run(_CELL)[0]
    fresh = _in_turn(kernels, _CELL, count)
    _spares(len(kernels))
    for kernel in kernels.values():
        _warm(kernel)
    gpu, plain = _in_turn(kernels, _CELL, 2 * count), _in_turn(kernels, "x = x + 1", count)
    for name, medians in found.items():
        medians |= {"fresh": fresh[name], "gpu": gpu[name], "plain": plain[name]}
    return found


def _in_turn(kernels: dict[str, _Kernel], source: str, count: int) -> dict[str, float]:
    """The median of a cell in each notebook."""
    took: dict[str, list[float]] = {name: [] for name in kernels}
    while len(took[next(iter(took))]) < count:
        for name, kernel in kernels.items():
            wait_for_spare(os.environ["GPUQUEUE_HOME"], timeout=_REST_BETWEEN)
            time.sleep(_REST_BETWEEN)
            took[name] += [kernel.run(source)[0] for _ in range(_TURN)]
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def _parallel(kernel: _Kernel, count: int) -> float:
    kernel.run(
        "import ipyparallel as ipp\ncluster = ipp.Cluster(n=1, log_level=40)\n"
        "rc = cluster.start_and_connect_sync()\nrc[:].push({'x': 0})"
    )
    kernel.run("%%px\nx = x + 1")
    median = kernel.median("%%px\nx = x + 1", count)
    kernel.run("cluster.stop_cluster_sync()")
    return median


_REST = """
def rest():
    for file in pathlib.Path(os.environ["GPUQUEUE_HOME"], "jobs").rglob("*.[0-9]*"):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
"""
_USE = "for _ in range(2): b = a.copy(); c = a.copy(); del b, c"
_READ = "r = float({}[::512].sum())"


def _array(kernel: _Kernel, size: int, count: int) -> dict[str, float]:
    """Medians over repetitions in which each cell has its own baseline and its own copy.

    Memory that nothing has used for a while can cost many times what used memory costs (a virtual
    machine gets it from its host), and a disk that still writes what came before slows what comes
    next. So before each measurement what the queue has written reaches the disk, and the memory is
    used once.
    """
    n = size // 8
    make = f"import numpy as np\nmade = np.full({n}, 1.0)\nmade[0] = {{}}"
    kernel.run(f"import numpy as np, os, pathlib, time\na = np.ones({n})\nv = np.ones(8){_REST}")
    _warm(kernel)
    times: dict[str, list[float]] = {}

    def cell(name: str, source: str) -> float:
        kernel.run(f"rest()\n{_USE}")
        wait_for_spare(os.environ["GPUQUEUE_HOME"])
        times.setdefault(name, []).append(kernel.run(source)[0])
        return times[name][-1]

    for index in range(count):
        kernel.run("r = made = None")
        copy = (
            f"{_USE}\nt = time.perf_counter(); b = a.copy(); print(time.perf_counter() - t); del b"
        )
        times.setdefault("copy", []).append(float(kernel.run(f"rest()\n{copy}")[1]))
        empty = cell("empty", "%%gpu\n" + _READ.format("v"))
        kernel.run(f"a[:] = {index}")
        source = "%%gpu\n" + _READ.format("a")
        for name in ("in", "in_again"):
            times.setdefault(name, []).append(cell(f"{name}_cell", source) - empty)
        base = cell("drop_cell", f"%%gpu\n{make.format(index)}\ndel made")
        cell("out_cell", f"%%gpu\n{make.format(index)}")
        # reading it here is part of its way out
        read = kernel.run(_READ.format("made"))[0]
        times.setdefault("out", []).append(times["out_cell"][-1] - base + read)
        little = cell("touch_cell", "%%gpu\na[::a.size // 10] += 1") - empty
        times.setdefault("changed_little", []).append(little)
        every = cell("change_cell", "%%gpu\na += 1") - empty
        times.setdefault("changed_all", []).append(every)
    medians = {f"{name}_seconds": statistics.median(values) for name, values in times.items()}
    copy_seconds = medians["copy_seconds"]
    ways = ("in", "in_again", "out", "changed_little", "changed_all")
    # each against the copy of its own repetition
    rates = {
        f"{way}_of_copy": statistics.median(
            copy / max(took, 1e-2) for copy, took in zip(times["copy"], times[way], strict=True)
        )
        for way in ways
    }
    return {"bytes": size, "copy_bytes_per_second": size / copy_seconds, **medians, **rates}


def _alone(kernel: _Kernel, size: int, count: int) -> dict[str, float]:
    """The ways of an array by themselves, without a job, which a busy machine starts slowly.

    In the kernel: written as for a job and read as a job reads it (in), as a job writes what it has
    made and a notebook reads it (out), beside a copy. Medians of ratios of neighbours in time.
    """
    kernel.run(f"import numpy as np, os, pathlib, tempfile, time{_ALONE}")
    code = f"print(*ways(np.ones({size} // 8)))"
    rows = [[float(word) for word in kernel.run(code)[1].split()] for _ in range(count)]
    names = ("copy", "in", "again", "out")
    found = {
        f"{name}_seconds": statistics.median(row[index] for row in rows)
        for index, name in enumerate(names)
    }
    for index, name in enumerate(names[1:], 1):
        found[f"{name}_of_copy"] = statistics.median(row[0] / row[index] for row in rows)
    return found


_ALONE = """
from gpuqueue.run.values import load_file, save_values

def timed(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

def way(path, array, let_go):
    save_values(path, {"a": array}, flush=False, let_go=let_go)
    return float(load_file(path).values["a"][::512].sum())

def ways(a):
    with tempfile.TemporaryDirectory(dir=os.environ["GPUQUEUE_HOME"]) as folder:
        made = a.copy()
        for _ in range(2):  # memory that has been used
            b, c = a.copy(), a.copy()
            del b, c
        took = [timed(a.copy)]
        took.append(timed(lambda: way(f"{folder}/in", a, False)))
        took.append(timed(lambda: way(f"{folder}/again", a, False)))
        took.append(timed(lambda: way(f"{folder}/out", made, True)))
    return took
"""


_SMALL_OBJECTS = {
    "ints": "list(range({count}))",
    "dicts": "[{{'k': i, 's': str(i)}} for i in range({count} // 5)]",
    "arrays": "[np.full(4, i) for i in range({count} // 10)]",
}


def _small_objects(kernel: _Kernel, count: int, times: int) -> dict[str, float]:
    """Seconds beyond a small cell, and what pickle takes for the same there and back."""
    found: dict[str, float] = {}
    kernel.run("import numpy as np, pickle, time\nx = 1")
    for name, text in _SMALL_OBJECTS.items():
        kernel.run("x = y = 1")
        empty = kernel.median("%%gpu\nr = x", times)
        made = text.format(count=count)
        kernel.run(f"x = {made}")
        found[f"{name}_in"] = kernel.median("%%gpu\nr = len(x)", times) - empty
        kernel.run("x = 1")
        found[f"{name}_out"] = kernel.median(
            f"%%gpu\nimport numpy as np\ny = {made}", times
        ) - kernel.median(f"%%gpu\nimport numpy as np\ny = {made}\ndel y", times)
        pickled = "t = time.perf_counter(); z = pickle.loads(pickle.dumps(y, 5))"
        kernel.run(f"{pickled}; del z")
        found[f"{name}_pickle"] = float(
            kernel.run(f"{pickled}; print(time.perf_counter() - t); del z")[1]
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer cells, a smaller array")
    quick = parser.parse_args().quick
    count, size = (5, 128 << 20) if quick else (20, 1 << 30)
    found: dict[str, Any] = {}
    with own_queue(real=False):
        with contextlib.ExitStack() as stack:
            kernels = {"round trip": _Kernel()}
            if importlib.util.find_spec("torch"):
                kernels["with torch"] = _Kernel()
            for kernel in kernels.values():
                stack.enter_context(kernel.client.setup_kernel())
            if "with torch" in kernels:
                kernels["with torch"].run("import torch")
            both = _round_trips(kernels, count)
            if importlib.util.find_spec("ipyparallel"):
                both["round trip"]["px"] = _parallel(kernels["round trip"], count)
        for what, medians in both.items():
            for name, seconds in medians.items():
                print(f"{what} {name:<6} {seconds * 1000:8.1f} ms", flush=True)
        found |= {"round_trip": both["round trip"], "torch": both.get("with torch")}
        if importlib.util.find_spec("numpy"):
            kernel = _Kernel()
            with kernel.client.setup_kernel():
                kernel.run("%reload_ext gpuqueue")
                found["array"] = _array(kernel, size, 3 if quick else 5)
                found["array_alone"] = _alone(kernel, size, 5 if quick else 9)
                found["small_objects"] = _small_objects(kernel, count * 50_000, 3)
            for part in ("array", "array_alone", "small_objects"):
                for name, value in found[part].items():
                    print(f"{part} {name:<22} {value:14.3f}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
