from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from nvml_stand_in import GIB, MIB, Board, StandIn, error, process

from gpuqueue.gpus import NvidiaDevices
from gpuqueue.model import GpuProcess, Reading

NOT_TOLD = ["NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "FUNCTION_NOT_FOUND", "UNKNOWN"]


def a_board(uuid: str = "GPU-a", **other: Any) -> Board:
    return Board(uuid, compute=[process(10, GIB)], graphics=[process(20, 64 * MIB)], **other)


WHOLE_READING = Reading(
    "GPU-a",
    memory_used=3 * GIB,
    utilization=42,
    temperature=55,
    power=123.5,
    processes=(GpuProcess(10, GIB), GpuProcess(20, 64 * MIB)),
)


def test_the_stand_in_has_only_functions_that_pynvml_has() -> None:
    made_up = {name[1:] for name in vars(StandIn) if name.startswith("_nvml")}
    assert made_up
    assert [name for name in made_up if not hasattr(pynvml, name)] == []


def test_a_card_and_its_reading() -> None:
    devices = NvidiaDevices(StandIn([a_board()]))
    (gpu,) = devices.gpus()
    assert (gpu.uuid, gpu.index, gpu.name) == ("GPU-a", 0, "NVIDIA H200")
    assert (gpu.memory, gpu.vendor, gpu.fake) == (80 * GIB, "nvidia", False)
    assert devices.read() == (WHOLE_READING,)
    assert devices.problem == ""


@pytest.mark.parametrize("code", NOT_TOLD)
@pytest.mark.parametrize(
    ("field", "function"),
    [
        ("memory_used", "nvmlDeviceGetMemoryInfo"),
        ("utilization", "nvmlDeviceGetUtilizationRates"),
        ("temperature", "nvmlDeviceGetTemperature"),
        ("power", "nvmlDeviceGetPowerUsage"),
    ],
)
def test_a_field_that_is_not_told_is_none_and_the_others_stay(
    field: str, function: str, code: str
) -> None:
    devices = NvidiaDevices(StandIn([a_board()], **{function: error(code)}))
    (reading,) = devices.read()
    for name in ("memory_used", "utilization", "temperature", "power", "processes"):
        expected = None if name == field else getattr(WHOLE_READING, name)
        assert getattr(reading, name) == expected
    assert devices.problem == ""


@pytest.mark.parametrize("code", NOT_TOLD)
@pytest.mark.parametrize(
    ("kind", "left"),
    [("Compute", GpuProcess(20, 64 * MIB)), ("Graphics", GpuProcess(10, GIB))],
)
def test_one_list_of_processes_without_the_other(kind: str, left: GpuProcess, code: str) -> None:
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    nvml = StandIn([a_board()], **{name: error(code), f"{name}_v2": error(code)})
    assert NvidiaDevices(nvml).read()[0].processes == (left,)


@pytest.mark.parametrize("code", [*NOT_TOLD, "UNINITIALIZED", "TIMEOUT"])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nvmlDeviceGetName", {"name": "NVIDIA GPU"}),
        ("nvmlDeviceGetMemoryInfo", {"memory": None}),
        ("nvmlDeviceGetPciInfo", {}),
        ("nvmlDeviceGetMigMode", {}),
    ],
)
def test_a_card_is_found_though_something_of_it_is_not_told(
    function: str, expected: dict[str, Any], code: str
) -> None:
    (gpu,) = NvidiaDevices(StandIn([a_board()], **{function: error(code)})).gpus()
    wanted = {"uuid": "GPU-a", "index": 0, "name": "NVIDIA H200", "memory": 80 * GIB} | expected
    assert {name: getattr(gpu, name) for name in wanted} == wanted


def test_all_of_it_not_told_at_once() -> None:
    names = [name for name in vars(pynvml) if name.startswith("nvmlDeviceGet")]
    keep = ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")
    failures = {name: error("NOT_SUPPORTED") for name in names if name not in keep}
    devices = NvidiaDevices(StandIn([a_board()], **failures))
    assert devices.gpus()[0].memory is None
    assert devices.read() == (Reading("GPU-a"),)


@pytest.mark.parametrize("wrong", [0, 2**64 - 1])
def test_unified_memory_has_no_size(wrong: int) -> None:
    assert NvidiaDevices(StandIn([a_board(total=wrong)])).gpus()[0].memory is None


def test_numbers_that_mean_not_available() -> None:
    board = a_board(used=2**64 - 1, utilization=2**32 - 1, power=2**32 - 1)
    (reading,) = NvidiaDevices(StandIn([board])).read()
    assert (reading.memory_used, reading.utilization, reading.power) == (None, None, None)


def test_zero_is_an_answer() -> None:
    board = Board("GPU-a", used=0, utilization=0, power=0, temperature=0)
    (reading,) = NvidiaDevices(StandIn([board])).read()
    assert reading == Reading("GPU-a", 0, 0, 0, 0.0, ())


def test_names_and_uuids_as_bytes() -> None:
    (gpu,) = NvidiaDevices(StandIn([Board(b"GPU-a", name=b"Tesla \xff")])).gpus()
    assert (gpu.uuid, gpu.name) == ("GPU-a", "Tesla \ufffd")


