"""Fixtures for the memory cap: a driver without a GPU, the library, and jobs on them."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuqueue.share import memcap
from gpuqueue.share.memcap.building import build_into

HERE = Path(__file__).parent
MIB = 1 << 20
GIB = 1 << 30
ONE = "GPU-00000000-0000-0000-0000-000000000001"
TWO = "GPU-00000000-0000-0000-0000-000000000002"

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="needs a C compiler, on Linux",
)


def compile_c(target: Path, *words: str | Path) -> Path:
    """Build one of the tests' own C files; they have no warnings."""
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    done = subprocess.run(
        ["cc", *flags, "-o", target, *words, "-ldl"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@dataclass
class Job:
    """A job directory with caps, and processes of that job."""

    folder: Path
    drivers: Path
    library: Path
    card: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def cap(self, one: int | None, two: int | None = None) -> None:
        self.variables = memcap.environment(self.folder, {ONE: one, TWO: two}, library=self.library)

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(HERE),
            "LD_LIBRARY_PATH": str(self.drivers),
            "FAKE_CUDA_CARD": str(self.card),
            **self.variables,
            **more,
        }

    def run(self, code: str, **more: str) -> list[str]:
        """A program of CUDA calls; the lines that it prints."""
        done = subprocess.run(
            [sys.executable, "-S", "-c", f"from cudalike import *\n{code}"],
            env=self.environment(**more),
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.splitlines()

    def start(self, code: str, **more: str) -> subprocess.Popen[str]:
        """The same, to talk to by lines."""
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"from cudalike import *\n{code}"],
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    @property
    def usage(self) -> memcap.Usage:
        return memcap.read(self.folder, (ONE, TWO))[0]

    @property
    def used(self) -> int:
        """Bytes counted on the first card, those of processes that are gone too."""
        return self.usage.used + self.usage.dead

    @property
    def on_card(self) -> tuple[int, int]:
        """What the pretend driver has given out of the first card: now, and the most ever."""
        return struct.unpack_from("QQ", self.card.read_bytes())

    @property
    def held(self) -> dict[int, int]:
        """Bytes on the first card by pid."""
        return {h.pid: h.held[ONE] for h in memcap.holders(self.folder, (ONE, TWO))}


def state(pid: int) -> str:
    """The letter of a process's state."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def tell(process: subprocess.Popen[str], line: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _make_drivers(folder: Path) -> Path:
    (folder / "versions").write_text("FAKE { global: *; };\n")  # for dlvsym
    versions = f"-Wl,--version-script={folder / 'versions'}"
    for name, source in (
        ("libcuda.so.1", "fake_cuda.c"),
        ("libnvidia-ml.so.1", "fake_nvml.c"),
    ):
        flags = ("-shared", "-fPIC", "-Wl,-Bsymbolic", f"-Wl,-soname,{name}", versions)
        compile_c(folder / name, *flags, HERE / source)
    return folder


def _make_library(folder: Path) -> Path:
    target = folder / "libgpuqueue-memcap.so"
    build_into(target, ["-Wall", "-Wextra", "-Werror"])
    return target


_made: dict[str, Path] = {}
"""What was built, for all test files: each that imports a fixture has one of its own."""


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 and a libnvidia-ml.so.1."""
    if "drivers" not in _made:
        _made["drivers"] = _make_drivers(tmp_path_factory.mktemp("drivers"))
    return _made["drivers"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The memory-cap library, built without a warning."""
    if "library" not in _made:
        _made["library"] = _make_library(tmp_path_factory.mktemp("library"))
    return _made["library"]


@pytest.fixture
def job(tmp_path: Path, drivers: Path, library: Path) -> Iterator[Job]:
    """A job whose cards may be used by 64 MiB and without a cap."""
    card = tmp_path / "card"
    card.write_bytes(bytes(4096))
    made = Job(tmp_path, drivers, library, card)
    made.cap(64 * MIB)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
