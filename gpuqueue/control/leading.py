"""Who leads now, as a fact in the store."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuqueue.model import ProcessId
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, is_elsewhere
from gpuqueue.store import Store

__all__ = ["LEAD", "lead_of"]

LEAD = "lead"
"""Name of the fact."""


def lead_of(store: Store) -> Mapping[str, Any] | None:
    """Who leads now: ``pid``, ``kind``, ``since``, ``version``, ``url``; None if nobody does."""
    fact: Mapping[str, Any] | None = store.fact(LEAD)
    if not fact or not fact["leading"]:
        return None
    process = ProcessId(fact["pid"], fact["start"], fact["boot"])
    if alive(process) or (is_elsewhere(process) and _is_locked(Home(store.path.parent).lock)):
        return fact
    return None


def _is_locked(path: Path) -> bool:
    """Whether somebody holds the lead's lock, in whichever container."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(handle)
    return False
