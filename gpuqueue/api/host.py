"""What the host has besides GPUs: processors, memory, room on the disks that jobs use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

__all__ = ["host_told"]


def host_told(state: Path) -> dict[str, Any]:
    """Load of the processors in per cent since somebody last asked, memory and disks in bytes.

    ``cpu`` is None at the first time of asking. ``disks`` are that of the state directory and,
    where it is another, that of the home directory.
    """
    import psutil

    memory = psutil.virtual_memory()
    first = not getattr(host_told, "asked", False)
    load = psutil.cpu_percent(None)
    host_told.asked = True  # type: ignore[attr-defined]
    return {
        "cpu": None if first else load,
        "cpus": os.cpu_count() or 1,
        "memory": {"used": memory.total - memory.available, "total": memory.total},
        "disks": _disks(state),
    }


def _disks(state: Path) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for place in (state, Path.home()):
        try:
            device, usage = place.stat().st_dev, shutil.disk_usage(place)
        except (OSError, RuntimeError):
            continue
        found.setdefault(device, {"path": str(place), "free": usage.free, "total": usage.total})
    return list(found.values())
