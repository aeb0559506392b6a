"""The memory cap on a driver without a GPU: what is charged, given back and refused."""

from __future__ import annotations

import pytest
from share_cards import (
    GIB,
    MIB,
    ONE,
    TWO,
    Job,
    drivers,
    hear,
    job,
    library,
    needs_compiler,
    tell,
)

from gpuqueue.share import memcap

pytestmark = needs_compiler
__all__ = ["drivers", "job", "library"]

WAYS = {
    "dlsym": {"RESOLVER": "dlsym"},
    "dlvsym": {"RESOLVER": "dlvsym"},
    "cuGetProcAddress": {"RESOLVER": "proc1"},
    "cuGetProcAddress_v2": {"RESOLVER": "proc2"},
    "other addresses": {"RESOLVER": "proc2", "FAKE_CUDA_DISTINCT": "1"},
    "other addresses, first form": {"RESOLVER": "proc1", "FAKE_CUDA_DISTINCT": "1"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_last_byte_fits_and_one_more_does_not(job: Job, way):
    lines = job.run(
        """
use()
say(alloc(64 * MIB + 1))
big = alloc(62 * MIB)
small = [alloc(512) for _ in range(4096)]
say(big > 0, min(small) > 0, alloc(1), alloc(512), alloc(2 * MIB))
say(free(small.pop()), alloc(513), alloc(512) > 0, alloc(1))
""",
        **way,
    )
    assert lines == ["-2", "True True -2 -2 -2", "0 -2 True -2"]
    assert job.usage.peak == 64 * MIB
    assert job.on_card[1] == 64 * MIB  # the driver was never asked for more
    assert job.usage.refusals == 6
    assert job.usage.last_refused == 512


def test_small_ones_are_counted_in_512_bytes_and_large_ones_in_mibs(job: Job):
    sizes = "[1, 512, 513, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1]"
    lines = job.run(
        f"""
use()
for size in {sizes}:
    before = info()[0]
    assert alloc(size) > 0
    say(before - info()[0])
"""
    )
    assert [int(line) for line in lines] == [
        512, 512, 1024, MIB, 2 * MIB, 2 * MIB, 4 * MIB,
    ]  # fmt: skip


def test_sizes_that_overflow_are_refused_and_count_nothing(job: Job):
    job.run(
        """
use()
for size in (1 << 40, 1 << 62, (1 << 64) - 1, (1 << 64) - 512):
    assert alloc(size) == -OOM, size
pitch = c_size_t()
pointer = c_uint64()
assert cu("cuMemAllocPitch_v2", byref(pointer), byref(pitch), 1 << 40, 1 << 40, 4) == OOM
assert alloc(0) == -1
"""
    )
    assert (job.usage.used, job.usage.peak, job.usage.refusals) == (0, 0, 5)


LINEAR = """
use()
pitch = c_size_t()
def pitched():
    pointer = c_uint64()
    result = cu("cuMemAllocPitch_v2", byref(pointer), byref(pitch), 1000, 3000, 4)
    return -result if result else pointer.value
def managed():
    pointer = c_uint64()
    result = cu("cuMemAllocManaged", byref(pointer), 3 * MIB, 1)
    return -result if result else pointer.value
def array():
    handle = c_void_p()
    result = cu("cuArrayCreate_v2", byref(handle), byref(FlatDescriptor(1024, 1024, 0x20, 1)))
    return -result if result else handle
def array3():
    handle = c_void_p()
    result = cu("cuArray3DCreate_v2", byref(handle), byref(Descriptor(64, 64, 64, 0x20, 2, 0)))
    return -result if result else handle
def unknown():
    handle = c_void_p()
    result = cu("cuArray3DCreate_v2", byref(handle), byref(Descriptor(512, 512, 1, 0x51, 2, 0)))
    return -result if result else handle
def mipmap():
    handle = c_void_p()
    wanted = Descriptor(512, 512, 0, 0x20, 4, 0)
    result = cu("cuMipmappedArrayCreate", byref(handle), byref(wanted), 10)
    return -result if result else handle
make, drop = {make}, "{drop}"
made = make()
assert not isinstance(made, int) or made > 0
say("made")
heard()
assert cu(drop, made) == 0
say("dropped")
heard()
assert alloc(62 * MIB) > 0
while alloc(MIB - 512) > 0:
    pass
refused = make()
say(refused)
heard()
"""


@pytest.mark.parametrize(
    ("make", "drop"),
    [
        ("lambda: alloc(3 * MIB)", "cuMemFree_v2"),
        ("pitched", "cuMemFree_v2"),
        ("managed", "cuMemFree_v2"),
        ("array", "cuArrayDestroy"),
        ("array3", "cuArrayDestroy"),
        ("unknown", "cuArrayDestroy"),
        ("mipmap", "cuMipmappedArrayDestroy"),
        ("lambda: create(4 * MIB)", "cuMemRelease"),
    ],
)
@pytest.mark.parametrize("resolver", ["dlsym", "proc2"])
def test_each_kind_is_charged_as_the_driver_takes_it_and_given_back(job: Job, make, drop, resolver):
    code = LINEAR.replace("{make}", make).replace("{drop}", drop)
    process = job.start(code, RESOLVER=resolver)
    assert hear(process) == "made"
    assert job.used == job.on_card[0] > 0
    tell(process)
    assert hear(process) == "dropped"
    assert (job.used, job.on_card[0]) == (0, 0)
    tell(process)
    assert hear(process) == "-2"
    assert job.used == job.on_card[0] <= 64 * MIB


def test_arrays_without_memory_of_their_own_cost_nothing(job: Job):
    job.run(
        """
use()
handle = c_void_p()
for flag in (0x40, 0x80):
    wanted = Descriptor(9999, 9999, 99, 0x20, 4, flag)
    assert cu("cuArray3DCreate_v2", byref(handle), byref(wanted)) == 0
assert info()[0] == 64 * MIB
"""
    )


def test_host_memory_and_what_others_have_paid_for_cost_nothing(job: Job):
    job.run(
        """
use()
for kind in (2, 3, 4):
    assert create(1 << 30, 0, kind) > 0
pointer, handle = c_uint64(), c_uint64()
assert cu("cuIpcOpenMemHandle_v2", byref(pointer), bytes(64), 1) == 0
assert cu("cuMemImportFromShareableHandle", byref(handle), None, 1) == 0
assert cu("cuMemRelease", handle) == 0
assert info()[0] == 64 * MIB
"""
    )


def test_a_handle_is_paid_for_until_its_last_reference_and_mapping_is_gone(job: Job):
    lines = job.run(
        """
use()
room = lambda: info()[0] // MIB
handle, again, own = create(4 * MIB), c_uint64(), c_uint64()
base = 0x100000000000
assert cu("cuMemMap", base, 2 * MIB, 0, handle, 0) == 0
assert cu("cuMemMap", base + 2 * MIB, 2 * MIB, 2 * MIB, handle, 0) == 0
assert cu("cuMemRelease", handle) == 0
say("released", room())
assert cu("cuMemRetainAllocationHandle", byref(again), c_void_p(base + 512)) == 0
assert cu("cuMemUnmap", base, 4 * MIB) == 0  # both at once
say("unmapped", room())
assert cu("cuMemImportFromShareableHandle", byref(own), c_void_p(again.value), 1) == 0
assert own.value == handle
assert cu("cuMemRelease", again) == 0
say("imported", room())
assert cu("cuMemRelease", own) == 0
say("gone", room())
"""
    )
    assert lines == ["released 60", "unmapped 60", "imported 60", "gone 64"]
    assert job.on_card[0] == 0


def test_a_handle_is_charged_to_the_device_that_it_is_on(job: Job):
    job.cap(64 * MIB, 8 * MIB)
    process = job.run(
        """
use(0)
assert create(8 * MIB, 1) > 0
assert create(2 * MIB, 1) == -OOM
assert create(64 * MIB, 0) > 0
use(1)
say(info()[0])
"""
    )
    assert process == ["0"]
    two = memcap.read(job.folder, (ONE, TWO))[1]
    assert (two.gpu, two.peak, two.refusals) == (TWO, 8 * MIB, 1)


def test_a_free_goes_to_the_device_that_paid(job: Job):
    job.cap(64 * MIB, 64 * MIB)
    job.run(
        """
use(0)
pointer = alloc(10 * MIB)
use(1)
assert free(pointer) == 0
assert info()[0] == 64 * MIB
use(0)
assert info()[0] == 64 * MIB
"""
    )


def test_what_fails_is_taken_back_and_what_cannot_be_freed_stays(job: Job):
    lines = job.run(
        """
use()
assert alloc(6 * MIB) == -999
say(info()[0] // MIB)
pointer = alloc(2 * MIB)
assert free(pointer + 8) != 0
assert free(pointer) == 0
assert free(pointer) != 0
say(info()[0] // MIB)
""",
        FAKE_CUDA_FAIL=str(6 * MIB),
    )
    assert lines == ["64", "64"]


def test_an_address_that_comes_again_was_freed(job: Job):
    """However that was: the charge of what was there goes."""
    job.run(
        """
use()
pointer = alloc(20 * MIB)
assert cu._library.fakeFree(c_uint64(pointer)) == 0
assert alloc(30 * MIB) == pointer
assert info()[0] == 34 * MIB
for _ in range(100):
    made = c_uint64()
    assert cu("cuMemAllocAsync", byref(made), 30 * MIB, None) == 0
    assert cu._library.fakeFree(made) == 0
pool = c_void_p()
cu("cuDeviceGetMemPool", byref(pool), 0)
assert cu("cuMemPoolTrimTo", pool, 0) == 0
assert info()[0] == 34 * MIB
"""
    )


def test_the_card_itself_may_be_full(job: Job):
    job.run(
        """
use()
assert alloc(40 * MIB) == -OOM
assert info() == (32 * MIB, 32 * MIB)  # the card is smaller than the cap
""",
        FAKE_CUDA_TOTAL=str(32 * MIB),
    )
    assert (job.usage.used, job.usage.refusals) == (0, 0)


def test_the_cap_is_what_a_program_is_told(job: Job):
    job.run(
        """
use()
total = c_size_t()
assert cu("cuDeviceTotalMem_v2", byref(total), 0) == 0 and total.value == 64 * MIB
assert cu("cuDeviceTotalMem_v2", byref(total), 1) == 0 and total.value == 64 * GIB  # no cap
alloc(24 * MIB)
assert info() == (40 * MIB, 64 * MIB)
assert cu("cuMemGetInfo_v2", None, byref(total)) == 0 and total.value == 64 * MIB
assert cu("cuMemGetInfo_v2", None, None) == 0
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device))
first = (c_uint64 * 3)()
assert nvml.nvmlDeviceGetMemoryInfo(device, first) == 0
assert list(first) == [64 * MIB, 40 * MIB, 24 * MIB]
second = (c_uint64 * 5)(2)
assert nvml.nvmlDeviceGetMemoryInfo_v2(device, second) == 0
assert list(second)[1:] == [64 * MIB, MIB, 40 * MIB, 24 * MIB]
nvml.nvmlDeviceGetHandleByIndex_v2(1, byref(device))
assert nvml.nvmlDeviceGetMemoryInfo(device, first) == 0
assert first[0] == 64 * GIB
"""
    )


def test_a_gpu_that_is_not_the_jobs_is_left_alone(job: Job):
    job.variables = memcap.environment(job.folder, {TWO: 8 * MIB}, library=job.library)
    job.run("use(0); assert alloc(GIB) > 0; assert info()[1] == 64 * GIB")
    assert memcap.read(job.folder)[0].peak == 0


def test_memory_goes_with_its_context(job: Job):
    lines = job.run(
        """
primary = use()
alloc(10 * MIB)
own, other = c_void_p(), c_void_p()
assert cu("cuCtxCreate_v2", byref(own), 0, 0) == 0
[alloc(512) for _ in range(2048)]
handle = create(2 * MIB)
say("two", info()[0] // MIB)
assert cu("cuCtxDestroy_v2", own) == 0
cu("cuCtxSetCurrent", primary)
say("one", info()[0] // MIB)
use()  # retained twice
assert cu("cuDevicePrimaryCtxRelease_v2", 0) == 0
say("held", info()[0] // MIB)
assert cu("cuDevicePrimaryCtxRelease_v2", 0) == 0
use()
say("released", info()[0] // MIB)
alloc(4 * MIB)
assert cu("cuDevicePrimaryCtxReset_v2", 0) == 0
use()
say("reset", info()[0] // MIB)
"""
    )
    # a handle of physical memory belongs to no context
    assert lines == ["two 51", "one 52", "held 52", "released 62", "reset 62"]
    assert job.on_card[0] == 2 * MIB


def test_an_unknown_version_of_a_function_is_passed_on(job: Job):
    job.run(
        """
use()
cuda = Cuda("proc2", 99000)
pointer = c_uint64()
assert cuda("cuMemAlloc_v2", byref(pointer)) == 0 and pointer.value == 9
"""
    )


def test_a_job_without_a_cap_is_counted(job: Job):
    job.cap(None)
    job.run("use(); assert alloc(30 * GIB) > 0; assert info()[1] == 64 * GIB")
    assert job.usage.peak == 30 * GIB
    assert job.usage.limit is None


def test_without_a_ledger_nothing_changes(job: Job):
    code = "use(); assert alloc(30 * GIB) > 0; assert info()[1] == 64 * GIB"
    job.run(code, GPUQUEUE_MEMCAP="/nonexistent")
    job.run(code, GPUQUEUE_MEMCAP=str(job.card))  # not a ledger
    assert job.usage.peak == 0
