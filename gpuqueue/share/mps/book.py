"""Which jobs are on a GPU's daemon and how much each may have: one small file for each.

The largest of their shares is the most that the daemon lets any process have. A job's own share is
in its environment, which it could lose; then it still has no more than its largest neighbour.
Written and read under the daemon's lock.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from gpuqueue.run.files import is_held, read_json, read_payload, write_json
from gpuqueue.run.kernelshare import has_grant, read_kernel
from gpuqueue.run.process import alive, boot_id, is_elsewhere
from gpuqueue.share.mps.place import Place

__all__ = ["ceiling", "enter", "living", "shares", "strike"]

_ALL = 100


def _entry(place: Place, job: Path) -> Path:
    return place.jobs / hashlib.sha256(str(job).encode()).hexdigest()[:16]


def enter(place: Place, job: Path, percent: int) -> None:
    """Note that a job, known by the directory of this start of it, may have so much."""
    value = {"job": str(job), "percent": percent, "boot": boot_id()}
    write_json(_entry(place, job), value, flush=False)


def strike(place: Place, job: Path) -> bool:
    """Note that it has ended; whether it was there."""
    try:
        _entry(place, job).unlink()
    except FileNotFoundError:
        return False
    return True


def shares(place: Place) -> dict[Path, int]:
    """Per cent by job. Those of an earlier boot, and whose directory is gone, are struck."""
    found = {}
    for path in place.jobs.iterdir():
        value = read_json(path)
        if isinstance(value, dict) and value.get("boot") == boot_id():
            job = Path(value["job"])
            if job.is_dir():
                found[job] = int(value["percent"])
                continue
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return found


def ceiling(place: Place) -> int:
    """The largest share, in per cent; all where there is none."""
    return max(shares(place).values(), default=_ALL)


def living(place: Place, besides: Path | None = None) -> tuple[Path, ...]:
    """Jobs that run, or are about to, other than ``besides``.

    A cell is told its share in a process that was there before, whose environment at start does not
    show it; so it is known by what the job's directory says.
    """
    return tuple(job for job in shares(place) if job != besides and _lives(job))


def _lives(job: Path) -> bool:
    if is_held(job):
        return True
    process = read_kernel(job) if has_grant(job) else read_payload(job)
    return process is not None and (alive(process) or is_elsewhere(process))
