"""What was tried here, so that it need not be tried again until something changes.

A trial takes seconds and room on a GPU. What it has shown holds for this boot, this driver, this
user and this gpuqueue. A failure may pass, so it is believed for minutes only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuqueue.about import __version__
from gpuqueue.run.files import read_json, write_json
from gpuqueue.run.process import boot_id
from gpuqueue.share.mechanism import Probe

__all__ = ["remembered"]

_FAILURE_HOLDS = 300.0


def _driver() -> str:
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
        return text.split("\n", 1)[0]
    return ""


def remembered(folder: Path, name: str, try_out: Callable[[], Probe], *facts: Any) -> Probe:
    """What a trial has shown, done now if it was not before.

    Parameters
    ----------
    folder
        Where to keep it.
    name
        What was tried, as the name of a file.
    facts
        What it depends on besides the machine: numbers and texts.
    """
    path = folder / f"proof-{name}.json"
    key = [boot_id(), _driver(), os.geteuid(), __version__, *map(str, facts)]
    known = read_json(path)
    if isinstance(known, dict) and known.get("key") == key:
        age = time.time() - known["at"]
        if known["usable"] or 0 <= age < _FAILURE_HOLDS:
            told = {name: known[name] for name in ("usable", "reason", "figure", "beside")}
            return Probe(**told)
    probe = try_out()
    with contextlib.suppress(OSError):  # it is tried again, then
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        told = asdict(probe)
        del told["each"]
        write_json(path, {"key": key, "at": time.time(), **told}, flush=False)
    return probe
