"""Who leads now, as a fact in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuqueue.model import ProcessId
from gpuqueue.run.process import alive
from gpuqueue.store import Store

__all__ = ["LEAD", "lead_of"]

LEAD = "lead"
"""Name of the fact."""


def lead_of(store: Store) -> Mapping[str, Any] | None:
    """Who leads now: ``pid``, ``kind``, ``since``, ``version``, ``url``; None if nobody does."""
    fact: Mapping[str, Any] | None = store.fact(LEAD)
    if fact and alive(ProcessId(fact["pid"], fact["start"], fact["boot"])) and fact["leading"]:
        return fact
    return None
