"""Jobs that require their share to be capped: refused at once where nothing here caps it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuqueue.control.holding import FACT, asked_of
from gpuqueue.control.machine import managed_gpus, policy_of
from gpuqueue.errors import DoesNotFit
from gpuqueue.model import Request
from gpuqueue.plan import need_of
from gpuqueue.settings import may_autostart
from gpuqueue.share import Standing, Subject, refusal

if TYPE_CHECKING:
    from gpuqueue.client.local import LocalClient

__all__ = ["check_demands"]

_PATIENCE = 30.0
"""Seconds to wait for a controller to have tried what holds jobs here."""


def check_demands(client: LocalClient, request: Request) -> None:
    """Refuse a request whose demands cannot be met on this machine.

    Where no controller tells in time what can be had, it is not refused here; the controller does
    that when the job's turn has come.

    Raises
    ------
    DoesNotFit
        It says why, and what would help.
    """
    if not request.require:
        return
    fact = _known(client, request)
    if fact is None:
        return
    machine = client.machine()
    gpus = managed_gpus(client.settings, machine.gpus)
    need = need_of(request, gpus, policy_of(client.settings, machine.gpus))
    refused = refusal(
        [Subject(name) for name in request.require],
        {Subject(name): Standing(word) for name, word in fact["standings"].items()},
        {Subject(name): why for name, why in fact["reasons"].items()},
        asked=asked_of(request),
        whole=need.whole,
    )
    if refused:
        raise DoesNotFit("require", refused)


def _known(client: LocalClient, request: Request) -> Any:
    """What a controller that runs has found out; None if none has in time, or all is capped."""
    if not client.wake("hold") and not may_autostart(client.settings):
        return None  # none runs, and none comes
    deadline = time.monotonic() + _PATIENCE
    with client.watch() as watch:
        while time.monotonic() < deadline:
            fact = client.store.fact(FACT)
            if client.lead() is not None and fact:
                if not fact.get("trying"):
                    return fact
                # what is still tried is of no concern where all that is required is seen to
                if set(asked_of(request)) >= set(request.require) <= set(fact.get("capped", ())):
                    return None
            watch.wait(0.1)
    return None
