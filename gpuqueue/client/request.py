"""From the options that people write to a ``Request``, checked field by field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuqueue.errors import InvalidRequest
from gpuqueue.model import JobKind, Preset, Request
from gpuqueue.units import parse_bytes, parse_duration, parse_share

__all__ = ["OPTIONS", "Options", "check_kind", "check_together", "options_from"]


@dataclass(frozen=True, slots=True)
class Options:
    """A request and what else a submit may say."""

    request: Request
    tag: str | None = None
    key: str | None = None
    to_front: bool = False
    wait: bool = True


OPTIONS = (
    "preset", "gpus", "share", "mem", "slots", "eta", "priority", "after", "restartable",
    "preemptible", "resumable", "require", "burst", "tag", "key", "wait",
)  # fmt: skip
"""Names of the options, the same in Python, on the command line and in REST."""


def options_from(values: dict[str, Any]) -> Options:
    """Check options as people write them.

    Raises
    ------
    InvalidRequest
        Names the field, what is wrong with it and what would be right.
    """
    for name in values:
        if name not in OPTIONS:
            close = difflib.get_close_matches(name, OPTIONS, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(OPTIONS)}"
            raise InvalidRequest(name, f"no such option{hint}")
    values = {name: value for name, value in values.items() if value is not None}
    priority = values.get("priority", 0)
    preemptible = _flag(values.get("preemptible", False), "preemptible")
    share = parse_share(values["share"]) if "share" in values else None
    request = Request(
        preset=_preset(values.get("preset", Preset.ONE)),
        gpus=_count(values.get("gpus"), "gpus", least=0),
        share=share,
        memory=parse_bytes(values["mem"], "mem") if "mem" in values else None,
        slots=_count(values.get("slots"), "slots", least=0),
        eta=parse_duration(values["eta"], "eta") if "eta" in values else None,
        priority=0 if priority is True else _integer(priority, "priority"),
        after=_after(values.get("after", ())),
        restartable=_flag(values.get("restartable", False), "restartable") or preemptible,
        preemptible=preemptible,
        resumable=_resumable(values.get("resumable", False)),
        require=_require(values.get("require", ())),
        burst=_flag(values.get("burst", False), "burst"),
    )
    check_together(request)
    return Options(
        request,
        tag=_text(values.get("tag"), "tag"),
        key=_text(values.get("key"), "key"),
        to_front=priority is True,
        wait=_flag(values.get("wait", True), "wait"),
    )


def check_kind(request: Request, kind: JobKind) -> None:
    """Refuse what no job of this kind can do."""
    if request.resumable and kind in (JobKind.CELL, JobKind.NOTEBOOK):
        raise InvalidRequest(
            "resumable",
            f"a {kind} has no way to save itself on SIGTERM; its code may call "
            "gpuqueue.checkpoint.should_stop(), which needs no option",
        )


def check_together(request: Request) -> None:
    """Refuse what contradicts itself rather than silently prefer one of the two.

    Raises
    ------
    InvalidRequest
        Names one of the fields.
    """
    if request.preset is Preset.EXCLUSIVE:
        for name in ("gpus", "share", "memory", "slots"):
            if getattr(request, name) is not None:
                field = "mem" if name == "memory" else name
                raise InvalidRequest(field, "exclusive is the whole machine; leave one of them out")
    if request.preset is Preset.CPU or request.gpus == 0:
        for name in ("share", "memory"):
            if getattr(request, name) is not None:
                field = "mem" if name == "memory" else name
                raise InvalidRequest(field, "is about a GPU, and this job asks for none")
        if request.require:
            raise InvalidRequest("require", "is about a GPU, and this job asks for none")
    if request.preset is Preset.CPU and request.gpus:
        raise InvalidRequest("gpus", "cpu means no GPU; leave one of them out")
    if request.burst and request.share is None:
        raise InvalidRequest("burst", "is about what is beyond a share; say which (--share 0.25)")
    if request.burst and "compute" in request.require:
        raise InvalidRequest(
            "burst", "goes beyond the share, and require compute=hard forbids that"
        )


def _require(value: Any) -> tuple[str, ...]:
    """What is to be capped, of ``compute=hard,memory=hard`` or a list of such words."""
    if not value:
        return ()
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, Iterable) or not all(isinstance(word, str) for word in words):
        raise InvalidRequest(
            "require", f"{value!r} is not known; write compute=hard or memory=hard"
        )
    from gpuqueue.share.require import demanded

    return tuple(sorted(demanded(",".join(words))))


def _preset(value: Any) -> Preset:
    try:
        return Preset(value)
    except ValueError:
        names = ", ".join(Preset)
        raise InvalidRequest("preset", f"{value!r} is not one of {names}") from None


def _integer(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidRequest(field, f"{value!r} is not a whole number")
    try:
        number = int(value)
    except ValueError:
        raise InvalidRequest(field, f"{value!r} is not a whole number") from None
    if abs(number) > 2**31:
        raise InvalidRequest(field, f"{value!r} is out of range")
    return number


def _count(value: Any, field: str, *, least: int) -> int | None:
    if value is None:
        return None
    number = _integer(value, field)
    if number < least:
        raise InvalidRequest(field, f"{number} is too few; at least {least}")
    return number


def _after(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    elif not isinstance(value, Iterable):
        value = [value]
    ids = tuple(dict.fromkeys(_integer(getattr(item, "id", item), "after") for item in value))
    if any(job_id <= 0 for job_id in ids):
        raise InvalidRequest("after", "job numbers are positive")
    return ids


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(field, f"{value!r} is neither true nor false")
    return value


def _resumable(value: Any) -> bool:
    if value in (True, False, "sigterm"):
        return bool(value)
    raise InvalidRequest(
        "resumable",
        f'{value!r} is not "sigterm", for a program that saves its state and exits with 0 on '
        "SIGTERM; one that uses gpuqueue.checkpoint need not say anything",
    )


def _text(value: Any, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise InvalidRequest(field, "write 1 to 200 characters")
    if any(ord(letter) < 32 for letter in value):
        raise InvalidRequest(field, "control characters are not allowed")
    return value.strip()
