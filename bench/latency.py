"""How quickly a queued job starts, beside task-spooler and HyperQueue, in one run.

    python bench/latency.py            one to two minutes
    python bench/latency.py --quick    a few seconds, to see that it works

Measured, each on queues of their own in a temporary directory, with 8 slots:

start     From just before the submit to the first instruction of the job's process: a small
          compiled program that stamps the clock. One job at a time on an idle queue.
call      The submit alone: ``gpuqueue.submit``, HyperQueue's ``Client.submit``, the ``tsp``
          program (which includes starting it, as it does for its users).
jobs/s    Many jobs that run ``/bin/true``, submitted one by one, until the last has ended. Each
          has a log of its own. Every gpuqueue job is then checked for its exit record and events.
idle      CPU time of its processes while nothing is queued, in per cent of one core.
memory    Resident memory of the queue's processes, before and after those jobs.

task-spooler is measured if ``tsp`` is installed, HyperQueue if its Python package is (extra
``bench``). The package has no server program, so its server and worker run in a Python process.
Its client asks once a second whether jobs have ended, so its jobs/s may be up to a second short.
The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from rich.console import Console
from rich.table import Table

SLOTS = 8
TRUE = shutil.which("true") or "/bin/true"

STAMP = r"""
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char text[64];
    int length = snprintf(text, sizeof text, "%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
    int file = open(argc > 1 ? argv[1] : "stamp", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    return file < 0 || write(file, text, length) != length;
}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    singles: int
    jobs: int
    idle: float


FULL = Size(singles=30, jobs=1000, idle=20.0)
QUICK = Size(singles=5, jobs=40, idle=2.0)


class Queue(Protocol):
    """One queue under test, with 8 slots, warm."""

    def submit(self, argv: Sequence[str]) -> Any:
        """Queue a command; return at once what ``wait`` takes."""

    def wait(self, submitted: Sequence[Any]) -> None:
        """Block until all of these have ended."""

    def processes(self) -> list[psutil.Process]:
        """The queue's own processes, not the jobs'."""

    def check(self, submitted: Sequence[Any]) -> None:
        """Raise if one of these ended jobs lacks something of its record."""

    def close(self) -> None:
        """End all that was started."""


class Gpuqueue:
    """gpuqueue through ``gpuqueue.submit``, with its controller in the background."""

    def __init__(self, folder: Path) -> None:
        import gpuqueue
        from gpuqueue.client import default_client

        self._module = gpuqueue
        (folder / "config.toml").write_text(f"slots = {SLOTS}\n")
        os.environ["GPUQUEUE_HOME"] = str(folder)
        self._client = default_client()

    def submit(self, argv: Sequence[str]) -> Any:
        return self._module.submit(argv, preset="cpu")

    def wait(self, submitted: Sequence[Any]) -> None:
        for job in submitted:
            job.wait()

    def processes(self) -> list[psutil.Process]:
        lead = psutil.Process(self._client.lead()["pid"])
        # a runner whose job was over at once stays a moment for the next one
        until(lambda: len(lead.children(recursive=True)) <= 1)
        return [lead, *lead.children(recursive=True)]

    def check(self, submitted: Sequence[Any]) -> None:
        from gpuqueue.model import JobState
        from gpuqueue.run.files import read_exit

        for job in submitted:
            record = job.record
            folder = self._client.home.attempt(job.id, record.attempt)
            assert record.state is JobState.SUCCEEDED, job
            assert record.attempt == 1, job
            assert self._client.log_path(record).is_file(), job
            assert read_exit(folder)["returncode"] == 0, job
            kinds = {event.kind for event in self._client.store.events(job_id=job.id)}
            assert len(kinds) >= 3, (job, kinds)

    def close(self) -> None:
        from gpuqueue.model import ProcessId
        from gpuqueue.run.process import alive, send_signal

        lead = self._client.lead()
        self._client.close()
        if lead is not None:
            process = ProcessId(lead["pid"], lead["start"], lead["boot"])
            send_signal(process, signal.SIGTERM)
            until(lambda: not alive(process))


class TaskSpooler:
    """task-spooler through its program, on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "socket")
        self._env = {
            **os.environ,
            "TS_SOCKET": self._socket,
            "TMPDIR": str(folder),
            "TS_MAXFINISHED": str(10 * FULL.jobs),
        }
        self._run("-S", str(SLOTS))

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            ["tsp", *words], env=self._env, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.strip()

    def submit(self, argv: Sequence[str]) -> str:
        return self._run(*argv)

    def wait(self, submitted: Sequence[Any]) -> None:
        for number in submitted[-SLOTS:]:  # they start in order, so no other is behind these
            self._run("-w", number)

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["name"]):
            if process.info["name"] in ("tsp", "task-spooler"):
                with contextlib.suppress(psutil.Error):
                    if process.environ().get("TS_SOCKET") == self._socket:
                        found.append(process)
        return found

    def check(self, submitted: Sequence[Any]) -> None:
        ended = sum(" finished " in line for line in self._run("-l").splitlines())
        assert ended >= len(submitted), f"task-spooler lists {ended} of {len(submitted)} jobs"

    def close(self) -> None:
        self._run("-K")


class HyperQueue:
    """HyperQueue through its Python client; the server and an 8 core worker in a process."""

    SERVER = (
        "import sys; from hyperqueue.cluster import LocalCluster, WorkerConfig\n"
        f"cluster = LocalCluster(sys.argv[1], WorkerConfig(cores={SLOTS}))\n"
        "print('\\nready', flush=True); sys.stdin.read(); cluster.stop()"
    )

    def __init__(self, folder: Path) -> None:
        from hyperqueue import Client

        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.SERVER, str(folder / "server")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        if b"ready\n" not in self._process.stdout:  # what comes before it is a table of addresses
            raise RuntimeError("HyperQueue's server did not start")
        self._client = Client(folder / "server")

    def submit(self, argv: Sequence[str]) -> int:
        from hyperqueue import Job

        self._count += 1
        log = str(self._folder / f"{self._count}.log")
        job = Job()
        job.program(list(argv), stdout=log, stderr=log)
        return int(self._client.submit(job).id)

    def wait(self, submitted: Sequence[Any]) -> None:
        failed = self._client.connection.wait_for_jobs(tuple(submitted), lambda _: None)
        assert not failed, failed

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._process.pid)]

    def check(self, submitted: Sequence[Any]) -> None:
        pass  # wait has told of failures

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def until(condition: Any, seconds: float = 15.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def compile_stamp(folder: Path) -> str:
    """Build the program that stamps the clock; return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("latency.py needs a C compiler (cc) for the program that stamps the clock")
    source, program = folder / "stamp.c", folder / "stamp"
    source.write_text(STAMP)
    subprocess.run([compiler, "-O1", "-o", str(program), str(source)], check=True)
    return str(program)


def measure(
    queues: Mapping[str, Queue], stamp: str, folder: Path, size: Size
) -> dict[str, dict[str, float]]:
    """All figures of all queues; they take turns, so that other load meets them alike."""
    for queue in queues.values():
        for _ in range(3):
            queue.wait([queue.submit([TRUE])])
    time.sleep(0.5)
    before = idling(queues, size.idle)

    starts: dict[str, list[float]] = {name: [] for name in queues}
    calls: dict[str, list[float]] = {name: [] for name in queues}
    singles: dict[str, list[Any]] = {name: [] for name in queues}
    for number in range(size.singles):
        for name, queue in queues.items():
            file = folder / f"{name}-{number}"
            began = time.time()
            submitted = queue.submit([stamp, str(file)])
            calls[name].append(1000 * (time.time() - began))
            time.sleep(0.05)  # the job is long over; waiting for it costs HyperQueue a second
            until(lambda file=file: file.exists() and file.read_text().endswith("\n"))
            starts[name].append(1000 * (float(file.read_text()) - began))
            singles[name].append(submitted)
    for name, queue in queues.items():
        queue.wait(singles[name])

    seconds = {}
    for name, queue in queues.items():
        began = time.monotonic()
        many = [queue.submit([TRUE]) for _ in range(size.jobs)]
        queue.wait(many)
        seconds[name] = time.monotonic() - began
        queue.check(many)
    time.sleep(1)
    after = idling(queues, size.idle)
    return {
        name: {
            "start_ms": statistics.median(starts[name]),
            "start_max_ms": max(starts[name]),
            "call_ms": statistics.median(calls[name]),
            "call_max_ms": max(calls[name]),
            "jobs": size.jobs,
            "seconds": seconds[name],
            "jobs_per_s": size.jobs / seconds[name],
            "idle_cpu_percent": before[name][0],
            "idle_cpu_after_percent": after[name][0],
            "rss_mb": before[name][1],
            "rss_after_mb": after[name][1],
        }
        for name in queues
    }


def idling(queues: Mapping[str, Queue], seconds: float) -> dict[str, tuple[float, float]]:
    """Per cent of a core used while nothing is queued, and resident memory in MB (10^6 bytes)."""
    processes = {name: queue.processes() for name, queue in queues.items()}

    def used(name: str) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes[name])

    before, began = {name: used(name) for name in queues}, time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return {
        name: (
            100 * (used(name) - before[name]) / passed,
            sum(process.memory_info().rss for process in processes[name]) / 1e6,
        )
        for name in queues
    }


