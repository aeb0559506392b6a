"""What the machine has: its GPUs, what they say of themselves, what a job on them sees.

`detect` gives one `Devices`; nobody above this room asks who made a GPU.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuqueue.gpus.devices import Devices, NoDevices
from gpuqueue.gpus.fake import FakeDevices
from gpuqueue.gpus.nvidia import NvidiaDevices

__all__ = ["Devices", "FakeDevices", "NoDevices", "NvidiaDevices", "detect"]

FAKE_GPUS = "GPUQUEUE_FAKE_GPUS"
FAKE_PROCS = "GPUQUEUE_FAKE_PROCS"


def detect(fake: str = "") -> Devices:
    """Find this machine's GPUs: the pretend ones if there is a spec for them, else the real ones.

    Never fails for want of a GPU or a driver: the answer then has no GPUs and its ``problem``
    says what was tried.

    Parameters
    ----------
    fake
        The setting ``fake_gpus``; see `gpuqueue.gpus.fake` for its grammar. The environment
        variable ``GPUQUEUE_FAKE_GPUS`` wins over it unless empty. ``none`` means no GPUs at all.

    Raises
    ------
    InvalidRequest
        The spec cannot be understood.
    """
    from_environment = os.environ.get(FAKE_GPUS, "").strip()
    field = FAKE_GPUS if from_environment else "fake_gpus"
    spec = from_environment or fake.strip()
    if not spec:
        return NvidiaDevices()
    if spec.lower() == "none":
        return NoDevices(f"GPUs are turned off here ({field} is 'none').")
    processes = os.environ.get(FAKE_PROCS, "")
    return FakeDevices(spec, processes=Path(processes) if processes else None, field=field)
