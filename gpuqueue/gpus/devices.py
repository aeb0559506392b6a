"""The protocol that every kind of GPU speaks, and the answer where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuqueue.model import Gpu, Reading

__all__ = ["Devices", "NoDevices", "visible"]


class Devices(Protocol):
    """The GPUs of this machine.

    What there is is found once, when the object is made; a GPU that is added, or a card that is
    partitioned anew, shows after the next `gpuqueue.gpus.detect`.
    """

    @property
    def problem(self) -> str:
        """Why there are no GPUs, or what is amiss with them, in plain sentences; '' if all is well.

        It may change with every `read`.
        """
        ...

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs in PCI bus order, numbered from 0."""
        ...

    def read(self) -> tuple[Reading, ...]:
        """What each GPU says of itself now, in the order of `gpus`.

        May be called from any thread. Whatever the driver does not tell is None; it never raises.
        """
        ...

    def environment(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        """Environment variables with which a process sees exactly these GPUs, in this order."""
        ...

    def close(self) -> None:
        """Let go of the driver. May be called twice; `read` then answers with None everywhere."""
        ...


def visible(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Environment variables with which a process sees exactly these GPUs, in this order.

    The bus order is fixed in any case, so that numbers printed by a job are those that
    ``nvidia-smi`` prints; CUDA's own default is fastest first. AMD's and Intel's have variables of
    their own beside that.
    """
    names = [str(gpu.index) if gpu.fake else gpu.uuid for gpu in gpus]
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}
    for vendor, name in (("amd", "HIP_VISIBLE_DEVICES"), ("intel", "ZE_AFFINITY_MASK")):
        if own := [str(gpu.index) for gpu in gpus if gpu.vendor == vendor]:
            env[name] = ",".join(own)
    if not names:
        # To HIP an empty list means "not set", so it would show every card; it stops reading at
        # the first invalid number. Level Zero has no value that hides all of a machine's cards,
        # so ZE_AFFINITY_MASK stays the user's.
        env["HIP_VISIBLE_DEVICES"] = "-1"
    return env


class NoDevices:
    """No GPUs, and the reason why."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    @property
    def problem(self) -> str:
        """Why there are none."""
        return self._problem

    def gpus(self) -> tuple[Gpu, ...]:
        """No GPUs."""
        return ()

    def read(self) -> tuple[Reading, ...]:
        """No readings."""
        return ()

    def environment(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        """Environment variables that hide every GPU that can be hidden."""
        return visible(gpus)

    def close(self) -> None:
        """Nothing to let go of."""
