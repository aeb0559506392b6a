"""Processes that get their share as CUDA begins in them, on a driver without a GPU."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from share_cards import (
    MIB,
    ONE,
    Job,
    drivers,
    hear,
    job,
    library,
    needs_compiler,
    tell,
)

from gpuqueue.errors import NoShare
from gpuqueue.run.door import LATE, Asked, Changes, Door, ask
from gpuqueue.share.memcap import LEDGER

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers", "job", "library"]

UNADMITTED = "from cudalike import *\n"
NO_DEVICE = 100


@dataclass
class Server:
    """Whoever has started the kernel: it gives each who asks the job's share, or refuses."""

    job: Job
    refusal: str = ""
    asked: list[Asked] = field(default_factory=list)
    before: Callable[[], object] = lambda: None
    door: Door = field(init=False)

    def __post_init__(self) -> None:
        self.door = Door(self._answer, 20)

    def _answer(self, asked: Asked) -> Changes:
        self.asked.append(asked)
        self.before()
        if self.refusal:
            raise NoShare(self.refusal)
        return {
            LATE: None, "CUDA_VISIBLE_DEVICES": ONE, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere",
            LEDGER: self.job.variables[LEDGER],
        }  # fmt: skip


@pytest.fixture
def server(job: Job) -> Iterator[Server]:
    """A job whose processes start without its ledger, and a door."""
    made = Server(job)
    all_of_it = job.environment

    def late(**more: str) -> dict[str, str]:
        found = all_of_it()
        del found[LEDGER]
        return {**found, LATE: made.door.name, "CUDA_VISIBLE_DEVICES": "0", **more}

    job.environment = late  # type: ignore[method-assign]
    with closing(made.door):
        yield made


ENV = "c = ctypes.CDLL(None).getenv; c.restype = ctypes.c_char_p\n"


@pytest.mark.parametrize("how", ["dlsym", "dlvsym", "proc1", "proc2"])
def test_it_is_capped_from_its_first_call_on(job: Job, server: Server, how: str) -> None:
    code = (
        f"{ENV}say(c(b'CUDA_VISIBLE_DEVICES').decode(), c(b'GPUQUEUE_LATE'))\n"
        "use(); say(alloc(64 * MIB + 1), alloc(64 * MIB) > 0, alloc(1), info()[1] // MIB)"
    )
    assert job.run(code, RESOLVER=how) == [f"{ONE} None", "-2 True -2 64"]
    assert [asked.cuda for asked in server.asked] == [True]
    assert job.usage.peak == 64 * MIB


def test_a_program_linked_to_the_driver_asks(job: Job, server: Server, drivers: Path) -> None:
    source = job.folder / "linked.c"
    source.write_text(
        "#include <stdio.h>\nint cuInit(unsigned);\n"
        'int main(void) { printf("%d %d\\n", cuInit(0), cuInit(0)); }\n'
    )
    program = job.folder / "linked"
    words = ["cc", "-o", program, source, drivers / "libcuda.so.1"]
    subprocess.run(words, check=True)
    done = subprocess.run([program], env=job.environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr, len(server.asked)) == ("0 0\n", "", 1)


def test_what_uses_no_gpu_asks_for_nothing(job: Job, server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes, subprocess; subprocess.run(['true']); print(42)"],
        env=job.environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
    assert server.asked == []


def test_a_look_at_the_card_before_cuda_does_not_end_the_cap(job: Job, server: Server) -> None:
    """A library that sizes itself by NVML does that first."""
    code = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, memory = c_void_p(), (c_uint64 * 3)()
def total():
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    return memory[0] >> 20
"""
    before = f"import ctypes\nfrom ctypes import *\n{code}first = total()\n"
    program = f"{before}from cudalike import *\nuse(); say(first, total(), alloc(65 * MIB))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=job.environment(), capture_output=True, text=True
    )
    assert done.stderr == ""
    first, later, refused = done.stdout.split()
    assert (int(first) > 64, later, refused) == (True, "64", "-2")


def test_a_child_is_admitted_and_pays_into_the_same_ledger(job: Job, server: Server) -> None:
    child = f"{UNADMITTED}use(); say(alloc(40 * MIB) > 0); heard()"
    code = f"""
import subprocess
def child():
    made = subprocess.Popen([sys.executable, "-S", "-c", {child!r}], stdin=-1, stdout=-1, text=True)
    return made, made.stdout.readline().strip()
first, one = child()
second, two = child()
say(one, two)
use(); say(alloc(40 * MIB), alloc(20 * MIB) > 0)
for each in (first, second):
    each.communicate("end")
"""
    # the second one's assertion is about the sum: 40 of 64 are taken
    assert job.run(code) == ["True False", "-2 True"]


def test_a_fork_is_under_the_cap_of_its_parent(job: Job, server: Server) -> None:
    code = """
def fork(work):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, str(work()).encode())
        os._exit(0)
    os.wait()
    return os.read(read, 99).decode()
use()
say(alloc(60 * MIB) > 0, fork(lambda: alloc(8 * MIB)))
"""
    assert job.run(code) == ["True -2"]
    assert len(server.asked) == 1


def test_a_fork_beside_a_thread_that_asks_does_not_wait_for_it(job: Job, server: Server) -> None:
    gate = threading.Event()
    entered = threading.Event()

    def first_waits() -> None:
        if len(server.asked) == 1:
            entered.set()
            gate.wait(60)

    server.before = first_waits
    program = """
