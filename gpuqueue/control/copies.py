"""Commands that wait, beside the database: if that is lost, people are told what has not run.

A submit must not wait for this, and most commands start at once; so it is done for those that have
waited a while, a few at a time, and not flushed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable

from gpuqueue.model import Job, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.run.files import SPEC, read_json, write_json
from gpuqueue.store import Store

log = logging.getLogger("gpuqueue")

__all__ = ["Copies"]

_WAITED = 2.0
"""Seconds after which a command's spec is copied."""
_LONGEST = 0.01
"""Seconds that one look may spend on it."""


class Copies:
    """Remembers only which are there."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._store = store
        self._there: set[int] = set()
        self._trouble = False

    def keep(self, jobs: Iterable[Job], now: float) -> None:
        """Write the specs of waiting commands into their directories, as time allows.

        One that cannot be written is tried again the next time, and costs the others nothing.
        """
        deadline = time.monotonic() + _LONGEST
        waiting = [job for job in jobs if job.state is JobState.QUEUED]
        self._there &= {job.id for job in waiting}
        trouble: OSError | None = None
        for job in waiting:
            young = now - job.submitted < _WAITED
            if job.kind is not JobKind.SCRIPT or young or job.id in self._there:
                continue
            try:
                self._copy(job)
                self._there.add(job.id)
            except OSError as error:
                trouble = error
            if time.monotonic() > deadline:
                break
        if trouble is not None and not self._trouble:  # said once while it lasts
            log.warning("gpuqueue: a waiting command could not be copied: %s", trouble)
        self._trouble = trouble is not None

    def _copy(self, job: Job) -> None:
        path = self._home.job(job.id) / SPEC
        spec = json.loads(self._store.spec(job.id) or "null")
        # another may be there, of a job that was lost with the number
        if spec is not None and read_json(path) != spec:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_json(path, spec, flush=False)
