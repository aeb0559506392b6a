"""Taking the GPUs back and giving them to the queue again: ``free`` and ``resume``."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuqueue.client.freed import found_words, mode_told, parked_of, rows, sentence, words
from gpuqueue.client.local import LocalClient
from gpuqueue.client.rights import require_person
from gpuqueue.control.machine import Machine
from gpuqueue.model import ACTIVE, IntentKind, Job, ModeName

__all__ = ["Answer", "free", "resume", "wait_for"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of ``free`` or ``resume``.

    Attributes
    ----------
    mode
        As ``status`` has it.
    jobs
        For each job that held a GPU: ``id``, ``tag``, what it ``does`` (``evict``: saves and goes
        back into the queue; ``restart``: is stopped and starts again later; ``freeze``; ``idle``:
        a notebook's kernel in which nothing runs; ``continue``; ``back``: such a kernel has its
        GPU memory brought back; ``start``) and the bytes that it holds on GPUs now, ``memory``.
    message
        The same for people, with a line for each job that still holds something.
    sentence, rows
        The same in one sentence that only counts, and a row for each job: see ``freed.rows``.
    settled
        Whether nothing is left to be done.
    wish, since
        Number of the wish in the store, and of the last event before it.
    """

    mode: Mapping[str, Any]
    jobs: Sequence[Mapping[str, Any]]
    message: str
    sentence: str
    rows: Sequence[Mapping[str, Any]]
    settled: bool
    wish: int
    since: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        jobs = [dict(job) for job in self.jobs]
        return {
            "mode": dict(self.mode),
            "jobs": jobs,
            "message": self.message,
            "sentence": self.sentence,
            "rows": [dict(row) for row in self.rows],
        }

    def __repr__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.message)}</pre>"


def free(client: LocalClient, *, soft: bool = False, browser: bool = False) -> Answer:
    """Take the GPUs back. Returns once the controller has begun; ``wait_for`` waits for the rest.

    Raises
    ------
    NotYours
        An agent or a job asks. ``browser`` says that somebody who has logged in does.
    """
    require_person("free", browser=browser)
    return _ask(client, IntentKind.FREE, {"soft": soft})


def resume(client: LocalClient, *, browser: bool = False) -> Answer:
    """Give the GPUs to the queue again.

    Raises
    ------
    NotYours
        An agent or a job asks. ``browser`` says that somebody who has logged in does.
    """
    require_person("resume", browser=browser)
    return _ask(client, IntentKind.RESUME, None)


def wait_for(client: LocalClient, answer: Answer, timeout: float | None = None) -> Answer:
    """Wait until every job has stepped aside or is frozen.

    Raises
    ------
    TimeoutError
        Some have not in ``timeout`` seconds; they go on with it.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with client.watch() as watch:
        while (
            client.store.intent(answer.wish).done is None
            or client.store.mode().name is ModeName.FREEING
        ):
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError("some jobs are still stepping aside; they go on with it")
            watch.wait(left)
    return _answer(client, answer.wish, answer.since)


def _ask(client: LocalClient, kind: IntentKind, value: Any) -> Answer:
    since = client.store.last_event()
    return _answer(client, client.wish(kind, value).id, since)


def _answer(client: LocalClient, wish: int, since: int) -> Answer:
    done = client.store.intent(wish).done is not None
    mode, live, machine = client.store.mode(), client.store.live(), client.machine()
    told = mode_told(mode, live, machine, parked_of(client.home, live))
    if not done:
        noted = "It is noted, and will be done as soon as a controller runs: none answers now."
        return Answer(told, (), noted, noted, (), settled=False, wish=wish, since=since)
    changes = [
        event.data["jobs"]
        for event in client.store.events(since)
        if event.kind == "mode" and "jobs" in event.data
    ]
    jobs = _with_memory(changes[-1] if changes else (), live, machine)
    settled = mode.name is not ModeName.FREEING
    said, message = sentence(mode, jobs), words(mode, told, jobs)
    if not changes:
        said = found_words(mode, live)
        message = said if mode.normal else message.replace(sentence(mode, ()), said, 1)
    return Answer(
        told, jobs, message, said, rows(told, jobs), settled=settled, wish=wish, since=since
    )


def _with_memory(
    jobs: Sequence[Mapping[str, Any]], live: Sequence[Job], machine: Machine
) -> list[dict[str, Any]]:
    used = machine.used or {}
    held = {job.id for job in live if job.state in ACTIVE and job.uses_gpu}
    found = []
    for job in jobs:
        by_gpu = used.get(job["id"]) if job["id"] in held else {}
        memory = None if by_gpu is None else sum(by_gpu.values())
        found.append({"id": job["id"], "tag": job["tag"], "does": job["does"], "memory": memory})
    return found
