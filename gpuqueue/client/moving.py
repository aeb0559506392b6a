"""Whether GPU memory of frozen jobs can be moved to the host here: what the trial came to."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any

from gpuqueue.control.machine import machine_of
from gpuqueue.control.proving import known_proof, movable
from gpuqueue.paths import Home
from gpuqueue.run.devicestate import find_tool
from gpuqueue.settings import load_settings
from gpuqueue.store import Store
from gpuqueue.units import format_bytes

__all__ = ["Moving", "moving"]


@dataclass(frozen=True, slots=True)
class Moving:
    """What is known of it.

    ``standing`` is ``proven``, ``failed``, ``untried`` or ``off``; ``words`` say more for people.
    """

    standing: str
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def moving(home: Home) -> Moving | None:
    """What the last trial came to; None on a machine that has nothing to move.

    Nothing is tried: the controller does that, on an idle GPU.
    """
    settings = load_settings(home.config)
    with contextlib.closing(Store(home.database, patience=2.0)) as store:
        if not movable(machine_of(store, settings).gpus, find_tool()):
            return None
        proof = known_proof(store)
    if not settings.move_gpu_memory:
        return Moving("off", "turned off by the setting move_gpu_memory; it stays where it is")
    if proof is None:
        return Moving(
            "untried",
            "not tried since the machine was started; a controller tries it on a GPU that no job "
            "holds, and until then it stays where it is",
        )
    if proof.problem:
        return Moving("failed", f"tried, and not to be relied on: {proof.problem}; it stays")
    return Moving(
        "proven",
        f"seen to work: {format_bytes(proof.freed)} left the GPU in {proof.out:.1f} s and were "
        f"back as they were in {proof.back:.1f} s",
    )
