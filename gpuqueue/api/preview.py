"""What would become of a job if it were queued now."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuqueue.client.status import wait_to_dict
from gpuqueue.control.machine import managed_gpus, policy_of
from gpuqueue.errors import DoesNotFit
from gpuqueue.model import Job, JobKind, JobState, Origin
from gpuqueue.plan import WaitReason, forecast, never_fits
from gpuqueue.store import plain

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient, Options, Payload

__all__ = ["previewed"]

_NUMBER = 2**62


def previewed(
    client: LocalClient, payload: Payload, options: Options, owner: str | None
) -> dict[str, Any]:
    """Plan on the queue as it is with one job more.

    Learned run times and memory do not count: those are looked up when a job is queued.

    Raises
    ------
    DoesNotFit
        This machine can never run it.
    """
    settings, machine, live = client.settings, client.machine(), client.store.live()
    gpus = managed_gpus(settings, machine.gpus)
    if sentence := never_fits(options.request, gpus, policy_of(settings, machine.gpus)):
        raise DoesNotFit("request", sentence)
    request = options.request
    if options.to_front:
        waiting = [job.request.priority for job in live if job.state is JobState.QUEUED]
        request = replace(request, priority=max([request.priority, 0, *waiting]) + 1)
    trial = Job(
        id=_NUMBER,
        kind=JobKind(payload.kind),
        state=JobState.QUEUED,
        request=request,
        tag=options.tag or payload.tag,
        owner=owner or "",
        command=payload.command,
        cwd=payload.cwd,
        origin=Origin(),
        submitted=time.time(),
        position=_NUMBER,
    )
    plan = client.plan([*live, trial])
    wait = plan.waits.get(trial.id)
    index = {gpu.uuid: gpu.index for gpu in gpus}
    where: tuple[str, ...] = ()
    end = None
    for start in plan.starts:
        if start.job == trial.id:
            where = start.placement.gpus
            eta = options.request.eta
            end = None if eta is None else plan.now + eta
    if not where:
        for booking in forecast(plan, len(live) + 1):
            if booking.job == trial.id:
                where, end = booking.gpus, booking.end
    return {
        "at": plan.now,
        "command": trial.command,
        "cwd": trial.cwd,
        "tag": trial.tag,
        "kind": str(trial.kind),
        "request": plain(trial.request) | {"preset": str(trial.request.preset)},
        "now": wait is not None and wait.reason is WaitReason.STARTING,
        "wait": wait_to_dict(wait),
        "gpus": [index[uuid] for uuid in where],
        "end": end,
    }
