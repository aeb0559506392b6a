"""Whether GPU memory can be moved to the host on this machine: tried once since it was started."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuqueue.control.sight import Sight
from gpuqueue.model import ACTIVE, Gpu, Job
from gpuqueue.run.devicecanary import Proof, try_out
from gpuqueue.run.devicestate import DeviceTool, find_tool
from gpuqueue.run.process import boot_id
from gpuqueue.store import Store

__all__ = ["PROOF", "Prover", "known_proof", "movable"]

PROOF = "device memory"
"""The fact in the store that holds what came of the trial."""
_ROOM = 4 << 30
"""Bytes that must be free on the GPU that it is tried on."""


def _driver() -> str:
    """Which driver is loaded; empty where it does not say."""
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    return ""


def _proof_in(fact: Any, key: list[str]) -> Proof | None:
    """What came of a trial with this key; None where another version wrote what is not known."""
    with contextlib.suppress(KeyError, TypeError):
        return Proof(**fact["proof"]) if fact["key"] == key else None
    return None


def known_proof(store: Store) -> Proof | None:
    """What came of the last trial, if it was made since the machine started, with this driver."""
    fact = store.fact(PROOF)
    with contextlib.suppress(KeyError, TypeError):
        if fact["key"][:2] == [boot_id(), _driver()]:
            return Proof(**fact["proof"])
    return None


def movable(gpus: Iterable[Gpu], tool: DeviceTool) -> list[Gpu]:
    """Those whose driver may know how; pretend ones if there is a program for them."""
    named = len(tool.words) == 1
    return [gpu for gpu in gpus if gpu.vendor == "nvidia" and (named or not gpu.fake)]


class Prover:
    """Tries it in a thread, on a GPU that no job holds; what came of it is kept in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.tool: DeviceTool = find_tool()
        self._proof: Proof | None = None
        self._key: list[str] = []
        self._trial: threading.Thread | None = None
        self._found: list[Proof] = []

    def look(self, sight: Sight, jobs: Iterable[Job]) -> None:
        """Take in what a trial has found; begin one where nothing is known."""
        if self._trial is not None:
            if self._trial.is_alive():
                return
            self._trial = None
            self._proof = self._found.pop() if self._found else Proof("the trial broke off")
            self._store.set_fact(PROOF, {"key": self._key, "proof": self._proof.to_dict()})
            return
        gpus = self._gpus(sight)
        key = [boot_id(), _driver(), *self.tool.words, *sorted(gpu.uuid for gpu in gpus)]
        if not gpus or key == self._key:
            return
        if (known := _proof_in(self._store.fact(PROOF), key)) is not None:
            self._proof, self._key = known, key
            return
        if (gpu := self._idle(sight, gpus, jobs)) is not None:
            self._proof, self._key = None, key
            self._begin(sight, gpu)

    def problem(self, sight: Sight) -> str | None:
        """Why it cannot be relied on; empty where it can, None where there is nothing to move."""
        if not self._gpus(sight):
            return None
        if self._proof is None:
            return "it has not been tried yet whether it can be moved here"
        return self._proof.problem and f"it cannot be moved here ({self._proof.problem})"

    def held(self, sight: Sight, pid: int) -> dict[str, int]:
        """Bytes that a process is seen to hold of GPUs now. Asks the driver: not for the loop."""
        return {
            reading.gpu: process.memory
            for reading in sight.devices.read()
            for process in reading.processes
            if process.pid == pid and process.memory
        }

    def _gpus(self, sight: Sight) -> list[Gpu]:
        return [] if sight.machine.silent else movable(sight.machine.gpus, self.tool)

    def _idle(self, sight: Sight, gpus: list[Gpu], jobs: Iterable[Job]) -> Gpu | None:
        held = {
            uuid
            for job in jobs
            if job.state in ACTIVE and job.placement is not None
            for uuid in job.placement.gpus
        }
        used = {reading.gpu: reading.memory_used for reading in sight.machine.readings}
        for gpu in gpus:
            taken = used.get(gpu.uuid)
            known = gpu.memory is not None and taken is not None
            if gpu.uuid not in held and known and (gpu.memory or 0) - (taken or 0) >= _ROOM:
                return gpu
        return None

    def _begin(self, sight: Sight, gpu: Gpu) -> None:
        def work() -> None:
            visible = str(gpu.index) if gpu.fake else gpu.uuid
            proof = try_out(self.tool, visible, lambda pid: sum(self.held(sight, pid).values()))
            self._found.append(proof)

        self._trial = threading.Thread(target=work, name="gpuqueue-proving", daemon=True)
        self._trial.start()
