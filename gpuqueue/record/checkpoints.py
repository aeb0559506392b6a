"""The checkpoints that a job has left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuqueue.checkpoint import complete_checkpoints

__all__ = ["captured"]

_NAMED = "GPUQUEUE_CHECKPOINT_DIR"


def captured(folder: Path, spec: Mapping[str, Any] | None) -> list[Path]:
    """The complete checkpoints of a job, the newest last.

    Parameters
    ----------
    folder
        The job's directory.
    spec
        What was submitted: it may name another place for them. None if that is gone.
    """
    named = ((spec or {}).get("env") or {}).get(_NAMED)
    place = folder / "checkpoints"
    if named and spec:
        place = Path(spec["cwd"]) / os.path.expanduser(named)
    return complete_checkpoints(place)
