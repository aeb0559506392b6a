"""Model objects to JSON text and back.

What is unknown in the text is ignored, so that an older program can read what a newer one of the
same schema version wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from gpuqueue.model import (
    Gpu,
    GpuProcess,
    Grant,
    Hold,
    Job,
    JobKind,
    JobState,
    Loan,
    Mode,
    ModeName,
    Origin,
    Placement,
    Preset,
    ProcessId,
    Reading,
    Request,
    Size,
)

__all__ = [
    "COLUMNS",
    "dump",
    "gpu_from",
    "job_from",
    "job_to_dict",
    "load",
    "mode_from",
    "placement_from",
    "plain",
    "process_from",
    "reading_from",
    "request_from",
]

_NAMES = {
    cls: tuple(f.name for f in fields(cls))
    for cls in (
        Request,
        Grant,
        Placement,
        ProcessId,
        Origin,
        Gpu,
        GpuProcess,
        Reading,
        Mode,
        Size,
        Hold,
        Loan,
    )
}


def dump(value: Any) -> str:
    """Compact JSON text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def load(text: str | None) -> Any:
    """The value of JSON text; None for no text."""
    return None if text is None else json.loads(text)


def plain(value: Any) -> Any:
    """A frozen model object as dictionaries and lists that JSON can hold."""
    names = _NAMES.get(type(value))
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def request_from(data: Mapping[str, Any]) -> Request:
    """A request from its dictionary."""
    known = {name: data[name] for name in _NAMES[Request] if name in data}
    known["preset"] = Preset(known.get("preset", Preset.ONE))
    for name in ("after", "require"):
        known[name] = tuple(known.get(name, ()))
    return Request(**known)


def placement_from(data: Mapping[str, Any] | None) -> Placement | None:
    """A placement from its dictionary."""
    if data is None:
        return None
    grants = tuple(Grant(**{n: g[n] for n in _NAMES[Grant] if n in g}) for g in data["grants"])
    return Placement(grants, data["slots"])


def size_from(data: Mapping[str, Any] | None) -> Size | None:
    """A size from its dictionary."""
    return None if data is None else Size(data["share"], data["memory"])


def hold_from(data: Mapping[str, Any] | None) -> Hold | None:
    """How far a job is held to its share, from its dictionary."""
    if data is None:
        return None
    known = {name: data[name] for name in _NAMES[Hold] if name in data}
    for name in ("by", "doubts"):
        known[name] = tuple(known.get(name, ()))
    return Hold(**known)


def loan_from(data: Mapping[str, Any] | None) -> Loan | None:
    """What is lent of a job's compute, or to it, from its dictionary."""
    if data is None:
        return None
    return Loan(bool(data.get("borrows")), tuple((gpu, part) for gpu, part in data.get("away", ())))


def process_from(data: Mapping[str, Any] | None) -> ProcessId | None:
    """A process identity from its dictionary."""
    return None if data is None else ProcessId(data["pid"], data["start"], data["boot"])


def gpu_from(data: Mapping[str, Any]) -> Gpu:
    """A GPU from its dictionary."""
    return Gpu(**{name: data[name] for name in _NAMES[Gpu] if name in data})


def reading_from(data: Mapping[str, Any]) -> Reading:
    """A reading from its dictionary."""
    known = {name: data[name] for name in _NAMES[Reading] if name in data}
    known["processes"] = tuple(
        GpuProcess(item["pid"], item["memory"], item.get("utilization"))
        for item in known.get("processes", ())
    )
    return Reading(**known)


def mode_from(data: Mapping[str, Any] | None) -> Mode:
    """A mode from its dictionary; the queue has the GPUs where there is none."""
    if data is None:
        return Mode()
    known = {name: data[name] for name in _NAMES[Mode] if name in data}
    known["name"] = ModeName(known["name"])
    known["latched"] = tuple(
        ProcessId(item["pid"], item["start"], item["boot"]) for item in known.get("latched", ())
    )
    return Mode(**known)


COLUMNS = (
    "id, kind, state, request, tag, owner, command, cwd, origin, submitted, position, attempt, "
    "placement, started, ended, returncode, reason, process, asked, key, retry_of, expected, "
    "latest, learned, sound, peak, learned_memory, lacked, frozen, frozen_at, resized, hold, loan"
)


@lru_cache(maxsize=4096)
def _request_of(text: str) -> Request:
    """Of the jobs of a sweep most ask for the same, and a long queue is read often."""
    return request_from(json.loads(text))


@lru_cache(maxsize=4096)
def _origin_of(text: str) -> Origin:
    return _origin_from(json.loads(text))


def job_from(row: tuple[Any, ...]) -> Job:
    """A job from a row of ``COLUMNS``."""
    (
        job_id, kind, state, request, tag, owner, command, cwd, origin, submitted, position,
        attempt, placement, started, ended, returncode, reason, process, asked, key, retry_of,
        expected, latest, learned, sound, peak, learned_memory, lacked, frozen, frozen_at,
        resized, hold, loan,
    ) = row  # fmt: skip
    return Job(
        id=job_id,
        kind=JobKind(kind),
        state=JobState(state),
        request=_request_of(request),
        tag=tag,
        owner=owner,
        command=command,
        cwd=cwd,
        origin=_origin_of(origin),
        submitted=submitted,
        position=position,
        attempt=attempt,
        placement=placement_from(load(placement)),
        started=started,
        ended=ended,
        returncode=returncode,
        reason=reason,
        process=process_from(load(process)),
        key=key,
        retry_of=retry_of,
        asked=asked,
        expected=expected,
        latest=latest,
        learned=learned,
        sound=bool(sound),
        peak=peak,
        learned_memory=learned_memory,
        lacked=lacked,
        frozen=frozen,
        frozen_at=frozen_at,
        resized=size_from(load(resized)),
        hold=hold_from(load(hold)),
        loan=loan_from(load(loan)),
    )


def _origin_from(data: Mapping[str, Any]) -> Origin:
    return Origin(**{name: data[name] for name in _NAMES[Origin] if name in data})


def job_to_dict(job: Job) -> dict[str, Any]:
    """A job as people and programs outside see it: no environment, no secrets."""
    return {
        "id": job.id,
        "kind": str(job.kind),
        "state": str(job.state),
        "tag": job.tag,
        "owner": job.owner,
        "command": job.command,
        "cwd": job.cwd,
        "origin": plain(job.origin),
        "request": plain(job.request) | {"preset": str(job.request.preset)},
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "returncode": job.returncode,
        "reason": job.reason,
        "attempt": job.attempt,
        "placement": plain(job.placement),
        "pid": job.process.pid if job.process else None,
        "key": job.key,
        "retry_of": job.retry_of,
        "expected": job.expected,
        "latest": job.latest,
        "learned": job.learned,
        "peak": job.peak,
        "learned_memory": job.learned_memory,
        "lacked": job.lacked,
        "excess": job.excess,
        "frozen": job.frozen,
        "frozen_at": job.frozen_at,
        "resized": plain(job.resized),
        "hold": plain(job.hold),
        "loan": plain(job.loan),
    }
