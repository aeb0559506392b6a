"""What a process is told to be under MPS."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from gpuqueue.model import WHOLE
from gpuqueue.share.mps.control import PERCENTAGE, PIPE
from gpuqueue.share.mps.place import Place

__all__ = ["LIMIT", "NOWHERE", "own_percent", "percent_of", "variables"]

LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
NOWHERE = "none"
"""A pipe directory where there is never a daemon: CUDA then does without one."""

_MIB = 1 << 20


def percent_of(compute: int) -> int:
    """Thousandths of a GPU as whole per cent, rounded down; 1 at least, for 0 would be none."""
    return max(1, compute * 100 // WHOLE)


def own_percent(base: Mapping[str, str]) -> int:
    """What the job's user has set, in per cent."""
    with contextlib.suppress(ValueError, OverflowError):
        return min(100, max(1, int(float(base[PERCENTAGE])))) if PERCENTAGE in base else 100
    return 100


def variables(place: Place, percent: int, memory: int | None) -> dict[str, str]:
    """The environment of a process under a daemon.

    Parameters
    ----------
    memory
        The most device memory of one process, in bytes, its context included; None: no limit.
    """
    made = {
        PIPE: str(place.pipe),
        PERCENTAGE: str(percent),
        # the daemon was given one GPU by its UUID, and its clients must name it in the same way
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": place.gpu,
    }
    if memory is not None:
        # one entry alone: one for a GPU that the process does not see makes it ignore all
        made[LIMIT] = f"0={max(1, memory // _MIB)}M"
    return made
