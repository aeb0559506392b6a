"""Finds out what code jobs run, beside the controller's loop.

git is asked once for all jobs of a repository that began since it was asked last, and rests ten
times as long as it took: a thousand short jobs ask it as seldom as one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import queue
import threading
import time
from dataclasses import dataclass
from typing import TypeVar

from gpuqueue.record.facts import Code
from gpuqueue.record.git import ask_git, is_tracked, top_of
from gpuqueue.record.versions import version_of
from gpuqueue.run.files import SPEC, read_json

__all__ = ["Recorder"]

T = TypeVar("T")

log = logging.getLogger("gpuqueue")

_GATHER = 0.2
"""Seconds for which starts are gathered."""
_LAST = 1.0
_REST = 10.0
"""Rests so many times as long as the looks took."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    job: int
    folder: str
    spec: str | None


class Recorder:
    """``ask`` and ``take`` cost nothing worth speaking of; the work is done in a thread."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[tuple[int, Code]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def ask(self, job: int, folder: str, spec: str | None) -> None:
        """A job begins now; ``spec`` is its text where that is not in its directory."""
        self._asked.put(_Wanted(job, folder, spec))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpuqueue-record", daemon=True)
            self._thread.start()

    def take(self) -> list[tuple[int, Code]]:
        """What has been found since it was taken last."""
        return _all_of(self._found)

    def close(self) -> None:
        """End the thread, once it has looked for what was asked; a second at most.

        What has been found can still be taken. What has not is not recorded.
        """
        self._closing.set()
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(_LAST)

    def _work(self) -> None:
        while (first := self._asked.get()) is not None:
            self._closing.wait(_GATHER)
            began = time.monotonic()
            look = _Look()
            asked = [first, *_all_of(self._asked)]
            for one in asked:
                if one is not None:
                    self._record(one, look)
            if None in asked:
                return
            self._closing.wait(_REST * (time.monotonic() - began))

    def _record(self, wanted: _Wanted, look: _Look) -> None:
        try:
            code = look.code_of(wanted)
        except Exception:  # it must not keep the next ones from being recorded
            log.exception("gpuqueue: the code of job %s is not recorded", wanted.job)
        else:
            self._found.put((wanted.job, code))


class _Look:
    """One look at the repositories of some jobs: what was asked once holds for all of them."""

    def __init__(self) -> None:
        self._top = functools.cache(top_of)
        self._tree = functools.cache(ask_git)
        self._tracked = functools.cache(is_tracked)

    def code_of(self, wanted: _Wanted) -> Code:
        now = time.time()
        spec = (
            json.loads(wanted.spec) if wanted.spec else read_json(os.path.join(wanted.folder, SPEC))
        )
        if spec is None:
            return Code(now, note="what was submitted is gone")
        version = None
        what = path = note = ""
        try:
            version, what, path = version_of(spec, wanted.folder)
        except (OSError, ValueError, KeyError) as error:
            note = f"its code cannot be read ({error})"
        top = self._top(os.path.dirname(path) if path else spec["cwd"])
        if not top:
            return Code(now, version, what, note=note or "not in a git repository")
        tree = self._tree(top)
        dirty = tree.dirty
        if path and dirty is False:
            dirty = not self._tracked(top, path)
        return Code(now, version, what, tree.commit, tree.branch, dirty, note or tree.problem)


def _all_of(items: queue.SimpleQueue[T]) -> list[T]:
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(items.get_nowait())
    return found
