"""The memory cap as a mechanism: `gpuqueue.share.memcap` behind the common protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from gpuqueue.errors import GpuqueueError
from gpuqueue.model import ProcessId
from gpuqueue.share import memcap
from gpuqueue.share.mechanism import Bound, Effect, Probe, Standing, Subject
from gpuqueue.share.memcap.canary import TRIED, try_out
from gpuqueue.share.proofs import remembered

__all__ = ["MemoryCap"]


class MemoryCap:
    """Caps the device memory of all processes of a job together; NVIDIA and AMD, on Linux.

    Parameters
    ----------
    folder
        Where to keep the library.
    gpu
        UUID of a GPU to try it on.
    base
        The environment that `probe` starts from; this process's where it is None.
    vendor
        Whose GPU that is: ``nvidia`` or ``amd``.
    """

    name = "memory cap"
    subject = Subject.MEMORY
    standing = Standing.CAPPED
    reports = True
    at_start = True
    scope = "all processes of a job together"
    changes = Effect.NOW
    bypass = "a process without the job's LD_PRELOAD, and a statically linked program"

    def __init__(
        self,
        folder: Path,
        gpu: str,
        base: Mapping[str, str] | None = None,
        vendor: str = "nvidia",
    ) -> None:
        self._vendor = vendor
        self._folder = folder
        self._gpu = gpu
        self._base = base
        self._library: Path | None = None

    @property
    def library(self) -> Path | None:
        """The library, once it was seen to work; for a process that is there before its job."""
        return self._library

    def probe(self) -> Probe:
        """Build the library if need be, and see a program refused what is over its cap."""
        try:
            library = memcap.build(self._folder)
        except GpuqueueError as error:
            return Probe(usable=False, reason=str(error))
        probe = remembered(
            self._folder, f"memcap-{self._gpu}", lambda: self._trial(library), library.name
        )
        if probe.usable:
            self._library = library
        return probe

    def _trial(self, library: Path) -> Probe:
        try:
            wrong = try_out(library, self._gpu, self._base, self._vendor)
        except GpuqueueError as error:
            return Probe(usable=False, reason=str(error))
        if wrong:
            return Probe(usable=False, reason=f"The memory cap does not hold here: {wrong}.")
        reason = "A program was refused what was over its cap."
        return Probe(usable=True, reason=reason, figure=f"{TRIED} on {self._gpu}")

    def environment(self, bound: Bound) -> Mapping[str, str]:
        """The ledger and what puts the job under it; see `gpuqueue.share.memcap.environment`."""
        if not bound.caps:
            return {}
        library = self._library or memcap.build(self._folder)
        return memcap.environment(bound.folder, bound.caps, library=library, base=bound.base)

    def apply(self, bound: Bound, process: ProcessId) -> None:
        """Nothing: the environment does it."""

    def resize(self, bound: Bound) -> Effect:
        """Write the caps into the ledger."""
        memcap.resize(bound.folder, bound.caps)
        return Effect.NOW

    def verify(self, bound: Bound, users: Collection[int]) -> tuple[str, ...]:
        """Processes that use a GPU and do not count in the ledger, and GPUs that are over."""
        counted = {holder.pid for holder in memcap.holders(bound.folder)}
        found = [
            f"Process {pid} uses a GPU and is not under the job's memory cap: it was started "
            "without the job's environment, or is linked statically."
            for pid in sorted(set(users) - counted)
        ]
        over = [
            f"The job holds {usage.over} bytes more of {usage.gpu} than its cap of {usage.limit}; "
            "nothing more is given to it."
            for usage in memcap.read(bound.folder, tuple(bound.caps))
            if usage.over
        ]
        return (*found, *over)

    def release(self, bound: Bound) -> None:
        """Remove the ledger."""
        memcap.release(bound.folder)
