"""A line under the next cell that runs, for each job of this notebook that has ended since.

Loading this imports nothing. A notebook that has queued nothing pays a look into ``sys.modules``
for each cell; one that has, a look at the number of the newest event.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient
    from gpuqueue.model import Job

__all__ = ["Endings", "unwatch", "watch"]

_KEPT = "_gpuqueue_endings"
_CLIENT = "gpuqueue.client"
_PAGE = 1000
_LINES = 8


def watch(shell: Any) -> None:
    """Look after each cell."""
    if os.environ.get("GPUQUEUE_ATTEMPT_DIR"):
        return  # a job is not where anybody reads
    endings = Endings(shell)
    setattr(shell, _KEPT, endings)
    shell.events.register("pre_run_cell", endings.before)
    shell.events.register("post_run_cell", endings.after)


def unwatch(shell: Any) -> None:
    """Look no more; harmless if nobody looks."""
    endings = getattr(shell, _KEPT, None)
    if endings is None:
        return
    delattr(shell, _KEPT)
    for name, hook in (("pre_run_cell", endings.before), ("post_run_cell", endings.after)):
        with contextlib.suppress(ValueError):
            shell.events.unregister(name, hook)


class Endings:
    """Knows which ends have been told."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._seen: int | None = None
        self._began = time.time()

    def before(self, *_info: Any) -> None:
        """A cell begins."""
        self._began = time.time()

    def after(self, *_result: Any) -> None:
        """A cell has run: tell what has ended. Nothing that goes wrong here is the cell's."""
        if _CLIENT not in sys.modules or not self._read_by_a_person():
            return
        with contextlib.suppress(Exception):
            self._tell()

    def _read_by_a_person(self) -> bool:
        """Whether cells come from somebody who looks on.

        nbclient and papermill run a notebook without input from anybody (``allow_stdin`` of their
        requests is false), and what they keep must not depend on who else used the GPUs.
        """
        if "GPUQUEUE_ATTEMPT_DIR" in os.environ:
            return False
        kernel = getattr(self._shell, "kernel", None)
        if kernel is None:
            return bool(sys.stdout.isatty())
        return bool(getattr(kernel, "_allow_stdin", False))

    def _tell(self) -> None:
        from gpuqueue.client import default_client
        from gpuqueue.run.ended import end_words

        client = default_client()
        ended = [job for job in self._ended(client) if self._is_news(job)]
        if not ended or not client.settings.notify_cells:
            return
        lines = [
            f"gpuqueue: {end_words(client.home, job)}; {_next_step(job)}" for job in ended[:_LINES]
        ]
        if len(ended) > _LINES:
            lines.append(f"gpuqueue: and {len(ended) - _LINES} more; %gpu jobs")
        _show(lines)

    def _ended(self, client: LocalClient) -> list[Job]:
        """Jobs that have ended since the last look; of before the first one, none."""
        from gpuqueue.model import TERMINAL

        last = client.store.last_event()
        if self._seen is None:
            self._seen = last
        found: dict[int, None] = {}
        while self._seen < last:
            events = client.store.events(self._seen, limit=_PAGE)
            if not events:
                break
            self._seen = events[-1].seq
            for event in events:
                if event.job is not None and event.data.get("state") in TERMINAL:
                    found[event.job] = None
        return [client.job(number) for number in found]

    def _is_news(self, job: Job) -> bool:
        """Whether it is of this notebook, and the cell that has just run has not shown it itself.

        A cell waits for its own %%gpu job and mostly for what it has mapped; of what it queued and
        what ended at once, only a command that failed is worth a line.
        """
        from gpuqueue.client.whose import origin_here
        from gpuqueue.model import JobKind, JobState

        here = origin_here()
        same = job.origin.session == here.session or (here.path and job.origin.path == here.path)
        if job.kind is JobKind.KERNEL:
            return False  # that is this notebook itself
        command = job.kind in (JobKind.SCRIPT, JobKind.NOTEBOOK)
        worth = job.submitted < self._began or (command and job.state is JobState.FAILED)
        return bool(same) and worth


def _next_step(job: Job) -> str:
    from gpuqueue.model import JobKind, JobState

    if job.state is JobState.SUCCEEDED and job.kind is JobKind.CELL:
        return f"%gpu pull {job.id}"
    return f"%gpu logs {job.id}"


def _show(lines: list[str]) -> None:
    from IPython.display import display

    text = "\n".join(lines)
    marked = "<br>".join(html.escape(line) for line in lines)
    display(  # type: ignore[no-untyped-call]
        {"text/plain": text, "text/html": f'<small class="gpuqueue-ended">{marked}</small>'},
        raw=True,
    )
