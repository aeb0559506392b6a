"""What free mode has come to, in words and in rows: for people, the panel and programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuqueue.control.machine import Machine
from gpuqueue.model import ACTIVE, Job, JobKind, JobState, Mode, ModeName
from gpuqueue.paths import Home
from gpuqueue.run.parked import Parked, parked_in
from gpuqueue.run.process import alive, is_elsewhere
from gpuqueue.units import format_bytes

__all__ = ["found_words", "mode_line", "mode_told", "parked_of", "rows", "sentence", "words"]


def parked_of(home: Home, live: Iterable[Job]) -> dict[int, Parked]:
    """What of the GPU memory of frozen jobs and idle kernels is on the host, by job."""
    kept = [
        job
        for job in live
        if job.state is JobState.FROZEN
        or (job.kind is JobKind.KERNEL and job.state is JobState.RUNNING)
    ]
    found = {job.id: parked_in(home.attempt(job.id, job.attempt)) for job in kept}
    # that of a kernel that was started again meanwhile went with its process
    return {
        number: parked
        for number, parked in found.items()
        if parked is not None and (is_elsewhere(parked.process) or alive(parked.process))
    }


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


def _by_job(parts: Iterable[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    by_job: dict[int, list[Mapping[str, Any]]] = {}
    for part in parts:
        by_job.setdefault(part["job"], []).append(part)
    return by_job


def _size(part: Mapping[str, Any]) -> str:
    size = "memory" if part["memory"] is None else format_bytes(part["memory"])
    return f"{size} of GPU {part['gpu']}"


def _held(told: Mapping[str, Any]) -> list[str]:
    lines = []
    for job, parts in _by_job(told["holding"]).items():
        what = " and ".join(map(_size, parts))
        if parts[0]["notebook"]:
            who = f"notebook {parts[0]['tag']} (job {job})"
            way = f"its restart lets go of that, `jupyter gpuqueue cancel {job}` ends it"
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
    "idle": ("is idle and lets go of what it can", "are idle and let go of what they can"),
    "continue": ("goes on", "go on"),
    "back": ("gets its GPU memory back", "get their GPU memory back"),
    "start": ("starts again in its turn", "start again in their turn"),
}
_OF_NOTEBOOKS = frozenset({"idle", "back"})


def sentence(mode: Mode, jobs: Sequence[Mapping[str, Any]]) -> str:
    """What was done, in one sentence that does not grow with the number of jobs."""
    parts = []
    for does, (one, many) in _DOES.items():
        count = sum(job["does"] == does for job in jobs)
        noun = "notebook" if does in _OF_NOTEBOOKS else "job"
        if count:
            parts.append(f"1 {noun} {one}" if count == 1 else f"{count} {noun}s {many}")
    return _headed(mode, ", ".join(parts))


def _headed(mode: Mode, does: str) -> str:
    head = "The queue has the GPUs again" if mode.normal else "The GPUs are yours"
    return f"{head}{f': {does}' if does else ''}."


def rows(told: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each job: what it does, what of the GPUs it still holds, what releases that.

    ``holds`` and ``moved`` are words, empty where there is nothing; ``release`` is what to type.
    """
    holding, moved = _by_job(told["holding"]), _by_job(told["moved"])
    named = {job["id"]: job for job in jobs}
    found = []
    for job in dict.fromkeys((*named, *holding, *moved)):
        parts = (*holding.get(job, ()), *moved.get(job, ()))
        does = named[job]["does"] if job in named else ""
        notebook = does in _OF_NOTEBOOKS or any(part["notebook"] for part in parts)
        out = " and ".join(_size(part) for part in moved.get(job, ()) if part["memory"])
        found.append(
            {
                "job": job,
                "tag": named[job]["tag"] if job in named else parts[0]["tag"],
                "notebook": notebook,
                "does": does,
                "words": _DOES.get(does, ("",))[0],
                "holds": " and ".join(map(_size, holding.get(job, ()))),
                "moved": out and f"{out} on the host",
                "release": f"jupyter gpuqueue cancel {job}" if job in holding else "",
            }
        )
    return found


def words(mode: Mode, told: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> str:
    """The same for a terminal, in lines that name every job."""
    parts = []
    for does, (one, many) in _DOES.items():
        ids = [str(job["id"]) for job in jobs if job["does"] == does]
        if ids and does in _OF_NOTEBOOKS:
            named = [f"notebook {job['tag']}" for job in jobs if job["does"] == does]
            parts.append(f"{', '.join(named)} {one if len(ids) == 1 else many}")
        elif ids:
            who = f"job {ids[0]}" if len(ids) == 1 else f"jobs {', '.join(ids)}"
            parts.append(f"{who} {one if len(ids) == 1 else many}")
    said = _headed(mode, "; ".join(parts))
    if mode.normal:
        return said
    frozen = {job["id"] for job in jobs if job["does"] == "freeze"}
    held = told["holding"]
    if mode.name is ModeName.FREEING:  # the others are about to let go
        held = [each for each in held if each["job"] in frozen]
    lines = [said, *(f"{line[0].upper()}{line[1:]}." for line in _held({"holding": held}))]
    lines += [f"{line}." for line in _moved(told)]
    lines.append("`jupyter gpuqueue resume` gives them back to the queue.")
    return "\n".join(lines)


def found_words(mode: Mode, live: Sequence[Job]) -> str:
    """What a wish has found that was fulfilled already, and how things stand."""
    if not mode.normal:
        at = time.strftime("%H:%M", time.localtime(mode.since))
        return f"The GPUs are yours already, since {at}."
    runs = [job.kind for job in live if job.state in (JobState.RUNNING, JobState.STARTING)]
    kernels = runs.count(JobKind.KERNEL)
    waits = sum(job.state is JobState.QUEUED for job in live)
    parts = [
        words[0] if count == 1 else words[1].format(count)
        for count, words in (
            (len(runs) - kernels, ("1 job runs", "{} jobs run")),
            (waits, ("1 job waits", "{} jobs wait")),
            (kernels, ("1 notebook has a share", "{} notebooks have a share")),
        )
        if count
    ]
    there = f" {', '.join(parts)}." if parts else " Nothing runs or waits."
    still = [
        f"Job {job.id} ({job.tag}) is still frozen: {job.reason}."
        for job in live
        if job.state is JobState.FROZEN
    ]
    head = "The queue has the GPUs already: free mode is not on, so there is nothing to resume."
    return "\n".join([head + there, *still])
