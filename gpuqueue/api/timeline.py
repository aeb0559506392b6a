"""Who has held, holds and is expected to hold which GPU, as bars."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuqueue.control.machine import managed_gpus
from gpuqueue.plan import ends_of, forecast

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient

__all__ = ["timeline_told"]


def timeline_told(client: LocalClient, back: int, limit: int) -> dict[str, Any]:
    """The last ``back`` seconds, now, and what is foreseen; at most ``limit`` bars of each."""
    live, plan = client.looked()
    jobs = {job.id: job for job in live}
    ends = ends_of(plan)
    bars: list[dict[str, Any]] = []
    for job_id, tag, state, gpu, compute, since, until in client.store.occupied(
        plan.now - back, limit
    ):
        now = until is None
        bars.append(
            {
                "job": job_id,
                "tag": tag,
                "state": state,
                "gpu": gpu,
                "compute": compute,
                "when": "now" if now else "past",
                "start": since,
                "end": ends.get(job_id) if now else until,
            }
        )
    for booking in forecast(plan, limit):
        job = jobs[booking.job]
        bars += [
            {
                "job": job.id,
                "tag": job.tag,
                "state": str(job.state),
                "gpu": gpu,
                "compute": None,
                "when": "next",
                "start": booking.start,
                "end": booking.end,
            }
            for gpu in booking.gpus
        ]
    gpus = managed_gpus(client.settings, client.machine().gpus)
    return {
        "at": time.time(),
        "gpus": [{"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name} for gpu in gpus],
        "bars": bars,
    }
