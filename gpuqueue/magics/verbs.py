"""``%gpu``: what can be asked about jobs, each a thin word over the client."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from gpuqueue.client import Job, default_client, free, jobs, options_from, resume, status
from gpuqueue.client.follow import follow_log
from gpuqueue.client.job import describe
from gpuqueue.client.payload import script_payload
from gpuqueue.errors import InvalidRequest, NotAllowedNow
from gpuqueue.magics.activity import rest
from gpuqueue.magics.bringing import bring_back
from gpuqueue.magics.cells import follow
from gpuqueue.magics.options import parse_options, split_line
from gpuqueue.magics.replay import Here, OutputTail
from gpuqueue.magics.sharing import attach_line, own_share_line, release_line, share_line
from gpuqueue.model import TERMINAL, IntentKind, JobKind

__all__ = ["run_line"]


def run_line(shell: Any, line: str) -> Any:
    """Carry out one ``%gpu`` line; what it returns is the cell's result.

    Raises
    ------
    InvalidRequest
        There is no such verb or option, or a job number is missing.
    """
    words = split_line(line)
    if not words and (own := own_share_line()):
        print(own)
    verb, rest = (words[0], words[1:]) if words else ("status", [])
    work = _VERBS.get(verb)
    if work is None:
        close = difflib.get_close_matches(verb, _VERBS, 1)
        hint = f"did you mean %gpu {close[0]}?" if close else f"there are {', '.join(_VERBS)}"
        if verb in _ELSEWHERE:
            hint = f"write `!gpuqueue {verb}`"
        raise InvalidRequest("%gpu", f"{verb!r} is not one of its words; {hint}")
    return work(shell, rest)


def _ids(words: list[str], verb: str, least: int = 1, most: int | None = 1) -> list[Job]:
    if len(words) < least or (most is not None and len(words) > most):
        shape = {(1, 1): "ID", (2, 2): "A B"}.get((least, most or 0), "ID...")
        raise InvalidRequest(verb, f"write %gpu {verb} {shape}")
    client = default_client()
    return [Job(client, client.job(_number(word, verb)).id) for word in words]


def _number(word: str, verb: str) -> int:
    if not word.removeprefix("-").isdigit():
        raise InvalidRequest(verb, f"{word!r} is not a number")
    return int(word)


def _none(words: list[str], verb: str) -> None:
    if words:
        raise InvalidRequest(verb, f"nothing may follow it, and there is {' '.join(words)}")


def _status(_: Any, words: list[str]) -> Any:
    _none(words, "status")
    return status()


def _jobs(_: Any, words: list[str]) -> None:
    _none(words, "jobs")
    client = default_client()
    for job in reversed(jobs(limit=20)):
        record = job.record
        print(f"{record.id:>5}  {record.tag:<20} {describe(record, client)}")


def _logs(shell: Any, words: list[str]) -> None:
    left, lines, live = list(words), None, False
    rest = []
    while left:
        word = left.pop(0)
        if word in ("-f", "--follow"):
            live = True
        elif word in ("-n", "--lines"):
            if not left:
                raise InvalidRequest("logs -n", "a number of lines must follow")
            lines = _number(left.pop(0), "logs -n")
        elif word.startswith("-"):
            raise InvalidRequest(word, "logs takes -f and -n N")
        else:
            rest.append(word)
    (job,) = _ids(rest, "logs")
    client, here = default_client(), Here(shell, again=True)
    if job.record.kind is JobKind.CELL and lines is None:
        if live:
            follow(client, job.id, here)
            return
        for output in OutputTail(client, job.id).read(job.record):
            here.show(output)
        return
    if lines is not None or not live:
        here.write(job.logs(lines), "stdout")
    if live:
        seen = len(job.logs()) if lines is not None else 0
        for text in follow_log(client, job.id):
            here.write(text[seen:] if seen < len(text) else "", "stdout")
            seen = max(0, seen - len(text))


def _show(_: Any, words: list[str]) -> None:
    (job,) = _ids(words, "show")
    record = job.record
    told: dict[str, Any] = {
        "job": f"{record.id} ({record.tag})",
        "state": describe(record, default_client()),
        "kind": record.kind,
        "command": record.command,
        "cwd": record.cwd,
        "owner": record.owner,
        "held to it": _hold_words(record),
        "exit code": record.returncode,
        "directory": job.directory,
    }
    for name, value in told.items():
        if value is not None:
            first, *more = str(value).split("\n")
            print(f"{name:<10} {first}")
            print("".join(f"{'':<10} {line}\n" for line in more), end="")


def _hold_words(record: Any) -> str | None:
    """How far a job is held to its share, and what was seen to contradict that."""
    if record.hold is None:
        return None
    by = f", by {', '.join(record.hold.by)}" if record.hold.by else ""
    first = f"compute {record.hold.compute}, memory {record.hold.memory}{by}"
    return "\n".join([first, *record.hold.doubts])


def _wait(_: Any, words: list[str]) -> None:
    (job,) = _ids(words, "wait")
    job.wait()
    print(repr(job))


def _cancel(_: Any, words: list[str]) -> None:
    for job in _ids(words, "cancel", most=None):
        job.cancel()
        print(repr(job))


def _retry(_: Any, words: list[str]) -> Job:
    (job,) = _ids(words, "retry")
    return job.retry()


def _priority(_: Any, words: list[str]) -> None:
    (job,) = _ids(words[:1], "priority")
    _none(words[2:], "priority ID N")
    value = _number(words[1], "priority") if len(words) > 1 else None
    default_client().intend(IntentKind.PRIORITY, job.id, value)
    print(repr(job))


def _swap(_: Any, words: list[str]) -> None:
    first, second = _ids(words, "swap", 2, 2)
    default_client().intend(IntentKind.SWAP, first.id, second.id)
    print(repr(first), repr(second), sep="\n")


def _resize(_: Any, words: list[str]) -> Any:
    (job,) = _ids(words[:1], "resize")
    options = parse_options(words[1:], cell=False)
    known = {name: options.options.pop(name, None) for name in ("share", "mem")}
    if options.options or options.rest:
        raise InvalidRequest("resize", "write %gpu resize ID --share F --mem SIZE")
    return job.resize(**known)


def _free(_: Any, words: list[str]) -> Any:
    soft = words == ["--soft"]
    _none([] if soft else words, "free [--soft]")
    rest()  # a busy kernel is frozen, and this one has to tell the answer
    return free(soft=soft)


def _resume(_: Any, words: list[str]) -> Any:
    _none(words, "resume")
    return resume()


def _submit(_: Any, words: list[str]) -> Job:
    asked = parse_options(words, cell=False)
    if not asked.rest:
        raise InvalidRequest("submit", "write %gpu submit [options] -- COMMAND")
    client = default_client()
    work = (script_payload(asked.rest), options_from(asked.options))
    return Job(client, client.submit([work])[0].id)


def _pull(shell: Any, words: list[str]) -> None:
    (job,) = _ids(words[:1], "pull")
    record = job.record
    if record.kind is not JobKind.CELL:
        raise InvalidRequest("pull", f"job {job.id} is no cell; gpuqueue.job({job.id}).result()")
    if record.state not in TERMINAL:
        raise NotAllowedNow(f"job {job.id} is {record.state}; %gpu wait {job.id} waits for it")
    names = [name for word in words[1:] for name in word.split(",") if name]
    place = Here(shell)
    values = bring_back(shell, default_client(), record, place, names or None)
    there = [name for name in values if not name.startswith("<")]
    if missing := [name for name in names if name not in there]:
        has = f"it made {', '.join(there)}" if there else "it made nothing that could come back"
        raise InvalidRequest("pull", f"job {job.id} has no {', '.join(missing)}; {has}")
    place.write(f"from job {job.id}: {', '.join(names or there) or 'nothing'}\n", "stdout")


_VERBS: dict[str, Callable[[Any, list[str]], Any]] = {
    "status": _status,
    "jobs": _jobs,
    "logs": _logs,
    "show": _show,
    "wait": _wait,
    "cancel": _cancel,
    "retry": _retry,
    "priority": _priority,
    "swap": _swap,
    "resize": _resize,
    "free": _free,
    "resume": _resume,
    "submit": _submit,
    "pull": _pull,
    "share": share_line,
    "attach": attach_line,
    "release": release_line,
}

_ELSEWHERE = ("usage", "cards", "gpus", "jobs", "ps", "top", "doctor", "config", "drain", "undrain")
"""Commands of the terminal that no ``%gpu`` is needed for."""
