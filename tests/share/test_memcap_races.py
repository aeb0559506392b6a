"""The ledger under races, kills and the sanitizers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import until
from share_cards import HERE, MIB, ONE, TWO, Job, compile_c, drivers, job, library, needs_compiler

from gpuqueue.run.door import LATE, Changes, Door
from gpuqueue.share import memcap
from gpuqueue.share.memcap import ledger as ledgers
from gpuqueue.share.memcap.building import FLAGS, SOURCES, build_into

pytestmark = needs_compiler
__all__ = ["drivers", "job", "library"]

PARTS = [SOURCES / "ledger.c", SOURCES / "table.c", HERE / "race.c"]
APART = ("resolve.c", "elf.c", "hip.c", "hip_more.c")
"""What finds the drivers' functions, which a program that the library is linked into need not."""
WIDE = [flag for flag in ("-mcx16",) if os.uname().machine == "x86_64"]


def has_sanitizer(name: str) -> bool:
    done = subprocess.run(
        ["cc", f"-fsanitize={name}", "-x", "c", "-", "-o", os.devnull],
        input="int main(void) { return 0; }",
        capture_output=True,
        text=True,
    )
    return done.returncode == 0


@pytest.fixture(scope="session")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("race") / "race"
    return compile_c(target, *WIDE, f"-I{SOURCES}", *PARTS)


@pytest.fixture(params=["thread", "address", "undefined"])
def sanitized(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if not has_sanitizer(request.param):
        pytest.skip(f"the compiler has no {request.param} sanitizer")
    target = tmp_path / "race"
    more = [f"-fsanitize={request.param}", "-fno-sanitize-recover=all"]
    return compile_c(target, *WIDE, *more, f"-I{SOURCES}", *PARTS)


def stands(pid: int) -> bool:
    """Whether every thread of a process has stopped."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rsplit(") ", 1)[1][0] == "T" for task in tasks)


def last(race: Path, path: Path, rounds: int) -> str:
    words = [race, "last", path, str(rounds)]
    first = subprocess.Popen(
        [*words, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    second = subprocess.Popen([*words, "1"], stderr=subprocess.PIPE, text=True)
    said, errors = first.communicate()
    _, more = second.communicate()
    assert (first.returncode, second.returncode, errors, more) == (0, 0, "", "")
    return said.strip()


def test_two_processes_race_for_the_last_mib_ten_thousand_times(tmp_path: Path, race: Path):
    """Never do both get it, and never neither."""
    path = tmp_path / "ledger"
    memcap.create(path, {ONE: MIB})
    assert last(race, path, 10_000) == "0 0"
    assert ledgers.read(path)[0].used == 0
    assert ledgers.read(path)[0].peak == MIB


def test_what_processes_hold_adds_up_whenever_they_are_killed(tmp_path: Path, race: Path):
    """Some are killed and some are stopped for a while, at random instants of charging."""
    path = tmp_path / "ledger"
    memcap.create(path, {ONE: 16 * MIB})
    chance = random.Random(0)
    for _ in range(25):
        group = [
            subprocess.Popen([race, "churn", path, "2000000"], stdout=subprocess.DEVNULL)
            for _ in range(3)
        ]
        time.sleep(chance.uniform(0.005, 0.03))  # any instant will do
        group[0].send_signal(signal.SIGSTOP)
        for process in group[1:]:
            process.kill()
            process.wait()
        until(lambda pid=group[0].pid: stands(pid))
        stopped = {h.pid: h.held for h in ledgers.holders(path, (ONE,))}
        usage = ledgers.read(path)[0]
        used = usage.used + usage.dead
        assert sum(held[ONE] for held in stopped.values()) == used <= 16 * MIB
        assert all(held[ONE] >= 0 for held in stopped.values())
        # wherever the one stands, the next goes on, and takes back what the dead held
        done = subprocess.run([race, "churn", path, "300"], capture_output=True, text=True)
        assert done.returncode == 0
        # one that was stopped before its first charge holds nothing and is not listed
        left = stopped.get(group[0].pid, {ONE: 0})[ONE]
        assert done.stdout.split() == [str(left // 512), "0"]
        group[0].kill()
        group[0].wait()
    # one that sweeps leaves nothing of them
    done = subprocess.run([race, "churn", path, "100"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]
    assert len(ledgers.holders(path)) <= 1


def test_sanitizers_find_nothing_in_threads(tmp_path: Path, sanitized: Path):
    path = tmp_path / "ledger"
    memcap.create(path, {ONE: 16 * MIB})
    done = subprocess.run([sanitized, "churn", path, "20000"], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["0", "0"])


@pytest.mark.parametrize("sanitized", ["address", "undefined"], indirect=True)
def test_sanitizers_find_nothing_between_processes(tmp_path: Path, sanitized: Path):
    """Not the thread sanitizer: it puts a lock of one process in place of the 16-byte swap."""
    path = tmp_path / "ledger"
    memcap.create(path, {ONE: MIB})
    assert last(sanitized, path, 500) == "0 0"


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_the_whole_library_under_a_sanitizer(job: Job, drivers: Path, kind: str):
    """Linked into the program, because a preloaded one would come before the sanitizer."""
    if not has_sanitizer(kind):
        pytest.skip(f"the compiler has no {kind} sanitizer")
    sources = [path for path in SOURCES.glob("*.c") if path.name not in APART]
    sanitize = [f"-fsanitize={kind}", "-fno-sanitize-recover=all"]
    program = compile_c(
        job.folder / "all", *WIDE, *sanitize, f"-I{SOURCES}", *sources, HERE / "all_hooks.c"
    )
    job.cap(64 * MIB)
    environment = job.environment()
    del environment[memcap.PRELOAD]
    for _ in range(5):  # what happens once, at the first calls, has five chances
        done = subprocess.run([program], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "0 left\n")
        assert job.used == 0
    # the same, where the ledger comes with the answer to its first call
    answer: Changes = {LATE: None, memcap.LEDGER: environment.pop(memcap.LEDGER)}
    with contextlib.closing(Door(lambda _: answer, 20)) as door:
        environment[LATE] = door.name
        done = subprocess.run([program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "0 left\n")
    assert job.usage.peak > 0


def test_more_processes_than_there_are_slots(tmp_path: Path, race: Path):
    """Slots of the dead are used again; with none left the library refuses."""
    path = tmp_path / "ledger"
    memcap.create(path, {ONE: MIB, TWO: None})
    data = bytearray(path.read_bytes())
    own = os.getpid() << 42  # alive, with a start time that is not its own: dead
    for slot in range(1024):
        data[64 + 8 * slot : 72 + 8 * slot] = (own | slot << 16 | namespace()).to_bytes(8, "little")
    path.write_bytes(data)
    done = subprocess.run([race, "churn", path, "100"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]
    for slot in range(1024):  # of another pid namespace: nobody here can tell
        word = own | slot << 16 | (namespace() ^ 1)
        data[64 + 8 * slot : 72 + 8 * slot] = word.to_bytes(8, "little")
    path.write_bytes(data)
    done = subprocess.run([race, "churn", path, "100"], capture_output=True, text=True)
    assert done.returncode == 2
    assert not any(h.gone or h.process for h in ledgers.holders(path))


def namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino & 0xFFFF


def test_the_flags_are_those_of_the_library(tmp_path: Path):
    """Sanitized builds of the library itself load and say nothing without CUDA."""
    assert "-std=gnu11" in FLAGS
    build_into(tmp_path / "plain.so", ["-O0"])
    done = subprocess.run(
        ["true"],
        env={"LD_PRELOAD": str(tmp_path / "plain.so"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
