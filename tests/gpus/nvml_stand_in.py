"""An NVML without hardware: the functions are made up, errors and constants are pynvml's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1024**3
MIB = 1024**2


def error(name: str) -> Exception:
    """pynvml's exception for NVML_ERROR_<name>."""
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


def process(pid: int, memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


@dataclass
class Board:
    """One device of the stand-in. An answer that is an exception is raised."""

    uuid: Any
    bus: Any = (0, 1, 0)
    name: Any = "NVIDIA H200"
    total: Any = 80 * GIB
    used: Any = 3 * GIB
    reserved: int = GIB // 2
    utilization: Any = 42
    temperature: Any = 55
    power: Any = 123_500
    compute: Any = ()
    graphics: Any = ()
    work: Any = field(default_factory=lambda: error("NOT_SUPPORTED"))
    mig: Any = field(default_factory=lambda: error("NOT_SUPPORTED"))
    slots: list[Any] = field(default_factory=list)
    lost: bool = False


class StandIn:
    """Speaks like the module pynvml, for as much of it as gpuqueue uses."""

    def __init__(self, boards: Iterable[Any] = (), missing: Iterable[str] = (), **failures: Any):
        self.boards = list(boards)
        self.missing = set(missing)  # functions that the driver is too old for
        self.failures = failures  # by function name
        self.users = 0
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "nvmlMemory_v2")):
            return getattr(pynvml, name)
        if not hasattr(type(self), f"_{name}"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append(name)
            if name in self.failures:
                raise self.failures[name]
            if name in self.missing:
                raise error("FUNCTION_NOT_FOUND")
            if name != "nvmlInit" and not self.users:
                raise error("UNINITIALIZED")
            if args and isinstance(args[0], Board) and args[0].lost:
                raise error("GPU_IS_LOST")
            return self._answer(getattr(self, f"_{name}")(*args))

        return call

    @staticmethod
    def _answer(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def _nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.users += 1

    def _nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.boards)

    def _nvmlDeviceGetHandleByIndex(self, number: int) -> Any:  # noqa: N802
        return self.boards[number]

    def _nvmlDeviceGetUUID(self, board: Board) -> Any:  # noqa: N802
        return board.uuid

    def _nvmlDeviceGetName(self, board: Board) -> Any:  # noqa: N802
        return board.name

    def _nvmlDeviceGetPciInfo(self, board: Board) -> Any:  # noqa: N802
        if isinstance(board.bus, Exception):
            return board.bus
        domain, bus, device = board.bus
        return SimpleNamespace(domain=domain, bus=bus, device=device)

    def _nvmlDeviceGetMemoryInfo(self, board: Board, version: int | None = None) -> Any:  # noqa: N802
        for answer in (board.total, board.used):
            if isinstance(answer, Exception):
                return answer
        if version is None:
            return SimpleNamespace(total=board.total, used=board.used + board.reserved)
        if "nvmlDeviceGetMemoryInfo_v2" in self.missing:
            return error("FUNCTION_NOT_FOUND")
        return SimpleNamespace(total=board.total, used=board.used, reserved=board.reserved)

    def _nvmlDeviceGetUtilizationRates(self, board: Board) -> Any:  # noqa: N802
        if isinstance(board.utilization, Exception):
            return board.utilization
        return SimpleNamespace(gpu=board.utilization, memory=1)

    def _nvmlDeviceGetTemperature(self, board: Board, sensor: int) -> Any:  # noqa: N802
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return board.temperature

    def _nvmlDeviceGetPowerUsage(self, board: Board) -> Any:  # noqa: N802
        return board.power

    def _nvmlDeviceGetComputeRunningProcesses(self, board: Board) -> Any:  # noqa: N802
        if "nvmlDeviceGetComputeRunningProcesses_v3" in self.missing:
            return pynvml.NVMLLibraryMismatchError("use a versioned function")
        return board.compute

    def _nvmlDeviceGetComputeRunningProcesses_v2(self, board: Board) -> Any:  # noqa: N802
        return board.compute

    def _nvmlDeviceGetGraphicsRunningProcesses(self, board: Board) -> Any:  # noqa: N802
        if "nvmlDeviceGetGraphicsRunningProcesses_v3" in self.missing:
            return pynvml.NVMLLibraryMismatchError("use a versioned function")
        return board.graphics

    def _nvmlDeviceGetGraphicsRunningProcesses_v2(self, board: Board) -> Any:  # noqa: N802
        return board.graphics

    def _nvmlDeviceGetProcessUtilization(self, board: Board, since: int) -> Any:  # noqa: N802
        if isinstance(board.work, Exception):
            return board.work
        return [s for s in board.work if s.timeStamp > since] or error("NOT_FOUND")

    def _nvmlDeviceGetMigMode(self, board: Board) -> Any:  # noqa: N802
        return board.mig

    def _nvmlDeviceGetMaxMigDeviceCount(self, board: Board) -> Any:  # noqa: N802
        return len(board.slots)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, board: Board, number: int) -> Any:  # noqa: N802
        return board.slots[number] or error("NOT_FOUND")
