"""SQLite (WAL): jobs, events, intents, placements, facts. The only room with SQL."""

from gpuqueue.store.codec import (
    gpu_from,
    job_to_dict,
    placement_from,
    plain,
    reading_from,
    request_from,
)
from gpuqueue.store.jobs import LIVE
from gpuqueue.store.placements import Stay
from gpuqueue.store.rescue import RESCUE
from gpuqueue.store.sought import Sought
from gpuqueue.store.store import Store
from gpuqueue.store.submit import Draft

__all__ = [
    "LIVE",
    "RESCUE",
    "Draft",
    "Sought",
    "Stay",
    "Store",
    "gpu_from",
    "job_to_dict",
    "placement_from",
    "plain",
    "reading_from",
    "request_from",
]
