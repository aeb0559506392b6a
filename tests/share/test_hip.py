"""The memory cap on AMD's HIP: a libamdhip64.so without a GPU, and jobs on it."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from share_cards import HERE, MIB, compile_c, hear, library, needs_compiler, tell

from gpuqueue.errors import InvalidRequest
from gpuqueue.model import Gpu
from gpuqueue.share import Standing, Subject, ladder_for, memcap
from gpuqueue.share.memcap import canary

pytestmark = needs_compiler
__all__ = ["library"]

ONE, TWO = "GPU-00000000000000a1", "GPU-00000000000000a2"


@dataclass
class HipJob:
    """A job directory with a cap on the first of two cards, and processes of that job."""

    folder: Path
    driver: Path
    library: Path
    variables: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def cap(self, one: int | None) -> None:
        self.variables = memcap.environment(self.folder, {ONE: one}, library=self.library)

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(HERE),
            "LD_LIBRARY_PATH": str(self.driver),
            "FAKE_HIP_CARD": str(self.folder / "card"),
            **self.variables,
            **more,
        }

    def start(self, code: str, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"from hiplike import *\n{code}"],
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, code: str, **more: str) -> str:
        """A program of HIP calls; the words that it prints, on one line."""
        process = self.start(code, **more)
        said, errors = process.communicate()
        assert (process.returncode, errors) == (0, ""), errors
        return " ".join(said.split())

    @property
    def usage(self) -> memcap.Usage:
        return memcap.read(self.folder, (ONE,))[0]

    @property
    def on_card(self) -> tuple[int, int]:
        """What the pretend HIP has given out of the first card: now, and the most ever."""
        used, _, peak, _ = struct.unpack("QQQQ", (self.folder / "card").read_bytes()[:32])
        return used, peak


@pytest.fixture(scope="session")
def hip_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libamdhip64.so whose functions have versions, as ROCm's have."""
    folder = tmp_path_factory.mktemp("hip")
    (folder / "versions").write_text("hip_4.2 { global: hip*; local: *; };\n")
    name = "libamdhip64.so"
    compile_c(
        folder / name, "-shared", "-fPIC", "-Wl,-Bsymbolic", f"-Wl,-soname,{name}",
        f"-Wl,--version-script={folder / 'versions'}", HERE / "fake_hip.c",
    )  # fmt: skip
    return folder


@pytest.fixture
def job(tmp_path: Path, hip_driver: Path, library: Path) -> Iterator[HipJob]:
    """A job that may use 64 MiB of the first card."""
    (tmp_path / "card").write_bytes(bytes(4096))
    made = HipJob(tmp_path, hip_driver, library)
    made.cap(64 * MIB)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(ValueError):
            process.communicate()


def test_the_last_byte_fits_and_one_more_does_not(job: HipJob) -> None:
    code = """
a = alloc(40 * MIB)
say(alloc(24 * MIB + 1), info()[0])
b = alloc(24 * MIB)
say(b > 0, alloc(1), hip("hipGetLastError"), hip("hipGetLastError"))
say(free(a), alloc(40 * MIB) > 0, alloc(512), free(0))
"""
    assert job.run(code) == "-2 24 True -2 2 0 0 True -2 0"
    assert job.usage.peak == 64 * MIB
    assert job.usage.refusals == 3
    assert job.on_card[1] == 64 * MIB


def test_a_job_is_told_that_its_cap_is_the_card(job: HipJob) -> None:
    code = """
total = c_size_t()
assert hip("hipDeviceTotalMem", byref(total), 0) == 0
say(*info(), total.value // MIB, size_at(288, "hipGetDevicePropertiesR0600"))
say(size_at(256, "hipGetDevicePropertiesR0000"), size_at(256, "hipGetDeviceProperties"))
say(size_at(288, "hipGetDevicePropertiesR0600", 1))  # which has no cap
alloc(20 * MIB)
say(*info(), hip("hipSetDevice", 1), *info())
"""
    assert job.run(code) == "64 64 64 64 64 64 4096 44 64 0 4096 4096"
    job.cap(None)  # counted only
    assert job.run("say(info()[1])") == "4096"


