"""A cap on the device memory of a whole job, across its processes; NVIDIA, on Linux.

A small library is loaded into the job's processes ahead of CUDA. It counts what they allocate and
refuses what is over the cap with CUDA's own out-of-memory error, which frameworks know how to
handle. ``docs/memcap.md`` says what it covers and what it does not.

    >>> import tempfile
    >>> from gpuqueue.share import memcap
    >>> card = "GPU-00000000-0000-0000-0000-000000000001"
    >>> job = Path(tempfile.mkdtemp())
    >>> memcap.create(memcap.ledger_of(job), {card: 6 << 30})
    >>> memcap.read(job)[0].limit // 2**30
    6
    >>> memcap.resize(job, {card: 4 << 30})[0].limit // 2**30
    4
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from gpuqueue.errors import MemoryCapError
from gpuqueue.share.memcap import ledger as _ledger
from gpuqueue.share.memcap.building import build
from gpuqueue.share.memcap.ledger import LARGEST, UNIT, Holder, Usage, create

__all__ = [
    "LARGEST",
    "LEDGER",
    "PRELOAD",
    "UNIT",
    "Holder",
    "Usage",
    "build",
    "create",
    "environment",
    "holders",
    "ledger_of",
    "read",
    "release",
    "resize",
]

LEDGER = "GPUQUEUE_MEMCAP"
"""The variable that names the ledger to the library."""

PRELOAD = "LD_PRELOAD"


def ledger_of(job: Path) -> Path:
    """The ledger of a job, in its own directory."""
    return job / "memcap"


def environment(
    job: Path,
    caps: Mapping[str, int | None],
    *,
    library: Path,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Make a job's ledger, and the variables that put its processes under it.

    Parameters
    ----------
    job
        Directory of this start of the job, on a local disk.
    caps
        Bytes by UUID of each of its GPUs, for all its processes together; None: count only.
    library
        What `build` has returned.
    base
        The job's environment, for what it preloads itself: that stays, after this library.

    Raises
    ------
    InvalidRequest
        A name that is no UUID, or a negative cap.
    MemoryCapError
        The ledger cannot be written, or the library is not there: the dynamic linker would only
        print a line and start the program without a cap.
    """
    if not library.is_file():
        raise MemoryCapError(f"{library}: the memory-cap library is gone; build it anew.")
    create(ledger_of(job), caps)
    own = str(library)
    # blanks and colons both separate in LD_PRELOAD
    others = [
        word
        for word in (base or {}).get(PRELOAD, "").replace(":", " ").split()
        if Path(word).name != library.name
    ]
    return {PRELOAD: ":".join([own, *others]), LEDGER: str(ledger_of(job))}


def read(job: Path, gpus: tuple[str, ...] = ()) -> tuple[Usage, ...]:
    """What a job holds now of each of its GPUs; see `gpuqueue.share.memcap.ledger.read`."""
    return _ledger.read(ledger_of(job), gpus)


def holders(job: Path, gpus: tuple[str, ...] = ()) -> tuple[Holder, ...]:
    """Which of a job's processes hold how much; see `gpuqueue.share.memcap.ledger.holders`."""
    return _ledger.holders(ledger_of(job), gpus)


def resize(job: Path, caps: Mapping[str, int | None]) -> tuple[Usage, ...]:
    """Other caps for a running job, at once; see `gpuqueue.share.memcap.ledger.resize`."""
    return _ledger.resize(ledger_of(job), caps)


def release(job: Path) -> None:
    """Remove the ledger of a job that has ended. Processes that still map it go on counting."""
    with contextlib.suppress(FileNotFoundError):
        ledger_of(job).unlink()
