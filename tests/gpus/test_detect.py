from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nvml_stand_in import Board, StandIn

from gpuqueue.errors import InvalidRequest
from gpuqueue.gpus import Devices, FakeDevices, NoDevices, NvidiaDevices, detect
from gpuqueue.gpus.devices import visible
from gpuqueue.model import Gpu


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUQUEUE_FAKE_GPUS", raising=False)
    monkeypatch.delenv("GPUQUEUE_FAKE_PROCS", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", StandIn([Board("GPU-real")]))  # type: ignore[arg-type]


def uuids(devices: Devices) -> list[str]:
    return [gpu.uuid for gpu in devices.gpus()]


def test_the_real_ones_when_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uuids(detect()) == ["GPU-real"]
    assert uuids(detect("  ")) == ["GPU-real"]
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "")
    assert uuids(detect()) == ["GPU-real"]


def test_pretend_ones_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uuids(detect("80G")) == ["FAKE-0"]
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "")
    assert uuids(detect("80G")) == ["FAKE-0"]


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "2x80G")
    assert uuids(detect("80G")) == ["FAKE-0", "FAKE-1"]
    assert uuids(detect()) == ["FAKE-0", "FAKE-1"]
    assert uuids(detect("none")) == ["FAKE-0", "FAKE-1"]
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", " None ")
    assert uuids(detect("80G")) == []


@pytest.mark.parametrize("where", ["GPUQUEUE_FAKE_GPUS", "fake_gpus"])
def test_none_turns_gpus_off_and_says_so(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "fake_gpus":
        devices = detect("none")
    else:
        monkeypatch.setenv(where, "none")
        devices = detect()
    assert devices.gpus() == devices.read() == ()
    assert where in devices.problem
    devices.close()


def test_errors_name_where_the_spec_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match=r"^fake_gpus: "):
        detect("plenty")
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "plenty")
    with pytest.raises(InvalidRequest, match=r"^GPUQUEUE_FAKE_GPUS: "):
        detect("80G")


def test_the_process_file_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "processes"
    file.write_text("1:0:5")
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(file))
    assert detect("80G").read()[0].memory_used == 5 * 1024**2


REAL = [Gpu(f"GPU-{name}", index, "H200", 1) for index, name in enumerate("abc")]
FAKE = list(FakeDevices("3x80G").gpus())


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        (REAL[:1], "GPU-a"),
        ([REAL[2], REAL[0]], "GPU-c,GPU-a"),
        (FAKE[1:2], "1"),
        ([FAKE[2], FAKE[0]], "2,0"),
        ([Gpu("MIG-x", 0, "A100 MIG", 1)], "MIG-x"),
    ],
)
def test_a_job_sees_its_gpus_in_its_order(gpus: list[Gpu], seen: str) -> None:
    assert visible(gpus) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": seen}


@pytest.mark.parametrize(
    "devices",
    [NoDevices("none"), FakeDevices("80G"), NvidiaDevices(StandIn([Board("GPU-a")]))],
    ids=["none", "fake", "nvidia"],
)
def test_a_job_without_gpus_sees_none_of_any_make(devices: Devices) -> None:
    assert devices.environment(()) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "-1",
    }
    own = devices.gpus()
    assert devices.environment(own) == visible(own)


def test_importing_the_room_does_not_import_pynvml() -> None:
    code = "import sys, gpuqueue.gpus; sys.exit('pynvml' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