@pytest.mark.parametrize(
    ("take", "give", "mib"),
    [
        ("alloc(8 * MIB, 'hipExtMallocWithFlags', 1)", "free(made)", 8),
        ("alloc(8 * MIB, 'hipMallocManaged', 1)", "free(made)", 8),
        ("alloc(8 * MIB, 'hipMallocAsync', None)", "hip('hipFreeAsync', c_void_p(made), None)", 8),
        ("alloc(8 * MIB, 'hipMemCreate', on(0), 0)", "hip('hipMemRelease', c_void_p(made))", 8),
        ("pitched('hipMallocPitch')", "free(made)", 8),
        ("pitched('hipMemAllocPitch', 4)", "free(made)", 8),
        ("cube()", "free(made)", 8),
        ("array()", "hip('hipFreeArray', c_void_p(made))", 8),
        ("array(Extent(1024, 512, 4))", "hip('hipFreeArray', c_void_p(made))", 8),
        ("flat()", "hip('hipArrayDestroy', c_void_p(made))", 8),
    ],
)
def test_every_way_of_taking_memory_counts(job: HipJob, take: str, give: str, mib: int) -> None:
    code = f"""
def pitched(name, *more):
    made, pitch = c_void_p(), c_size_t()
    # rows of 257 bytes, which the pretend HIP makes of 512: a hidden half
    result = hip(name, byref(made), byref(pitch), 257, 16384, *more)
    return -result if result else made.value
def cube():
    made = Pitched()
    result = hip("hipMalloc3D", byref(made), Extent(257, 128, 128))
    return -result if result else made.pointer
def array(extent=None):
    made, bits = c_void_p(), (c_int * 5)(32, 0, 0, 0, 2)
    if extent is None:
        result = hip("hipMallocArray", byref(made), bits, 1024, 2048, 0)
    else:
        result = hip("hipMalloc3DArray", byref(made), bits, extent, 0)
    return -result if result else made.value
def flat():
    made = c_void_p()
    result = hip("hipArrayCreate", byref(made), byref(Flat(1024, 1024, 0x20, 2)))
    return -result if result else made.value
made = {take}
say(made > 0, info()[0])
say({give}, hip("hipDeviceSynchronize"), info()[0])
rest = alloc(60 * MIB)
say({take}, free(rest), hip("hipDeviceSynchronize"), info()[0])
made = {take}
say(made > 0)
"""
    assert job.run(code) == f"True {64 - mib} 0 0 64 -2 0 0 64 True"
    assert job.usage.used == job.usage.dead == 0 or job.usage.dead == mib * MIB


def test_where_hip_fails_nothing_is_charged(job: HipJob) -> None:
    for name, more in (
        ("hipMalloc", ""), ("hipExtMallocWithFlags", ", 0"), ("hipMallocManaged", ", 1"),
        ("hipMemCreate", ", on(0), 0"), ("hipMallocAsync", ", None"),
    ):  # fmt: skip
        failing = "hipMallocFromPoolAsync" if name == "hipMallocAsync" else name
        code = f"say(alloc(8 * MIB, '{name}'{more}), info()[0])"
        assert job.run(code, FAKE_HIP_FAIL=failing) == "-1 64"
    assert job.run(
        "a = alloc(8 * MIB); say(free(a), info()[0])", FAKE_HIP_FAIL="hipFree"
    ) == "1 56"  # fmt: skip


def test_memory_from_pools_counts_as_it_is_reserved(job: HipJob) -> None:
    code = """
one = alloc(MIB, "hipMallocAsync", None)
say(info()[0])  # a step of 8 MiB
say(hip("hipFreeAsync", c_void_p(one), None), info()[0])  # the pool keeps it
two = alloc(5 * MIB, "hipMallocAsync", None)
say(info()[0], alloc(57 * MIB, "hipMallocAsync", None), info()[0])
own = c_void_p()
assert hip("hipMemPoolCreate", byref(own), on(0)) == 0
three = alloc(20 * MIB, "hipMallocFromPoolAsync", own, None)
say(info()[0], hip("hipFreeAsync", c_void_p(three), None), hip("hipMemPoolTrimTo", own, 0))
say(info()[0])
say(alloc(MIB, "hipMallocFromPoolAsync", own, None) > 0, hip("hipMemPoolDestroy", own), info()[0])
# what a destroyed pool has given out counts until it is freed
say(free(two), hip("hipDeviceSynchronize"), info()[0])
# on another device, which is not capped
say(alloc(200 * MIB, "hipMallocAsync", c_void_p(0x11)) > 0, info()[0])
"""
    assert job.run(code) == "56 0 56 56 -2 56 32 0 0 56 True 0 55 0 0 63 True 63"


def test_a_pool_that_tells_nothing_is_charged_as_it_is_asked(job: HipJob) -> None:
    code = """
a = alloc(40 * MIB, "hipMallocAsync", None)
say(a > 0, info()[0], alloc(40 * MIB, "hipMallocAsync", None))
say(hip("hipFreeAsync", c_void_p(a), None), info()[0])
"""
    assert job.run(code, FAKE_HIP_FAIL="hipMemPoolGetAttribute") == "True 24 -2 0 64"


def test_handles_live_until_their_last_reference(job: HipJob) -> None:
    code = """
handle = alloc(40 * MIB, "hipMemCreate", on(0), 0)
again = c_void_p()
say(hip("hipMemMap", c_void_p(handle), 40 * MIB, 0, c_void_p(handle), 0), info()[0])
say(hip("hipMemRetainAllocationHandle", byref(again), c_void_p(handle)))
say(hip("hipMemRelease", c_void_p(handle)), hip("hipMemRelease", c_void_p(handle)), info()[0])
say(hip("hipMemUnmap", c_void_p(handle), 40 * MIB), info()[0])
# on the device that it names, not the current one
say(alloc(200 * MIB, "hipMemCreate", on(1), 0) > 0, info()[0])
"""
    assert job.run(code) == "0 24 0 0 0 24 0 64 True 64"


