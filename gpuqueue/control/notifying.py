"""Tells the ends of jobs elsewhere, such as on a phone, through Apprise. Beside the loop.

Where to is a secret: it is never in a message of ours, and Apprise's own log, which has parts of
it, is kept quiet.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from gpuqueue.model import TERMINAL, Job, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.run.ended import end_words
from gpuqueue.settings import Settings

__all__ = ["Notifier"]

log = logging.getLogger("gpuqueue")

TITLE = "GPU queue"
_GATHER = 1.0
"""Seconds for which ends are gathered into one message."""
_PATIENCE = 30.0
_LINES = 8
_MOST = 1000
_MISSING = (
    "notify_urls is set, but Apprise is not installed for the controller: "
    "pip install 'jupyter-gpuqueue[notify]'"
)


class Notifier:
    """``tell`` costs nothing worth speaking of; the rest is done in a thread.

    Parameters
    ----------
    settings
        Gives the settings in force.
    patience
        Seconds after which a message that is still on its way is given up.
    """

    def __init__(
        self, home: Home, settings: Callable[[], Settings], patience: float = _PATIENCE
    ) -> None:
        self._home = home
        self._settings = settings
        self._patience = patience
        self._ended: queue.Queue[Job | None] = queue.Queue(_MOST)
        self._thread: threading.Thread | None = None
        self._sending: threading.Thread | None = None
        self._closing = threading.Event()
        self._trouble = ""

    def tell(self, jobs: Sequence[Job]) -> None:
        """Jobs have ended; those that somebody wants to hear of are told."""
        settings = self._settings()
        if not settings.notify_urls or settings.notify == "off":
            return
        for job in jobs:
            if not _wanted(job, settings):
                continue
            with contextlib.suppress(queue.Full):  # nobody reads a thousand of them
                self._ended.put_nowait(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="gpuqueue-notify", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Send what has been told so far, for a few seconds at most, and end."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._ended.put_nowait(None)
        if self._thread is not None:
            self._thread.join(min(5.0, self._patience))

    def _work(self) -> None:
        while (first := self._ended.get()) is not None:
            self._closing.wait(_GATHER)
            jobs = [first]
            over = False
            with contextlib.suppress(queue.Empty):
                while True:
                    job = self._ended.get_nowait()
                    if job is None:
                        over = True
                        break
                    jobs.append(job)
            self._deliver(jobs)
            if over:
                return

    def _deliver(self, jobs: Sequence[Job]) -> None:
        """Send one message about these, and note in the log once that it does not work."""
        if self._sending is not None and self._sending.is_alive():
            return  # the last one has not come back yet; it is in the log
        lines = [end_words(self._home, job) for job in jobs[:_LINES]]
        if len(jobs) > _LINES:
            lines.append(f"and {len(jobs) - _LINES} more")
        urls = list(self._settings().notify_urls)
        problems: list[str] = []
        self._sending = threading.Thread(
            target=_send, args=(urls, "\n".join(lines), problems), daemon=True
        )
        self._sending.start()
        self._sending.join(self._patience)
        if self._sending.is_alive():
            problems.append(f"a notification took more than {self._patience:g} s and is given up")
        trouble = problems[0] if problems else ""
        if trouble and trouble != self._trouble:
            log.warning("gpuqueue: %s", trouble)
        self._trouble = trouble


def _wanted(job: Job, settings: Settings) -> bool:
    if job.kind is JobKind.KERNEL:  # it ends when its notebook is shut down
        return False
    if job.state not in TERMINAL or (job.ended or 0.0) - job.submitted < settings.notify_after:
        return False
    return settings.notify == "all" or job.state is JobState.FAILED


def _send(urls: Sequence[str], body: str, problems: list[str]) -> None:
    """Send a message; what is wrong goes into ``problems``, without any of the addresses."""
    try:
        import apprise
    except ImportError:
        problems.append(_MISSING)
        return
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    failed = []
    for number, url in enumerate(urls, 1):
        try:
            one = apprise.Apprise()
            sent = one.add(url) and one.notify(body=body, title=TITLE)
        except Exception:  # noqa: BLE001 - its words may hold the address
            sent = False
        if not sent:
            failed.append(str(number))
    if failed:
        which = f"number {', '.join(failed)} of notify_urls"
        problems.append(f"a notification did not reach {which}: is the address right?")
