"""Signs of life: until when a job held its GPUs whose end nobody saw.

Of a job that dies while a lead looks, that look is at most a second old. Where none led (it was
killed, the machine was off), the job was there at least until the last lead looked last, and until
its newest file was written. What came after that is nobody's: the usage books count only what was
seen.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpuqueue.control.outcome import Outcome
from gpuqueue.control.runners import lives
from gpuqueue.model import Job
from gpuqueue.paths import Home
from gpuqueue.run.files import read_exit

__all__ = ["Signs"]

_BEAT = "lead.beat"


class Signs:
    """What was seen alive, and when. ``began`` is the moment at which this lead took over."""

    def __init__(self, home: Home, began: float) -> None:
        self._home = home
        self._path = home.root / _BEAT
        self._before = _written(self._path)
        self._began = began
        self._seen: dict[int, float] = {}

    def beat(self, now: float) -> None:
        """Tell the next lead that this one looked at its jobs; once a second."""
        try:
            os.utime(self._path, (now, now))
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError:
            pass

    def look(self, job: Job, now: float) -> None:
        """See whether a job's process is there."""
        if job.process and lives(self._home.attempt(job.id, job.attempt), job.process):
            self._seen[job.id] = now

    def forget(self, job: Job) -> None:
        """Its attempt is over."""
        self._seen.pop(job.id, None)

    def end_of(self, job: Job, outcome: Outcome, now: float) -> float:
        """Until when an attempt that is over held what it had, in seconds since the epoch."""
        if outcome.ended:
            return min(now, outcome.ended)
        folder = self._home.attempt(job.id, job.attempt)
        told = (read_exit(folder) or {}).get("ended")
        if told or job.process is None:
            return min(now, told or now)  # one that never began held its room until now
        if job.id in self._seen:
            return self._seen[job.id]
        if job.started is None or job.started >= self._began:
            return now
        signs = [
            self._before or 0.0,
            job.started,
            *(_written(path) or 0.0 for path in _files(folder)),
        ]
        return min(now, max(signs))


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    except OSError:
        return []
