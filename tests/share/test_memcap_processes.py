"""The memory cap of a whole job: several processes, some of which are stopped, killed or forked."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import until
from share_cards import (
    MIB,
    ONE,
    TWO,
    Job,
    compile_c,
    drivers,
    hear,
    job,
    library,
    needs_compiler,
    state,
    tell,
)

from gpuqueue.errors import InvalidRequest
from gpuqueue.run.process import identify
from gpuqueue.share import memcap
from gpuqueue.share.memcap.building import build_into

pytestmark = needs_compiler
__all__ = ["drivers", "job", "library"]

HOLD = "use(); held = alloc(40 * MIB); say('held'); heard()"


def test_processes_share_one_cap(job: Job):
    first = job.start(HOLD)
    assert hear(first) == "held"
    assert job.run("use(); say(alloc(40 * MIB), info()[0] // MIB, alloc(24 * MIB) > 0)") == [
        "-2 24 True"
    ]
    # what that one held goes with it
    (process,) = [h.process for h in memcap.holders(job.folder) if h.pid == first.pid]
    assert process == identify(first.pid)
    tell(first)
    assert first.wait() == 0
    assert job.run("use(); say(alloc(64 * MIB) > 0)") == ["True"]
    assert job.usage.peak == 64 * MIB


def test_a_killed_process_holds_nothing(job: Job):
    first = job.start(HOLD)
    hear(first)
    first.kill()
    first.wait()
    (gone,) = memcap.holders(job.folder, (ONE, TWO))
    assert (gone.pid, gone.process, gone.gone) == (first.pid, None, True)
    assert gone.held[ONE] == 40 * MIB
    assert (job.usage.used, job.usage.dead) == (0, 40 * MIB)
    # until somebody needs the room
    assert job.run("use(); say(alloc(30 * MIB) > 0, alloc(34 * MIB) > 0, alloc(512))") == [
        "True True -2"
    ]
    assert job.usage.peak == 64 * MIB


def test_a_zombie_holds_nothing_either(job: Job):
    first = job.start(HOLD)
    hear(first)
    first.kill()
    until(lambda: state(first.pid) == "Z")
    assert job.run("use(); say(alloc(64 * MIB) > 0)") == ["True"]


@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_stopped_or_killed_inside_the_driver(job: Job, end):
    """The reservation stands while the allocation may still happen, and nobody waits for it."""
    at = job.folder / "at"
    block = {"FAKE_CUDA_BLOCK": str(24 * MIB), "FAKE_CUDA_AT": str(at)}
    first = job.start("use(); alloc(2 * MIB); alloc(24 * MIB); say('back'); heard()", **block)
    until(at.exists)
    os.kill(first.pid, end)
    if end == signal.SIGKILL:
        first.wait()
        expected = "True True"
    else:
        until(lambda: state(first.pid) == "T")
        assert job.used == 26 * MIB
        expected = "True -2"
    lines = job.run("use(); say(alloc(38 * MIB) > 0, alloc(26 * MIB) > 0 or -2)")
    assert lines == [expected]
    if end == signal.SIGSTOP:
        os.kill(first.pid, signal.SIGCONT)
        at.unlink()
        assert hear(first) == "back"
        assert job.used >= 26 * MIB


@pytest.mark.parametrize("kernel", ["clears the state", "does not"])
def test_a_child_pays_for_itself_alone(job: Job, kernel, tmp_path: Path):
    if kernel == "does not":
        job.library = tmp_path / "other.so"
        build_into(job.library, ["-DGQ_WIPE_ON_FORK=9999"])
        job.cap(64 * MIB)
    lines = job.run(
        """
import signal
context = use()
first = alloc(20 * MIB)
read, write = os.pipe()
child = os.fork()
if child == 0:
    cu("cuCtxSetCurrent", context)
    free(first)  # it is not the child's
    assert alloc(50 * MIB) == -OOM
    assert alloc(30 * MIB) > 0
    os.write(write, b"x")
    signal.pause()
