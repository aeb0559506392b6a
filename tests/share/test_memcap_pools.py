"""Memory that the driver keeps: pools and graphs. Charged is what they hold, not what was asked."""

from __future__ import annotations

import pytest
from share_cards import MIB, Job, drivers, hear, job, library, needs_compiler, tell

pytestmark = needs_compiler
__all__ = ["drivers", "job", "library"]

POOL = """
use()
stream = c_void_p()
cu("cuStreamCreate", byref(stream), 0)
end = SUFFIX
def take(size, where=stream, pool=None):
    pointer = c_uint64()
    if pool is None:
        result = cu("cuMemAllocAsync" + end, byref(pointer), size, where)
    else:
        result = cu("cuMemAllocFromPoolAsync" + end, byref(pointer), size, pool, where)
    return -result if result else pointer.value
def drop(pointer):
    assert cu("cuMemFreeAsync" + end, pointer, stream) == 0
sync = lambda: cu("cuStreamSynchronize" + end, stream)
room = lambda: info()[0] // MIB
"""


@pytest.mark.parametrize(
    ("resolver", "suffix"), [("dlsym", ""), ("dlsym", "_ptsz"), ("proc2", ""), ("proc2", "_ptsz")]
)
def test_a_pool_is_charged_with_what_it_holds(job: Job, resolver, suffix):
    lines = job.run(
        POOL.replace("SUFFIX", repr(suffix))
        + f"cu._flags = {2 if suffix else 0}\n"
        + """
first, second = take(30 * MIB), take(30 * MIB)
say(room(), take(6 * MIB), take(4 * MIB) > 0, room())
drop(first)
say("freed", room())  # the pool has it still
say(alloc(30 * MIB), take(30 * MIB) > 0, room())  # and gives it out again
drop(second)
assert sync() == 0
say("synchronised", room())
""",
        RESOLVER=resolver,
    )
    assert lines == ["4 -2 True 0", "freed 0", "-2 True 0", "synchronised 30"]
    assert job.on_card == (34 * MIB, 64 * MIB)
    assert job.usage.peak == 64 * MIB


def test_what_a_pool_keeps_is_seen_by_the_jobs_other_processes(job: Job):
    code = (
        POOL.replace("SUFFIX", "''")
        + "pool = c_void_p(); cu('cuDeviceGetMemPool', byref(pool), 0)\n"
    )
    lines = job.run(
        code
        + """
assert cu("cuMemPoolSetAttribute", pool, 4, byref(c_uint64(64 * MIB))) == 0  # keep all
drop(take(40 * MIB))
sync()
say(room(), alloc(30 * MIB))
assert cu("cuMemPoolTrimTo", pool, 0) == 0
say(room(), alloc(30 * MIB) > 0)
pointer = take(10 * MIB)
assert free(pointer) == 0  # the other way to free it
say(room())
cu("cuCtxSynchronize")
assert cu("cuMemPoolTrimTo", pool, 0) == 0
say(room())
"""
    )
    assert lines == ["24 -2", "64 True", "24", "34"]


def test_a_pool_that_grows_by_more_than_there_is_room_for(job: Job):
    lines = job.run(
        POOL.replace("SUFFIX", "''")
        + """
assert alloc(40 * MIB) > 0
say(take(MIB), room())  # the pool has taken 32 MiB for it, which is over
sync()
say(room(), take(MIB))
""",
        FAKE_CUDA_STEP=str(32 * MIB),
    )
    assert lines == ["-2 0", "24 -2"]
    assert job.used == 64 * MIB + 8 * MIB  # charged as long as the pool has it


@pytest.mark.parametrize(
    "wait",
    [
        "cu('cuStreamSynchronize', stream)",
        "cu('cuEventSynchronize', None)",
        "cu('cuCtxSynchronize')",
        "cu('cuCtxSynchronize_v2', None)",
    ],
)
@pytest.mark.parametrize("version", ["dlsym", "proc2"])
def test_each_way_to_wait_finds_what_pools_have_given_back(job: Job, wait, version):
    process = job.start(
        POOL.replace("SUFFIX", "''")
        + f"""
cu._version = 13000
drop(take(30 * MIB))
say("freed")
heard()
assert {wait} == 0
say("waited")
heard()
""",
        RESOLVER=version,
    )
    assert hear(process) == "freed"
    assert job.used == 30 * MIB
    tell(process)
    assert hear(process) == "waited"
    assert job.used == 0


