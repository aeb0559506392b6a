"""Fixtures for MPS: a control program without a GPU, its notes, and processes under it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from python_programs import python_program
from share_cards import HERE, ONE, TWO, drivers

from gpuqueue.run.process import alive, identify, marked
from gpuqueue.share import Bound
from gpuqueue.share.mps import PIPE, Limits, Mps
from gpuqueue.share.mps.control import PROGRAM, Control
from gpuqueue.share.mps.place import Place, place_of

__all__ = ["ONE", "PATIENT", "QUICK", "TWO", "Stage", "drivers", "install", "stage"]

QUICK = Limits(answer=4.0, start=4.0, end=4.0, client=4.0, lock=4.0)
"""For answers that never come; those beside them come within some ten milliseconds."""
PATIENT = Limits(answer=60, start=60, end=60, client=60, lock=60)


@dataclass
class Stage:
    """A place for daemons, and what the control program was asked."""

    folder: Path
    root: Path
    base: dict[str, str]
    drivers: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def mps(self, *gpus: str, limits: Limits = PATIENT, **more: str) -> Mps:
        base = {**self.base, **more}
        return Mps(gpus or (ONE,), self.folder / "proofs", base, root=self.root, limits=limits)

    def control(self, gpu: str = ONE, limits: Limits = PATIENT) -> Control:
        return Control(self.place(gpu), PROGRAM, self.base, limits)

    def place(self, gpu: str = ONE) -> Place:
        return place_of(gpu, self.root)

    def behave(self, **how: object) -> None:
        """See fake_mps_control.py; what is not named is as it should be."""
        part = self.folder / "behaviour.part"
        part.write_text(json.dumps(how))
        part.rename(self.folder / "behaviour.json")

    @property
    def log(self) -> list[dict[str, object]]:
        path = self.folder / "log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def commands(self) -> list[str]:
        return [str(line["command"]) for line in self.log]

    def job(self, name: str, compute: int | None = 250, memory: int | None = None, **more: str):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return Bound(folder, {ONE: memory}, {}, {**self.base, **more}, compute={ONE: compute})

    def start(self, environment: dict[str, str], code: str = "") -> subprocess.Popen[str]:
        """A program that uses the GPU, says that it does, and ends when it is told a line."""
        words = f"from cudalike import *\nuse()\n{code}\nsay('there')\nheard()"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", words],
            env={**self.base, "PYTHONPATH": str(HERE), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        return process

    def become(self, environment: dict[str, str]) -> subprocess.Popen[str]:
        """The same, of a process that was there before it had the environment, as a cell's is."""
        words = (
            "import json, os, sys\nos.environ.update(json.loads(sys.stdin.readline()))\n"
            "from cudalike import *\nuse()\nsay('there')\nheard()"
        )
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", words],
            env={**self.base, "PYTHONPATH": str(HERE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(environment) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "there\n"
        return process

    def daemons(self, gpu: str = ONE) -> list[int]:
        """Pids of the processes of MPS itself that live."""
        ours = {process.pid for process in self.started}
        return [
            pid
            for pid in marked(PIPE, str(self.place(gpu).pipe))
            if pid not in ours and (found := identify(pid)) and alive(found)
        ]


def install(folder: Path, drivers: Path) -> dict[str, str]:
    """A control program that does as it should; the variables by which it is found."""
    program = folder / "bin" / PROGRAM
    program.parent.mkdir()
    source = (HERE / "fake_mps_control.py").read_text()
    python_program(program, source)
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "FAKE_MPS": str(folder),
        "LD_LIBRARY_PATH": str(drivers),
    }


@pytest.fixture
def stage(tmp_path: Path, drivers: Path) -> Iterator[Stage]:
    """A place for daemons with that control program."""
    base = install(tmp_path, drivers)
    # pytest's own folders are too long for sockets
    with tempfile.TemporaryDirectory(prefix="gq", dir="/tmp") as name:
        made = Stage(tmp_path, Path(name) / "mps", base, drivers)
        yield made
        for process in made.started:
            process.kill()
            process.communicate()
        for gpu in (ONE, TWO):
            for pid in made.daemons(gpu):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