os.read(read, 1)
say(child, info()[0] // MIB, alloc(20 * MIB))
os.kill(child, 9)
os.waitpid(child, 0)
say(alloc(44 * MIB) > 0, alloc(512), free(first), info()[0] // MIB)
""",
    )
    child, room, refused = lines[0].split()
    assert (room, refused) == ("14", "-2")
    assert int(child) > 0
    assert lines[1] == "True -2 0 20"


def test_a_thread_that_forks_beside_others(job: Job):
    """A child gets no lock that a thread of its parent holds."""
    job.cap(1 << 30)
    job.run(
        """
context = use()
stop = []
def churn():
    cu("cuCtxSetCurrent", context)
    while not stop:
        free(alloc(512))
threads = [threading.Thread(target=churn) for _ in range(3)]
[thread.start() for thread in threads]
for _ in range(60):
    child = os.fork()
    if child == 0:
        cu("cuCtxSetCurrent", context)
        assert alloc(512) > 0
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.append(1)
[thread.join() for thread in threads]
"""
    )
    # each left 512 bytes behind; the sweep of the next refusal takes them back
    assert job.run("use(); say(alloc(1 << 30) > 0, alloc(512))") == ["True -2"]


def test_exec_gives_everything_back(job: Job):
    """The same pid and start time, another program."""
    again = "from cudalike import *; use(); say(alloc(64 * MIB) > 0, alloc(512), os.getpid())"
    process = job.start(
        f"""
use()
alloc(40 * MIB)
say(os.getpid())
os.execv(sys.executable, [sys.executable, "-S", "-c", {again!r}])
"""
    )
    pid = hear(process)
    assert hear(process) == f"True -2 {pid}"


def test_a_machine_without_proc(job: Job, tmp_path: Path):
    """What a process holds is counted; that it is gone nobody can tell."""
    job.library = tmp_path / "other.so"
    build_into(job.library, ['-DGQ_PROC="/nonexistent"'])
    job.cap(64 * MIB)
    code = "use(); say(alloc(40 * MIB) > 0, alloc(25 * MIB))"
    assert job.run(code) == ["True -2"]
    (holder,) = memcap.holders(job.folder, (ONE, TWO))
    assert (holder.process, holder.gone, holder.held[ONE]) == (None, False, 40 * MIB)


def test_raised_and_lowered_while_it_runs(job: Job):
    process = job.start(
        """
use()
held = [alloc(20 * MIB) for _ in range(3)]
say(alloc(20 * MIB), info())
heard()
held.append(alloc(20 * MIB))
say(held[-1] > 0, info())
heard()
say(alloc(512), info())
free(held.pop()), free(held.pop())
say(alloc(512), info())
free(held.pop())
say(alloc(10 * MIB) > 0, alloc(512))
"""
    )
    assert hear(process) == f"-2 ({4 * MIB}, {64 * MIB})"
    (usage,) = [u for u in memcap.resize(job.folder, {ONE: 90 * MIB}) if u.gpu == ONE]
    assert (usage.limit, usage.used, usage.over) == (90 * MIB, 60 * MIB, 0)
    tell(process)
    assert hear(process) == f"True ({10 * MIB}, {90 * MIB})"
    (usage,) = [u for u in memcap.resize(job.folder, {ONE: 30 * MIB}) if u.gpu == ONE]
    assert usage.over == 50 * MIB
    tell(process)
    assert hear(process) == f"-2 (0, {30 * MIB})"
    assert hear(process) == f"-2 (0, {30 * MIB})"
    assert hear(process) == "True -2"
    memcap.resize(job.folder, {ONE: None})
    assert job.usage.limit is None
    with pytest.raises(InvalidRequest, match="not a GPU of this job"):
        memcap.resize(job.folder, {TWO.replace("2", "9"): 1})


STATIC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
/* as CUDA's runtime does it, when it is linked into the program */
typedef int (*find_type)(const char *, void **, int, uint64_t, int *);
int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    int status;
    find_type find = (find_type)dlsym(library, "cuGetProcAddress_v2");
    if (dlerror() != NULL) return 9; /* what the cap has looked up meanwhile is not the caller's */
    void *again, *init, *retain, *current, *allocate, *release;
    if (find("cuGetProcAddress", &again, 12040, 0, &status)) return 10;
    find = (find_type)again;
    if (find("cuInit", &init, 12040, 0, &status) || ((int (*)(int))init)(0)) return 11;
    find("cuDevicePrimaryCtxRetain", &retain, 12040, 0, &status);
    find("cuCtxSetCurrent", &current, 12040, 0, &status);
    find("cuMemAlloc", &allocate, 12040, 2, &status);
    find("cuMemFree", &release, 12040, 0, &status);
    ((int (*)(void **, int))retain)(&context, 0);
    ((int (*)(void *))current)(context);
    uint64_t pointer = 0;
    int first = ((int (*)(uint64_t *, size_t))allocate)(&pointer, (64 << 20) + 1);
    int second = ((int (*)(uint64_t *, size_t))allocate)(&pointer, 64 << 20);
    int third = ((int (*)(uint64_t *, size_t))allocate)(&pointer, 1);
    printf("%d %d %d\n", first, second, third);
    Dl_info info;
    /* asked without a library, or for the next one, dlsym answers as it does without the cap */
    void *plain = dlsym(RTLD_DEFAULT, "printf"), *next = dlsym(RTLD_NEXT, "printf");
    printf("%d %d\n", plain == next && plain != NULL, dladdr(allocate, &info) != 0);
    printf("%d\n", dlsym(RTLD_DEFAULT, "no such name") == NULL && dlerror() != NULL);
    return 0;
}
"""

LINKED = r"""
#include <stdint.h>
#include <stdio.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t);
int main(void) {
    void *context;
    uint64_t pointer;
    cuInit(0), cuDevicePrimaryCtxRetain(&context, 0), cuCtxSetCurrent(context);
    printf("%d ", cuMemAlloc_v2(&pointer, (64 << 20) + 1));
    printf("%d ", cuMemAlloc_v2(&pointer, 64 << 20));
    printf("%d ", cuMemFree_v2(pointer));
    printf("%d\n", cuMemAlloc_v2(&pointer, 64 << 20));
    return 0;
}
"""


def run_c(job: Job, name: str, source: str, *words: str) -> list[str]:
    (job.folder / f"{name}.c").write_text(source)
    program = compile_c(job.folder / name, job.folder / f"{name}.c", *words)
    done = subprocess.run([program], env=job.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_runtime_that_is_linked_in(job: Job):
    assert run_c(job, "static", STATIC) == ["2 0 2", "1 1", "1"]


def test_a_program_linked_to_the_driver(job: Job):
    words = [f"-L{job.drivers}", "-l:libcuda.so.1"]
    assert run_c(job, "linked", LINKED, *words) == ["2 0 0 0"]
