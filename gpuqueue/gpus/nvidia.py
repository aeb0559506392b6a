"""NVIDIA GPUs, through NVML.

NVML has an answer for most questions on most machines, and for every question a machine where it
has none: no memory size on unified memory, no processes on WSL, no utilisation on a MIG instance,
nothing at all on a card that fell off the bus. So each field is asked for by itself, and a field
without an answer is None.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuqueue.gpus.devices import visible
from gpuqueue.model import Gpu, GpuProcess, Reading

__all__ = ["NvidiaDevices"]

_NO_UINT = 2**32 - 1
_NO_ULONGLONG = 2**64 - 1
"""What NVML writes into a number that it does not know."""


@dataclass(frozen=True, slots=True)
class _Card:
    gpu: Gpu
    handle: Any


class _Lost(Exception):
    """The driver has given this card up."""


class NvidiaDevices:
    """The NVIDIA GPUs of this machine, or none and the reason why.

    A card in MIG mode cannot be used as a whole; its instances are offered in its place, each as
    a GPU of its own.

    Parameters
    ----------
    nvml
        A module that speaks like ``pynvml``; None is ``pynvml`` itself, imported now.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._cards: tuple[_Card, ...] = ()
        self._amiss: tuple[str, ...] = ()
        self._lost: frozenset[str] = frozenset()
        self._sampled: dict[str, int] = {}
        self._open = False
        self._closing = threading.Lock()
        if nvml is None:
            try:
                nvml = importlib.import_module("pynvml")
            except ImportError as error:
                self._amiss = (f"The Python package nvidia-ml-py cannot be imported ({error}).",)
                return
        self._nvml = nvml
        # Besides its own errors, pynvml raises a plain exception for a driver too old for the
        # call, lets undecodable names through, and older versions of it lack functions.
        mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
        self._errors = (nvml.NVMLError, mismatch, AttributeError, UnicodeDecodeError)
        self._gone = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)
        try:
            nvml.nvmlInit()
        except self._errors as error:
            self._amiss = (self._why(error),)
            return
        # NVML counts its users in this process: one init here, one shutdown in close().
        self._open = True
        try:
            self._find()
        except BaseException:
            self.close()
            raise
        if not self._cards:
            self.close()

    @property
    def problem(self) -> str:
        """Why there are no GPUs, or what is amiss with them."""
        lost = [
            f"GPU {card.gpu.index} ({card.gpu.name}) was lost: the driver no longer reaches it. "
            "Reset it or reboot."
            for card in self._cards
            if card.gpu.uuid in self._lost
        ]
        return " ".join([*self._amiss, *lost])

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs in PCI bus order, numbered from 0; MIG instances in the place of their card."""
        return tuple(card.gpu for card in self._cards)

    def read(self) -> tuple[Reading, ...]:
        """What each GPU says of itself now; all None for one that was lost."""
        if not self._open:
            return tuple(Reading(card.gpu.uuid) for card in self._cards)
        readings, lost = [], set()
        for card in self._cards:
            try:
                readings.append(self._reading(card))
            except _Lost:
                lost.add(card.gpu.uuid)
                readings.append(Reading(card.gpu.uuid))
        self._lost = frozenset(lost)
        return tuple(readings)

    def environment(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        """Environment variables with which a job sees exactly these GPUs, by UUID."""
        return visible(gpus)

    def close(self) -> None:
        """Shut NVML down, unless others in this process use it. May be called twice."""
        with self._closing:
            if self._open:
                self._open = False
                with contextlib.suppress(*self._errors):
                    self._nvml.nvmlShutdown()

    def _find(self) -> None:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except self._errors as error:
            self._amiss = (self._why(error),)
            return
        amiss: list[str] = []
        found: list[tuple[tuple[int, ...], Any]] = []
        for number in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                found.append((self._bus(handle, number), handle))
            except self._errors as error:
                amiss.append(f"A GPU is left out as it cannot be reached: {_text(error)}.")
            except _Lost:
                amiss.append("A GPU is left out as it was lost. Reset it or reboot.")
        # NVML promises no order from one boot to the next. It happens to count in bus order, and
        # sorting makes sure that our numbers are those of CUDA_DEVICE_ORDER=PCI_BUS_ID.
        found.sort(key=lambda item: item[0])
        cards: list[_Card] = []
        for _, handle in found:
            try:
                parts = self._instances(handle)
                if parts is not None and not parts:
                    amiss.append(
                        f"{self._name(handle)} is in MIG mode and has no instances; create some "
                        "or turn MIG off."
                    )
                for part in [handle] if parts is None else parts:
                    gpu = self._describe(part, index=len(cards))
                    if gpu is None:
                        amiss.append(f"{self._name(part)} is left out as it tells no UUID.")
                    else:
                        cards.append(_Card(gpu, part))
            except _Lost:
                amiss.append("A GPU is left out as it was lost. Reset it or reboot.")
        self._cards = tuple(cards)
        if not cards and not amiss:
            amiss = ["The NVIDIA driver is loaded, but shows no GPU to this user or container."]
        self._amiss = tuple(amiss)

    def _bus(self, handle: Any, number: int) -> tuple[int, ...]:
        """Sort key: where the card sits; cards that do not tell come last, in NVML's order."""
        info = self._ask("nvmlDeviceGetPciInfo", handle)
        return (1, number) if info is None else (0, info.domain, info.bus, info.device)

    def _instances(self, handle: Any) -> list[Any] | None:
        """Handles of a card's MIG instances; None for a card that is not in MIG mode."""
        mode = self._ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:  # [current, pending]; only the current one counts
            return None
        most = self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        handles = (
            self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            for number in range(most)
        )
        return [part for part in handles if part is not None]

    def _describe(self, handle: Any, index: int) -> Gpu | None:
        uuid = _string(self._ask("nvmlDeviceGetUUID", handle))
        if not uuid:
            return None
        total = _number(getattr(self._memory(handle), "total", None), _NO_ULONGLONG)
        return Gpu(uuid=uuid, index=index, name=self._name(handle), memory=total or None)

    def _name(self, handle: Any) -> str:
        return _string(self._ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU"

    def _memory(self, handle: Any) -> Any:
        # The first version counts what the driver keeps for itself as used; drivers before 515
        # have only that.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        answer = self._ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        return self._ask("nvmlDeviceGetMemoryInfo", handle) if answer is None else answer

    def _reading(self, card: _Card) -> Reading:
        handle = card.handle
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        milliwatts = _number(self._ask("nvmlDeviceGetPowerUsage", handle), _NO_UINT)
        return Reading(
            card.gpu.uuid,
            memory_used=_number(getattr(self._memory(handle), "used", None), _NO_ULONGLONG),
            utilization=_number(getattr(rates, "gpu", None), _NO_UINT),
            temperature=_number(self._ask("nvmlDeviceGetTemperature", handle, sensor), _NO_UINT),
            power=None if milliwatts is None else milliwatts / 1000,
            processes=self._processes(card),
        )

    def _processes(self, card: _Card) -> tuple[GpuProcess, ...]:
        """Who holds memory, by pid, and how much each has computed since the last time.

        A program that computes and draws is in both lists, each time with all of its memory, so
        the larger number is its memory and the sum would be too much.
        """
        handle = card.handle
        held: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            listed = self._ask(name, handle)
            if listed is None:  # a driver before 510 has only the second version
                listed = self._ask(f"{name}_v2", handle)
            for process in listed or ():
                pid = int(process.pid)
                memory = _number(getattr(process, "usedGpuMemory", None), _NO_ULONGLONG)
                known = held.get(pid)
                held[pid] = known if memory is None else max(memory, known or 0)
        work = self._work(card) if held else None
        return tuple(
            GpuProcess(pid, held[pid], None if work is None else work.get(pid, 0))
            for pid in sorted(held)
        )

    def _work(self, card: _Card) -> dict[int, int] | None:
        """Per cent of the GPU's time by pid, the most of the samples since the last time.

        None where the driver does not tell, as of MIG instances.
        """
        last = self._sampled.get(card.gpu.uuid, 0)
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(card.handle, last)
        except self._errors as error:
            code = getattr(error, "value", None)
            if code in self._gone:
                raise _Lost from None
            return {} if code == self._nvml.NVML_ERROR_NOT_FOUND else None
        work: dict[int, int] = {}
        for sample in samples:
            pid = int(sample.pid)
            work[pid] = max(work.get(pid, 0), int(sample.smUtil))
            last = max(last, int(sample.timeStamp))
        self._sampled[card.gpu.uuid] = last
        return work

    def _ask(self, name: str, *args: Any) -> Any:
        """One question to NVML; None where it has no answer.

        Raises
        ------
        _Lost
            The answer is that the card is gone, or is useless until it is reset.
        """
        try:
            return getattr(self._nvml, name)(*args)
        except self._errors as error:
            if getattr(error, "value", None) in self._gone:
                raise _Lost from None
            return None

    def _why(self, error: Exception) -> str:
        """Why NVML did not start, and what to do."""
        nvml = self._nvml
        reasons = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "No GPU was found: there is no NVIDIA driver "
            "library (libnvidia-ml) on this machine, and other makes are not supported yet.",
            nvml.NVML_ERROR_DRIVER_NOT_LOADED: "No GPU was found: the NVIDIA driver is installed "
            "but not loaded, or this machine has no NVIDIA GPU.",
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The NVIDIA driver was updated while the old "
            "one was loaded, so no GPU can be used; reboot, or unload and load the driver.",
            nvml.NVML_ERROR_NO_PERMISSION: "The NVIDIA driver refuses this user; see who may read "
            "and write /dev/nvidia*.",
        }
        code = getattr(error, "value", None)
        return reasons.get(code, f"The NVIDIA driver does not answer: {_text(error)}.")


def _text(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _string(value: str | bytes | None) -> str:
    """A name as text: some versions of pynvml give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _number(value: int | None, unknown: int) -> int | None:
    return None if value is None or value == unknown else int(value)
