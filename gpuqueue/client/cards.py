"""What jobs with parts of this machine's GPUs are held to: tried here, GPU by GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from gpuqueue.control.machine import managed_gpus
from gpuqueue.gpus import detect
from gpuqueue.model import Gpu
from gpuqueue.paths import Home, find_home
from gpuqueue.settings import Settings, load_settings
from gpuqueue.share import ladder_for
from gpuqueue.share.report import Card, Line, card_of

__all__ = ["FOLDER", "Card", "Line", "cards", "cards_of"]

FOLDER = "memcap"
"""In the state directory: the memory cap's library, and what was proven."""


def cards(home: Home | None = None) -> tuple[tuple[Card, ...], str]:
    """The GPUs that the queue uses, and why there are none or what is amiss with them.

    What was not tried since the machine was started is tried now, on the GPUs, which takes seconds.
    """
    home = home or find_home()
    settings: Settings = load_settings(home.config)
    devices = detect(settings.fake_gpus)
    with contextlib.closing(devices):
        found = managed_gpus(settings, devices.gpus())
        problem = devices.problem
    return cards_of(found, home), problem


def cards_of(gpus: Sequence[Gpu], home: Home) -> tuple[Card, ...]:
    """The same for GPUs that are known already."""
    made: dict[str, Card] = {}
    for vendor in dict.fromkeys(gpu.vendor for gpu in gpus):
        own = [gpu for gpu in gpus if gpu.vendor == vendor]
        ladder = ladder_for(own, home.root / FOLDER)
        made |= {gpu.uuid: card_of(gpu, ladder) for gpu in own}
    return tuple(made[gpu.uuid] for gpu in gpus)