def test_own_pools(job: Job):
    lines = job.run(
        POOL.replace("SUFFIX", "''")
        + """
pool, host = c_void_p(), c_void_p()
assert cu("cuMemPoolCreate", byref(pool), byref(on(0))) == 0
assert cu("cuMemPoolCreate", byref(host), byref(on(0, 2))) == 0
assert take(1 << 33, pool=host) > 0
first, second = take(20 * MIB, pool=pool), take(20 * MIB, pool=pool)
say(room(), take(30 * MIB, pool=pool))
drop(first)
assert cu("cuMemPoolDestroy", pool) == 0
say("destroyed", room())  # it lives until the second is freed
drop(second)
say(room())
assert cu("cuMemPoolCreate", byref(pool), byref(on(0))) == 0
take(2 * MIB, pool=pool)
say(room())
"""
    )
    assert lines == ["24 -2", "destroyed 44", "64", "62"]


def test_a_stream_of_another_card_pays_there(job: Job):
    job.cap(64 * MIB, 8 * MIB)
    lines = job.run(
        POOL.replace("SUFFIX", "''")
        + """
use(1)
far = c_void_p()
cu("cuStreamCreate", byref(far), 0)
use(0)
say(take(9 * MIB, far), take(8 * MIB, far) > 0, room())
use(1)
say(room())
"""
    )
    assert lines == ["-2 True 64", "0"]


GRAPH = """
use()
room = lambda: info()[0] // MIB
def graph_of(*sizes):
    graph, node = c_void_p(), c_void_p()
    cu("cuGraphCreate", byref(graph), 0)
    for size in sizes:
        wanted = AllocNode(on(0), None, 0, size, 0)
        result = cu("cuGraphAddMemAllocNode", byref(node), graph, None, 0, byref(wanted))
        if result:
            return -result
    return graph
def instantiate(graph):
    made = c_void_p()
    result = {
        "flags": lambda: cu("cuGraphInstantiateWithFlags", byref(made), graph, 0),
        "params": lambda: cu("cuGraphInstantiateWithParams", byref(made), graph, None),
        "second": lambda: cu("cuGraphInstantiate_v2", byref(made), graph, None, None, 0),
        "old": lambda: cu("cuGraphInstantiate", byref(made), graph, None, None, 0),
    }[FORM]()
    assert result == 0
    return made
launch = lambda made: cu(LAUNCH, made, None)
"""


@pytest.mark.parametrize("form", ["flags", "params", "second", "old"])
@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload"])
def test_graphs_are_charged_when_they_are_launched(job: Job, form, call):
    lines = job.run(
        GRAPH.replace("FORM", repr(form)).replace("LAUNCH", repr(call))
        + """
say(graph_of(65 * MIB))
first, second = instantiate(graph_of(30 * MIB)), instantiate(graph_of(20 * MIB, 4 * MIB))
say(room())
assert launch(first) == 0
say(room())
assert launch(second) == 0  # it uses the same memory
say(room(), alloc(40 * MIB))
pointer = alloc(34 * MIB)
third = instantiate(graph_of(32 * MIB))
say(launch(third))
assert cu("cuGraphExecDestroy", first) == 0
assert cu("cuDeviceGraphMemTrim", 0) == 0
say(room(), launch(third))
free(pointer)
say(launch(third), room())
"""
    )
    assert lines == ["-2", "64", "34", "34 -2", "2", "30 2", "0 32"]
    assert job.used == job.on_card[0] == 32 * MIB


def test_allocations_of_a_captured_stream_and_of_child_graphs(job: Job):
    lines = job.run(
        GRAPH.replace("FORM", "'flags'").replace("LAUNCH", "'cuGraphLaunch'")
        + """
stream, pointer, graph, parent, node = c_void_p(), c_uint64(), c_void_p(), c_void_p(), c_void_p()
cu("cuStreamCreate", byref(stream), 0)
cu("cuStreamBeginCapture_v2", stream, 0)
assert cu("cuMemAllocAsync", byref(pointer), 48 * MIB, stream) == 0
say(room())
cu("cuStreamEndCapture", stream, byref(graph))
cu("cuGraphCreate", byref(parent), 0)
cu("cuGraphAddChildGraphNode", byref(node), parent, None, 0, graph)
made = instantiate(parent)
pointer = alloc(20 * MIB)
say(launch(made))
free(pointer)
say(launch(made), room())
"""
    )
    assert lines == ["64", "2", "0 16"]