def test_a_name_that_pynvml_cannot_decode() -> None:
    wrong = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert NvidiaDevices(StandIn([Board("GPU-a", name=wrong)])).gpus()[0].name == "NVIDIA GPU"


@pytest.mark.parametrize(
    ("compute", "graphics", "expected"),
    [
        ([], [], ()),
        ([process(1, 5)], [process(1, 5)], (GpuProcess(1, 5),)),
        ([process(1, 5)], [process(1, None)], (GpuProcess(1, 5),)),
        ([process(1, None)], [process(1, 5)], (GpuProcess(1, 5),)),
        ([process(1, None)], [], (GpuProcess(1, None),)),
        ([process(1, 2**64 - 1)], [], (GpuProcess(1, None),)),
        ([process(1, 0)], [process(1, None)], (GpuProcess(1, 0),)),
        ([process(9, 1), process(2, 3)], [process(4, 2)], tuple(
            GpuProcess(*item) for item in [(2, 3), (4, 2), (9, 1)]
        )),
    ],
)  # fmt: skip
def test_processes_are_merged_by_pid(compute: Any, graphics: Any, expected: Any) -> None:
    nvml = StandIn([Board("GPU-a", compute=compute, graphics=graphics)])
    assert NvidiaDevices(nvml).read()[0].processes == expected


def test_an_old_driver_has_older_functions() -> None:
    nvml = StandIn(
        [a_board()],
        missing=[
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
        ],
    )
    (reading,) = NvidiaDevices(nvml).read()
    assert reading.memory_used == 3 * GIB + GIB // 2  # with what the driver keeps for itself
    assert reading.processes == WHOLE_READING.processes


def test_numbers_follow_the_bus_not_nvml() -> None:
    boards = [
        Board("GPU-no-bus", bus=error("NOT_SUPPORTED")),
        Board("GPU-d1", bus=(1, 0, 0)),
        Board("GPU-b9", bus=(0, 9, 0)),
        Board("GPU-b81", bus=(0, 0x81, 0)),
        Board("GPU-b9-1", bus=(0, 9, 1)),
    ]
    gpus = NvidiaDevices(StandIn(boards)).gpus()
    assert [gpu.uuid for gpu in gpus] == [
        "GPU-b9",
        "GPU-b9-1",
        "GPU-b81",
        "GPU-d1",
        "GPU-no-bus",
    ]
    assert [gpu.index for gpu in gpus] == list(range(5))


def test_mig_instances_stand_in_for_their_card() -> None:
    def part(uuid: str, total: int, pid: int) -> Board:
        no = error("NOT_SUPPORTED")
        return Board(
            uuid,
            name="NVIDIA A100 MIG 3g.20gb",
            total=total,
            used=MIB,
            utilization=no,
            temperature=no,
            power=no,
            compute=[process(pid, MIB)],
        )

    card = Board("GPU-mig", bus=(0, 1, 0), mig=[1, 1])
    card.slots = [part("MIG-1", 20 * GIB, 5), None, part("MIG-2", 10 * GIB, 6), None]
    devices = NvidiaDevices(StandIn([Board("GPU-z", bus=(0, 2, 0), mig=[0, 1]), card]))
    gpus = devices.gpus()
    assert [(gpu.uuid, gpu.index) for gpu in gpus] == [("MIG-1", 0), ("MIG-2", 1), ("GPU-z", 2)]
    assert [gpu.memory for gpu in gpus] == [20 * GIB, 10 * GIB, 80 * GIB]
    first, second, _ = devices.read()
    assert first == Reading("MIG-1", memory_used=MIB, processes=(GpuProcess(5, MIB),))
    assert second.processes == (GpuProcess(6, MIB),)
    assert devices.environment(gpus[:1])["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert devices.problem == ""


def test_a_card_in_seven_is_seven_gpus_with_their_sizes() -> None:
    card = Board("GPU-mig", mig=[1, 1])
    card.slots = [
        Board(f"MIG-{n}", name="NVIDIA H200 MIG 1g.18gb", total=16 * GIB) for n in range(7)
    ]
    gpus = NvidiaDevices(StandIn([card])).gpus()
    assert [gpu.uuid for gpu in gpus] == [f"MIG-{n}" for n in range(7)]
    assert [(gpu.index, gpu.memory) for gpu in gpus] == [(n, 16 * GIB) for n in range(7)]
    assert {gpu.name for gpu in gpus} == {"NVIDIA H200 MIG 1g.18gb"}


def test_mig_mode_without_instances_is_said() -> None:
    card = Board("GPU-mig", mig=[1, 1], slots=[None, None])
    devices = NvidiaDevices(StandIn([card]))
    assert devices.gpus() == ()
    assert "MIG mode and has no instances" in devices.problem


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (error("LIBRARY_NOT_FOUND"), ["libnvidia-ml", "not supported yet"]),
        (error("DRIVER_NOT_LOADED"), ["not loaded"]),
        (error("LIB_RM_VERSION_MISMATCH"), ["updated", "reboot", "load the driver"]),
        (error("NO_PERMISSION"), ["refuses this user", "/dev/nvidia"]),
        (error("UNKNOWN"), ["does not answer", "Unknown"]),
        (pynvml.NVMLError(12345), ["does not answer"]),
    ],
)
@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetCount"])
def test_why_there_are_no_gpus(failure: Exception, words: list[str], where: str) -> None:
    nvml = StandIn([a_board()], **{where: failure})
    devices = NvidiaDevices(nvml)
    assert devices.gpus() == devices.read() == ()
    for word in words:
        assert word in devices.problem
    assert devices.problem.endswith(".")
    assert nvml.users == 0
    devices.close()
    assert nvml.users == 0