import ctypes, os, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
thread = threading.Thread(target=cuda.cuInit, args=(0,)); thread.start()
sys.stdin.readline()
child = os.fork()
if not child:
    print(cuda.cuInit(0), flush=True)
    os._exit(0)
thread.join()
os.waitpid(child, 0)
print("done", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program], env=job.environment(), stdin=-1, stdout=-1, text=True
    )
    job.started.append(process)
    assert entered.wait(60)
    tell(process)
    gate.set()
    assert (hear(process), hear(process)) == ("0", "done")


def test_threads_that_race_ask_once(job: Job, server: Server) -> None:
    gate = threading.Event()
    server.before = lambda: gate.wait(60)
    program = """
import ctypes, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
found = []
threads = [threading.Thread(target=lambda: found.append(cuda.cuInit(0))) for _ in range(8)]
for thread in threads: thread.start()
print("begun", flush=True)
for thread in threads: thread.join()
print(sorted(found), flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program], env=job.environment(), stdout=-1, text=True
    )
    job.started.append(process)
    hear(process)
    gate.set()
    assert hear(process) == str([0] * 8)
    assert len(server.asked) == 1


def test_a_refusal_shows_no_gpu_and_says_why_once(job: Job, server: Server) -> None:
    server.refusal = "There is no room now."
    program = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
print(cuda.cuInit(0), cuda.cuInit(0), flush=True)
sys.stdin.readline()
print(cuda.cuInit(0))
"""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program], env=job.environment(),
        stdin=-1, stdout=-1, stderr=-1, text=True,
    )  # fmt: skip
    job.started.append(process)
    assert hear(process) == f"{NO_DEVICE} {NO_DEVICE}"
    server.refusal = ""
    out, err = process.communicate("go\n")
    assert out == "0\n"
    assert err == "gpuqueue: no GPU for this notebook: There is no room now.\n"
    assert len(server.asked) == 3


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_who_hides_its_gpus_asks_for_none(job: Job, server: Server, hidden: str) -> None:
    assert job.run("say(cu('cuInit', 0))", CUDA_VISIBLE_DEVICES=hidden) == ["0"]
    assert server.asked == []


@pytest.mark.parametrize("door", ["", "5:", "5", ":x", "x", "5:gpuqueue-nobody", "5:" + "x" * 200])
def test_a_door_that_is_none(job: Job, server: Server, door: str) -> None:
    program = 'import ctypes; print(ctypes.CDLL("libcuda.so.1").cuInit(0))'
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=job.environment(**{LATE: door}),
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{0 if not door else NO_DEVICE}\n", "")
    if door:
        with pytest.raises(NoShare, match="no longer answers"):
            ask(door)


def _deaf(answer: bytes | None) -> tuple[str, socket.socket]:
    """A server that answers badly, or not at all."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = f"gpuqueue-test-{os.getpid()}-{os.urandom(4).hex()}"
    listener.bind(f"\0{name}")
    listener.listen()

    def serve() -> None:
        while answer is not None:
            try:
                asker, _ = listener.accept()
            except OSError:
                return
            with asker:
                asker.recv(99)
                with contextlib.suppress(OSError):  # it may have heard enough
                    asker.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"1:{name}", listener


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"1", b"1CUDA_VISIBLE_DEVICES=0\0", b"1A=b", b"?\0\0", b"1" + b"x" * (1 << 20)],
    ids=["silent", "dead", "empty", "cut", "cut short", "odd", "too long"],
)
def test_no_hang_and_no_half_answer(job: Job, server: Server, answer: bytes | None) -> None:
    """Whoever answers is stopped, is killed in the middle of it, or is of another version."""
    door, listener = _deaf(answer)
    program = 'import ctypes; print(ctypes.CDLL("libcuda.so.1").cuInit(0))'
    with closing(listener):
        done = subprocess.run(
            [sys.executable, "-S", "-c", program], env=job.environment(**{LATE: door}),
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (f"{NO_DEVICE}\n", "")
        with pytest.raises(NoShare, match="no longer answers"):
            ask(door)


def test_threads_wait_no_longer_together_than_one(job: Job, server: Server) -> None:
    door, listener = _deaf(None)
    program = """
import ctypes, threading, time
cuda, found, begun = ctypes.CDLL("libcuda.so.1"), [], time.monotonic()
threads = [threading.Thread(target=lambda: found.append(cuda.cuInit(0))) for _ in range(30)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(set(found), time.monotonic() - begun < 20)
"""
    with closing(listener):
        done = subprocess.run(
            [sys.executable, "-S", "-c", program], env=job.environment(**{LATE: door}),
            capture_output=True, text=True,
        )  # fmt: skip
    # thirty times a second would be thirty
    assert (done.stdout, done.stderr) == (f"{{{NO_DEVICE}}} True\n", "")


def test_programs_that_lose_the_variables_are_left_alone(job: Job, server: Server) -> None:
    program = f"{shlex.quote(sys.executable)} -c 'print(42)'"
    for script in (f"env -i {program}", f"env -u LD_PRELOAD {program}", f"setsid {program}"):
        done = subprocess.run(
            ["sh", "-c", script], env=job.environment(), capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == ("42\n", "")
    source = job.folder / "still.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("42"); return 0; }\n')
    subprocess.run(["cc", "-static", "-o", job.folder / "still", source], check=True)
    done = subprocess.run([job.folder / "still"], env=job.environment(), capture_output=True)
    assert (done.stdout, done.stderr, server.asked) == (b"42\n", b"", [])
