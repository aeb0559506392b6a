"""The file that says that an attempt's GPU memory is on the host, or on its way there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from gpuqueue.model import ProcessId
from gpuqueue.run.files import DEVICE, read_json, write_json

__all__ = ["Parked", "forget_parked", "parked_in", "write_parked"]


@dataclass(frozen=True, slots=True)
class Parked:
    """Whose memory it is, and how many bytes of each GPU (by UUID) it had before.

    ``left`` is what it was seen to hold there afterwards.
    """

    process: ProcessId
    memory: Mapping[str, int]
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.memory.values())


def parked_in(folder: str | os.PathLike[str]) -> Parked | None:
    """What of an attempt's memory is on the host; None if nothing."""
    found = read_json(os.path.join(folder, DEVICE))
    if not found:
        return None
    with contextlib.suppress(KeyError, TypeError):
        process = ProcessId(**found["process"])
        return Parked(process, dict(found["memory"]), dict(found["left"]))
    return None


def write_parked(folder: str | os.PathLike[str], parked: Parked) -> None:
    """Note it, before anything is moved.

    Raises
    ------
    OSError
        There is no room.
    """
    write_json(os.path.join(folder, DEVICE), asdict(parked), flush=False)


def forget_parked(folder: str | os.PathLike[str]) -> None:
    """It is back, or was never moved."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, DEVICE))