def test_a_driver_that_shows_nothing() -> None:
    nvml = StandIn([])
    assert "shows no GPU" in NvidiaDevices(nvml).problem
    assert nvml.users == 0


@pytest.mark.parametrize("code", ["GPU_IS_LOST", "NO_PERMISSION", "IRQ_ISSUE"])
def test_one_card_that_cannot_be_reached_leaves_the_others(code: str) -> None:
    devices = NvidiaDevices(StandIn([error(code), a_board()]))
    assert [gpu.uuid for gpu in devices.gpus()] == ["GPU-a"]
    assert "left out" in devices.problem


def test_a_card_without_uuid_is_left_out_and_said() -> None:
    devices = NvidiaDevices(StandIn([Board(error("NOT_SUPPORTED"), bus=(0, 0, 0)), a_board()]))
    assert [(gpu.uuid, gpu.index) for gpu in devices.gpus()] == [("GPU-a", 0)]
    assert "no UUID" in devices.problem


@pytest.mark.parametrize("step", ["nvmlDeviceGetPciInfo", "nvmlDeviceGetUUID"])
def test_a_card_lost_while_it_is_looked_at(step: str) -> None:
    devices = NvidiaDevices(StandIn([a_board()], **{step: error("GPU_IS_LOST")}))
    assert devices.gpus() == ()
    assert "lost" in devices.problem


@pytest.mark.parametrize("code", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_card_lost_later(code: str) -> None:
    well, ill = a_board(), Board("GPU-b", bus=(0, 2, 0))
    nvml = StandIn([well, ill])
    devices = NvidiaDevices(nvml)
    before = devices.gpus()
    ill.power = error(code)
    assert devices.read() == (WHOLE_READING, Reading("GPU-b"))
    assert devices.gpus() == before
    assert "GPU 1 (NVIDIA H200) was lost" in devices.problem
    ill.power = 1000
    assert devices.read()[1].power == 1.0
    assert devices.problem == ""


def test_nvml_is_started_and_shut_down_once_each() -> None:
    nvml = StandIn([a_board()])
    one, two = NvidiaDevices(nvml), NvidiaDevices(nvml)
    assert nvml.users == 2
    one.close()
    one.close()
    assert nvml.users == 1
    assert one.read() == (Reading("GPU-a"),)
    assert two.read() == (WHOLE_READING,)
    two.close()
    assert nvml.users == 0


def test_a_shutdown_that_fails_does_not_matter() -> None:
    NvidiaDevices(StandIn([a_board()], nvmlShutdown=error("UNKNOWN"))).close()


def test_a_bug_does_not_leave_nvml_open() -> None:
    nvml = StandIn([a_board()], nvmlDeviceGetName=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        NvidiaDevices(nvml)
    assert nvml.users == 0


def test_reading_from_many_threads() -> None:
    devices = NvidiaDevices(StandIn([a_board()]))
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(devices.read())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(WHOLE_READING,)] * 8


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    devices = NvidiaDevices()
    assert devices.gpus() == devices.read() == ()
    assert "nvidia-ml-py" in devices.problem
    devices.close()


@pytest.mark.gpu
def test_a_real_card() -> None:
    devices = NvidiaDevices()
    if not devices.gpus():
        pytest.skip(devices.problem)
    for gpu, reading in zip(devices.gpus(), devices.read(), strict=True):
        assert gpu.uuid.startswith(("GPU-", "MIG-"))
        assert reading.gpu == gpu.uuid
        if gpu.memory is not None and reading.memory_used is not None:
            assert 0 <= reading.memory_used <= gpu.memory
    devices.close()


def test_who_computes_is_told_since_the_last_time() -> None:
    def sample(pid: int, at: int, percent: int) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)

    work = [sample(10, 5, 30), sample(10, 6, 70)]
    board = Board("GPU-1", compute=[process(10, GIB), process(20, MIB)], work=work)
    devices = NvidiaDevices(StandIn([board]))
    (first,) = devices.read()
    assert first.processes == (GpuProcess(10, GIB, 70), GpuProcess(20, MIB, 0))
    work.append(sample(20, 7, 3))
    (second,) = devices.read()
    assert [p.utilization for p in second.processes] == [0, 3]
    (third,) = devices.read()  # NVML says that it has found none
    assert [p.utilization for p in third.processes] == [0, 0]
    board.work = error("NOT_SUPPORTED")
    (fourth,) = devices.read()
    assert [p.utilization for p in fourth.processes] == [None, None]
