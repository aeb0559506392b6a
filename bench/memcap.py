"""What the memory cap adds to an allocation: with and without it, on a driver without a GPU.

    python bench/memcap.py             about half a minute
    python bench/memcap.py --quick     a second, to see that it works

A compiled program allocates and frees 512 bytes at a time through the functions that it finds as
CUDA's runtime does, with one and with eight threads, while few and while 100,000 allocations live.
The driver is the tests' pretend one, which needs some 20 ns for a pair. Told is the processor time
of a pair, all threads together: the least of several runs, for other work on the machine only adds.
The last line printed is one JSON object; ``added_ns`` is the largest of the four.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpuqueue.share import memcap

HERE = Path(__file__).parent
DRIVER = HERE.parent / "tests/share/fake_cuda.c"
CARD = "GPU-00000000-0000-0000-0000-000000000001"


def compile_c(target: Path, *words: str | Path) -> Path:
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-pthread", "-o", target, *words, "-ldl"], check=True
    )
    return target


def pair(program: Path, environment: dict[str, str], threads: int, live: int, pairs: int) -> float:
    """Processor time of one pair in ns."""
    words = [program, str(threads), str(live), str(pairs)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(folder: Path, *, quick: bool) -> list[dict[str, float]]:
    flags = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    compile_c(folder / "libcuda.so.1", *flags, DRIVER)
    program = compile_c(folder / "pairs", HERE / "memcap_pairs.c")
    library = memcap.build(folder / "library")
    plain = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(folder)}
    capped = {**plain, **memcap.environment(folder, {CARD: 60 << 30}, library=library)}
    pairs, repeats = (20_000, 1) if quick else (1_000_000, 5)
    found = []
    for threads, live in product((1, 8), (10, 100_000)):
        without, within = [], []
        for _ in range(repeats):  # by turns, so that both meet the same neighbours
            without.append(pair(program, plain, threads, live, pairs))
            within.append(pair(program, capped, threads, live, pairs))
        row = {"threads": threads, "live": live, "without_ns": min(without), "with_ns": min(within)}
        found.append({**row, "added_ns": round(row["with_ns"] - row["without_ns"], 1)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a second, to see that it works")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="memcap-") as folder:
        rows = measure(Path(folder), quick=quick)
    table = Table(title="One allocation and its free, ns of processor time")
    for column in ("threads", "live", "without", "with", "added"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,g}" for value in row.values()))
    Console().print(table)
    print(json.dumps({"added_ns": max(row["added_ns"] for row in rows), "rows": rows}))


if __name__ == "__main__":
    main()