def test_a_reset_gives_all_of_the_device_back(job: HipJob) -> None:
    code = """
alloc(20 * MIB); alloc(10 * MIB, "hipMallocAsync", None)
say(info()[0], hip("hipDeviceReset"), info()[0], alloc(64 * MIB) > 0)
"""
    assert job.run(code) == "28 0 64 True"
    assert job.run("alloc(20 * MIB); say(hip('hipDeviceReset'), info()[0])",
                   FAKE_HIP_FAIL="hipDeviceReset") == "1 44"  # fmt: skip


def test_what_hip_itself_hands_out_is_exchanged(job: HipJob) -> None:
    code = """
made = c_void_p()
malloc, free_it = proc("hipMalloc"), proc("hipFree")
size = c_size_t(40 * MIB)
say(malloc(byref(made), size), info()[0], malloc(byref(c_void_p()), size))
say(free_it(made), info()[0])
for version, offset in ((500, 256), (600, 288)):
    told = (c_char * 4096)()
    assert proc("hipGetDeviceProperties", version)(told, 0) == 0
    say(c_size_t.from_buffer(told, offset).value // MIB)
say(proc("hipInit")(0))  # one that is not replaced
"""
    assert job.run(code) == "0 24 2 0 64 64 64 0"


def test_processes_share_one_cap_and_a_killed_one_holds_nothing(job: HipJob) -> None:
    first = job.start("held = alloc(40 * MIB); say('held'); heard()")
    assert hear(first) == "held"
    assert job.run("say(alloc(40 * MIB), info()[0], alloc(24 * MIB) > 0)") == "-2 24 True"
    (holder,) = [h for h in memcap.holders(job.folder, (ONE,)) if h.pid == first.pid]
    assert holder.held[ONE] == 40 * MIB
    first.kill()
    first.wait()
    assert job.run("say(alloc(64 * MIB) > 0)") == "True"


def test_another_cap_holds_at_once(job: HipJob) -> None:
    process = job.start(
        "a = alloc(40 * MIB); say('there'); heard(); say(alloc(40 * MIB), info()[1]); heard()\n"
        "say(alloc(1), info()[0], free(a), alloc(16 * MIB) > 0)"
    )
    assert hear(process) == "there"
    memcap.resize(job.folder, {ONE: 128 * MIB})
    tell(process)
    pointer, total = hear(process).split()
    assert int(pointer) > 0
    assert total == "128"
    (usage,) = memcap.resize(job.folder, {ONE: 64 * MIB})
    assert usage.over == 16 * MIB
    tell(process)
    assert hear(process) == "-2 0 0 True"


def test_two_linked_programs_race_for_the_last_room(job: HipJob, hip_driver: Path) -> None:
    """Linked to functions with versions, which the library's have not."""
    program = compile_c(
        job.folder / "race", HERE / "hip_race.c", f"-L{hip_driver}", "-l:libamdhip64.so"
    )
    job.cap(MIB)
    words = [program, job.folder / "board", "3000"]
    both = [
        subprocess.Popen([*words, str(part), str(MIB)], env=job.environment(),
                         stdout=subprocess.PIPE, text=True)
        for part in (0, 1)
    ]  # fmt: skip
    said = [process.communicate()[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [words[:2] for words in said] == [["0", "0"]] * 2  # never both, and never neither
    assert sum(int(words[2]) for words in said) == 3000
    assert job.usage.peak == MIB
    # the refusals that HIP is told of took nothing of the card
    assert job.on_card == (0, MIB)


def test_a_cap_is_proven_before_it_is_claimed(job: HipJob, tmp_path: Path) -> None:
    base = job.environment()
    del base["LD_PRELOAD"]
    card = Gpu(ONE, 0, "MI300X", 2**32, vendor="amd")
    ladder = ladder_for([card], tmp_path / "m", base)
    probe = ladder.probes()["memory cap"]
    assert probe.usable, probe.reason
    assert probe.figure == f"{canary.TRIED} on {ONE}"
    assert ladder.promises()[Subject.MEMORY] is Standing.CAPPED


def test_without_hip_it_is_not_claimed(job: HipJob, tmp_path: Path) -> None:
    base = {**job.environment(), "LD_LIBRARY_PATH": ""}
    ladder = ladder_for([Gpu(ONE, 0, "MI300X", 2**32, vendor="amd")], tmp_path / "m", base)
    probe = ladder.probes()["memory cap"]
    assert not probe.usable
    assert "libamdhip64" in probe.reason
    assert ladder.promises()[Subject.MEMORY] is Standing.ADVISED


def test_uuids_of_both_makers(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    nvidia = "GPU-00000000-0000-0000-0000-000000000001"
    memcap.create(path, {ONE.replace("a", "A"): MIB, nvidia: 2 * MIB})
    found = memcap.ledger.read(path)
    assert [(usage.gpu, usage.limit) for usage in found] == [(ONE, MIB), (nvidia, 2 * MIB)]
    with pytest.raises(InvalidRequest, match="is not the UUID of a GPU"):
        memcap.create(path, {"GPU-XX": MIB})
