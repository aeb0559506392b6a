"""Taking the GPUs back and giving them to the queue again: ``free`` and ``resume``."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuqueue.client.local import LocalClient
from gpuqueue.client.rights import require_person
from gpuqueue.control.machine import Machine
from gpuqueue.model import ACTIVE, IntentKind, Job, JobKind, JobState, Mode, ModeName
from gpuqueue.paths import Home
from gpuqueue.run.parked import Parked, parked_in
from gpuqueue.units import format_bytes

__all__ = ["Answer", "free", "mode_line", "mode_told", "parked_of", "resume", "wait_for"]


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
        a notebook's kernel in which nothing runs; ``continue``; ``start``) and the bytes that it
        holds on GPUs now, ``memory``.
    message
        The same for people.
    settled
        Whether nothing is left to be done.
    wish, since
        Number of the wish in the store, and of the last event before it.
    """

    mode: Mapping[str, Any]
    jobs: Sequence[Mapping[str, Any]]
    message: str
    settled: bool
    wish: int
    since: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        jobs = [dict(job) for job in self.jobs]
        return {"mode": dict(self.mode), "jobs": jobs, "message": self.message}

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
        words = "It is noted, and will be done as soon as a controller runs: none answers now."
        return Answer(told, (), words, settled=False, wish=wish, since=since)
    jobs: Sequence[Mapping[str, Any]] = ()
    for event in client.store.events(since):
        if event.kind == "mode" and "jobs" in event.data:
            jobs = event.data["jobs"]
    jobs = _with_memory(jobs, live, machine)
    settled = mode.name is not ModeName.FREEING
    return Answer(told, jobs, _words(mode, told, jobs), settled=settled, wish=wish, since=since)


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


# -- the mode for people and programs --------------------------------------------------------------


def parked_of(home: Home, live: Iterable[Job]) -> dict[int, Parked]:
    """What of frozen jobs' GPU memory is on the host, by job."""
    frozen = [job for job in live if job.state is JobState.FROZEN]
    found = {job.id: parked_in(home.attempt(job.id, job.attempt)) for job in frozen}
    return {number: parked for number, parked in found.items() if parked is not None}


def mode_told(
    mode: Mode, live: Iterable[Job], machine: Machine, parked: Mapping[int, Parked]
) -> dict[str, Any]:
    """Who has the GPUs, and which jobs still hold memory there while they are the person's.

    ``memory`` is bytes, None where the driver does not tell; ``gpu`` is the GPU's index. ``moved``
    is what has been moved to the host.
    """
    index = {gpu.uuid: gpu.index for gpu in machine.gpus}
    used = machine.used or {}
    holding, moved = [], []
    for job in live:
        if mode.normal or job.state not in ACTIVE or job.placement is None:
            continue
        for grant in job.placement.grants:
            one = {"job": job.id, "tag": job.tag, "gpu": index.get(grant.gpu)}
            one["notebook"] = job.kind is JobKind.KERNEL
            memory = used.get(job.id, {}).get(grant.gpu)
            if (known := parked.get(job.id)) is not None:
                memory = known.left.get(grant.gpu, 0)
                out = known.memory.get(grant.gpu, 0) - memory
                moved.append(one | {"memory": max(0, out)})
            if memory != 0:
                holding.append(one | {"memory": memory})
    return {
        "name": str(mode.name),
        "by": mode.by,
        "soft": mode.soft,
        "since": mode.since,
        "program": mode.program,
        "holding": holding,
        "moved": moved,
    }


def mode_line(told: Mapping[str, Any]) -> str:
    """The mode in a line or a few; empty while the queue has the GPUs."""
    if told["name"] == ModeName.NORMAL:
        return ""
    at = time.strftime("%H:%M", time.localtime(told["since"]))
    who = "you have the GPUs"
    end = "`jupyter gpuqueue resume` gives them back"
    if told["by"] == "automatic":
        who, end = f"{told['program']} has the GPUs", "they go back to the queue after it has gone"
    soft = ", soft" if told["soft"] else ""
    lines = [f"free mode since {at}{soft}: {who}, nothing starts; {end}"]
    if told["name"] == ModeName.FREEING:
        lines[0] += " (jobs are still stepping aside)"
    return "\n".join([*lines, *(f"  {one}" for one in (*_held(told), *_moved(told)))])


def _held(told: Mapping[str, Any]) -> list[str]:
    by_job: dict[int, list[Mapping[str, Any]]] = {}
    for each in told["holding"]:
        by_job.setdefault(each["job"], []).append(each)
    lines = []
    for job, parts in by_job.items():
        what = " and ".join(
            f"{format_bytes(part['memory']) if part['memory'] is not None else 'memory'} "
            f"of GPU {part['gpu']}"
            for part in parts
        )
        if parts[0]["notebook"]:
            who = f"notebook {parts[0]['tag']} (job {job})"
            way = f"`%gpu release` in it lets go of that, `jupyter gpuqueue cancel {job}` ends it"
        else:
            who = f"job {job} ({parts[0]['tag']})"
            way = f"`jupyter gpuqueue cancel {job}` releases it"
        lines.append(f"{who} still holds {what}; {way}")
    return lines


def _moved(told: Mapping[str, Any]) -> list[str]:
    return [
        f"{format_bytes(one['memory'])} of job {one['job']} ({one['tag']}) have been moved from "
        f"GPU {one['gpu']} to the host"
        for one in told["moved"]
        if one["memory"]
    ]


_DOES = {
    "evict": ("saves and steps aside", "save and step aside"),
    "restart": ("is stopped and starts again later", "are stopped and start again later"),
    "freeze": ("is frozen where it is", "are frozen where they are"),
    "idle": (
        "is idle and keeps its GPU memory until %gpu release in it, or its kernel is shut down",
        "are idle and keep their GPU memory until %gpu release in them, or their kernels are shut "
        "down",
    ),
    "continue": ("goes on", "go on"),
    "start": ("starts again in its turn", "start again in their turn"),
}


def _words(mode: Mode, told: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for does, (one, many) in _DOES.items():
        ids = [str(job["id"]) for job in jobs if job["does"] == does]
        if ids and does == "idle":
            named = [f"notebook {job['tag']}" for job in jobs if job["does"] == does]
            parts.append(f"{', '.join(named)} {one if len(ids) == 1 else many}")
        elif ids:
            who = f"job {ids[0]}" if len(ids) == 1 else f"jobs {', '.join(ids)}"
            parts.append(f"{who} {one if len(ids) == 1 else many}")
    does = "; ".join(parts)
    if mode.normal:
        return f"The queue has the GPUs again{f': {does}' if does else ''}."
    sentence = f"The GPUs are yours{f': {does}' if does else ''}."
    frozen = {job["id"] for job in jobs if job["does"] == "freeze"}
    held = told["holding"]
    if mode.name is ModeName.FREEING:  # the others are about to let go
        held = [each for each in held if each["job"] in frozen]
    lines = [sentence, *(f"{line[0].upper()}{line[1:]}." for line in _held({"holding": held}))]
    lines += [f"{line}." for line in _moved(told)]
    lines.append("`jupyter gpuqueue resume` gives them back to the queue.")
    return "\n".join(lines)