QUEUES: dict[str, Any] = {"gpuqueue": Gpuqueue, "tsp": TaskSpooler, "hyperqueue": HyperQueue}


def missing(name: str) -> str:
    """Why a queue cannot be measured here; empty if it can."""
    if name == "tsp" and shutil.which("tsp") is None:
        return "tsp is not installed (Debian: apt install task-spooler)"
    if name == "hyperqueue" and importlib.util.find_spec("hyperqueue") is None:
        return "hyperqueue is not installed (pip install hyperqueue)"
    return ""


def show(results: dict[str, dict[str, float] | None]) -> None:
    """A table for people, and how gpuqueue does against what it aims at."""
    rows = [
        ("start, median (ms)", "start_ms", ".1f"),
        ("start, slowest (ms)", "start_max_ms", ".1f"),
        ("call, median (ms)", "call_ms", ".2f"),
        ("call, slowest (ms)", "call_max_ms", ".2f"),
        ("trivial jobs", "jobs", ".0f"),
        ("seconds for them", "seconds", ".2f"),
        ("jobs/s", "jobs_per_s", ".0f"),
        ("idle CPU (% of a core)", "idle_cpu_percent", ".2f"),
        ("idle CPU after them", "idle_cpu_after_percent", ".2f"),
        ("resident memory (MB)", "rss_mb", ".1f"),
        ("resident memory after", "rss_after_mb", ".1f"),
    ]
    table = Table("", *results)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, key, form in rows:
        cells = ["-" if found is None else format(found[key], form) for found in results.values()]
        table.add_row(label, *cells)
    console = Console()
    console.print(table)

    ours, tsp = results.get("gpuqueue"), results.get("tsp")
    if ours is None:
        return
    aims = [
        ("call at most 3 ms", ours["call_ms"], ours["call_ms"] <= 3),
        ("idle at most 0.5 %", ours["idle_cpu_percent"], ours["idle_cpu_percent"] <= 0.5),
    ]
    if tsp is not None:
        start, rate = ours["start_ms"] / tsp["start_ms"], ours["jobs_per_s"] / tsp["jobs_per_s"]
        aims.append(("start at most 3 x tsp's", start, start <= 3))
        aims.append(("jobs/s at least 0.5 x tsp's", rate, rate >= 0.5))
    for label, value, met in aims:
        print(f"{'met   ' if met else 'MISSED'}  {label}: {value:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few jobs; the figures mean little")
    parser.add_argument("--only", choices=list(QUEUES), help="measure this queue alone")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL

    names = [options.only] if options.only else list(QUEUES)
    results: dict[str, dict[str, float] | None] = dict.fromkeys(names)
    with tempfile.TemporaryDirectory(prefix="gpuqueue-bench-") as place, ExitStack() as opening:
        folder = Path(place)
        stamp = compile_stamp(folder)
        queues: dict[str, Queue] = {}
        for name in names:
            if why := missing(name):
                print(f"{name} is left out: {why}")
                continue
            (folder / name).mkdir(mode=0o700)
            queues[name] = QUEUES[name](folder / name)
            opening.callback(queues[name].close)
        print(f"measuring {', '.join(queues)} ...", flush=True)
        results |= measure(queues, stamp, folder, size)
    show(results)
    print(
        json.dumps(
            {
                name: found and {key: round(value, 3) for key, value in found.items()}
                for name, found in results.items()
            }
        )
    )


if __name__ == "__main__":
    main()
