"""What `bench/h200.py` needs around its steps: a GPU or a pretend one, and programs on it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from gpuqueue.share import Bound, memcap  # noqa: E402 - from this checkout, installed or not
from gpuqueue.share.mps import Mps  # noqa: E402
from gpuqueue.share.mps.control import PROGRAM, Control, bare  # noqa: E402
from gpuqueue.share.mps.daemon import kill, running  # noqa: E402
from gpuqueue.share.mps.place import Place, place_of  # noqa: E402

STANDS = HERE.parent / "tests/share"
ROOM = 1.0
"""Seconds that all programs of a step are given to begin together."""


class Skipped(Exception):
    """A step that cannot be done here, and why."""


class Program:
    """A program of `h200_gpu.py`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "h200_gpu.py")],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._text = b""

    def send(self, what: str, **words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **words}).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, limit: float = 60.0) -> dict[str, Any]:
        """Its answer; an error of its own is raised as such."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise RuntimeError(f"a program on the GPU said nothing for {limit:g} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise RuntimeError(f"a program on the GPU ended with {self._process.wait()}")
            self._text += piece
        line, self._text = self._text.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise RuntimeError(said["error"])
        return said

    def ask(self, what: str, limit: float = 60.0, **words: Any) -> dict[str, Any]:
        self.send(what, **words)
        return self.hear(limit)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(timeout=20)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Stage:
    """One run: where its files are, what programs are started with, how much time there is.

    ``short`` is what durations are multiplied by.
    """

    folder: Path
    base: dict[str, str]
    root: Path
    fake: bool
    short: float
    card: str = ""
    total: int = 0
    multiprocessors: int = 0
    library: Path | None = None
    mps: Mps | None = None
    why_no_mps: str = ""
    started: list[Program] = field(default_factory=list)
    jobs: list[Bound] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def plain(self) -> dict[str, str]:
        """A program with the whole GPU, under nothing."""
        seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return bare(self.base) | seen | ({"CUDA_VISIBLE_DEVICES": self.card} if self.card else {})

    def program(self, environment: Mapping[str, str]) -> Program:
        made = Program(environment)
        self.started.append(made)
        return made

    def shared(self, percent: int, memory: int | None = None) -> dict[str, str]:
        """A program under MPS, as a job would be."""
        if self.mps is None:
            raise Skipped(self.why_no_mps)
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=self.folder))
        bound = Bound(
            folder, {self.card: memory}, base=self.plain, compute={self.card: percent * 10}
        )
        self.jobs.append(bound)
        return {**self.plain, **self.mps.environment(bound)}

    def capped(
        self, cap: int | None, environment: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], Path]:
        """A program under the memory cap, and the job's directory."""
        if self.library is None:
            raise Skipped("the memory cap's library could not be built; see the probe")
        folder = Path(tempfile.mkdtemp(prefix="cap-", dir=self.folder))
        given = self.plain if environment is None else environment
        caps = {self.card: cap}
        made = memcap.environment(folder, caps, library=self.library, base=given)
        return {**given, **made}, folder

    @property
    def place(self) -> Place:
        return place_of(self.card, self.root)

    @property
    def control(self) -> Control:
        return Control(self.place, PROGRAM, self.base)

    def together(
        self, programs: Sequence[Program], seconds: float, warm: float = 2.0
    ) -> list[dict[str, Any]]:
        """Have programs work at the same time, measured in one window."""
        for program in programs:
            program.send("work")
        for program in programs:
            program.hear(90)
        start = time.monotonic() + ROOM * self.short
        warm, seconds = warm * self.short, seconds * self.short
        for program in programs:
            program.send("burn", start=start, warm=warm, seconds=seconds)
        limit = warm + seconds + 30
        return [program.hear(limit) for program in programs]

    def clear(self) -> None:
        """End the programs of a step, and give back their shares."""
        while self.started:
            self.started.pop().close()
        while self.jobs:
            bound = self.jobs.pop()
            if self.mps is not None:
                self.mps.release(bound)


def telemetry(stage: Stage) -> dict[str, Any]:
    """Clocks, power and temperature, as nvidia-smi tells them; empty where there is none."""
    program = shutil.which("nvidia-smi", path=stage.base.get("PATH"))
    if program is None:
        return {}
    names = "clocks.sm,power.draw,temperature.gpu,clocks_throttle_reasons.active,driver_version"
    words = [program, f"--query-gpu={names}", "--format=csv,noheader,nounits", f"--id={stage.card}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(names.split(","), values, strict=False)) if done.returncode == 0 else {}


FRAMEWORKS = {
    "torch": "import torch; torch.empty({}, dtype=torch.uint8, device='cuda')",
    "cupy": "import cupy; cupy.empty({}, dtype='uint8')",
    "jax": "import jax, jax.numpy as n; n.zeros({}, dtype='uint8').block_until_ready()",
}


def framework(on: Stage, environment: dict[str, str], name: str, size: int) -> str:
    """How a framework takes it: ``refused``, ``not refused``, or why that is not known."""
    if on.fake:
        return "skipped: a pretend GPU has no frameworks"
    words = [sys.executable, "-c", FRAMEWORKS[name].format(size)]
    more = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            words, env=environment | more, capture_output=True, text=True, timeout=25, check=False
        )
    except subprocess.TimeoutExpired:
        return "skipped: it took more than 25 s"
    if done.returncode == 0:
        return "not refused"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    if "No module named" in last[0]:
        return f"skipped: {last[0]}"
    memory = ("out of memory", "outofmemory", "resource_exhausted")
    return "refused" if any(word in done.stderr.lower() for word in memory) else last[0][:200]


def has_gpu() -> bool:
    """Whether a program here can use a GPU."""
    program = Program({**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    try:
        program.ask("about")
    except RuntimeError:
        return False
    finally:
        program.close()
    return True


@contextlib.contextmanager
def stage(*, fake: bool, short: float, library: Path | None) -> Iterator[Stage]:
    """A place for one run, with a pretend GPU where one is asked for."""
    # sockets need short paths
    with tempfile.TemporaryDirectory(prefix="gq", dir="/var/tmp") as name:
        folder = Path(name)
        base = dict(os.environ)
        if fake:
            base |= _pretend(folder)
        made = Stage(folder, base, folder / "mps", fake, short, library=library)
        try:
            yield made
        finally:
            made.clear()
            if made.mps is not None and running(made.place):
                with made.control.session() as session:
                    kill(session)


def _pretend(folder: Path) -> dict[str, str]:
    """The tests' driver and control program."""
    drivers = folder / "drivers"
    drivers.mkdir()
    words = ["cc", "-std=gnu11", "-O2", "-pthread", "-shared", "-fPIC", "-Wl,-Bsymbolic"]
    target = drivers / "libcuda.so.1"
    words += ["-Wl,-soname,libcuda.so.1", "-o", str(target), str(STANDS / "fake_cuda.c"), "-ldl"]
    subprocess.run(words, check=True)
    program = drivers / PROGRAM
    inner = drivers / "in python" / PROGRAM
    inner.parent.mkdir()
    inner.write_text((STANDS / "fake_mps_control.py").read_text())
    command = shlex.join([sys.executable, "-IS", str(inner)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')  # a path with a space cannot follow #!
    program.chmod(0o700)
    return {
        "PATH": f"{drivers}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(drivers),
        "FAKE_MPS": str(folder),
        "H200_BLOCKS": "1056",
    }
