"""What a request asks, checked field by field. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuqueue.errors import InvalidRequest, UnknownJob
from gpuqueue.model import JobState

__all__ = [
    "MOST_BODY",
    "Asked",
    "Query",
    "Submission",
    "body_of",
    "integer",
    "job_number",
    "submission_of",
]

MOST_BODY = 1 << 20
"""The largest request body in bytes."""
_MOST_ID = 2**63 - 1
_EVERYWHERE = frozenset({"token", "no_track_activity", "_xsrf"})


def job_number(text: str) -> int:
    """The number in a job's address.

    Raises
    ------
    UnknownJob
        No job can have it.
    """
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else 0
    if not 0 < number <= _MOST_ID:
        raise UnknownJob(f"there is no job {text[:40]!r}; a job's address ends in its number")
    return number


def integer(value: object, field: str, least: int, most: int) -> int:
    """A whole number in a range.

    Raises
    ------
    InvalidRequest
        It is something else; names the field.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(field, f"write a whole number from {least} to {most}")
    return value


class Query:
    """The part of an address behind the question mark; only the names given are allowed."""

    def __init__(self, arguments: Mapping[str, Sequence[bytes]], *names: str) -> None:
        self._values: dict[str, list[str]] = {}
        for name, values in arguments.items():
            # JupyterLab adds the time as a bare number so that nothing is cached
            if name in _EVERYWHERE or name.isdecimal():
                continue
            if name not in names:
                known = f"there are {', '.join(names)}" if names else "there are none here"
                raise InvalidRequest(name[:80], f"no such parameter; {known}")
            try:
                self._values[name] = [value.decode() for value in values]
            except UnicodeDecodeError:
                raise InvalidRequest(name, "is not UTF-8") from None

    def text(self, name: str) -> str | None:
        """A parameter given at most once."""
        values = self._values.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidRequest(name, "is given more than once")
        return values[0]

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number in a range."""
        text = self.text(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 19):
            raise InvalidRequest(name, f"write a whole number from {least} to {most}")
        return integer(int(text), name, least, most)

    def states(self, name: str) -> list[str] | None:
        """Job states, separated by commas or given several times."""
        if name not in self._values:
            return None
        found = [part.strip() for text in self._values[name] for part in text.split(",")]
        for state in found:
            if state not in list(JobState):
                raise InvalidRequest(name, f"no such state; there are {', '.join(JobState)}")
        return found


def body_of(content: bytes, *names: str) -> dict[str, Any]:
    """A request's JSON object; none at all is an empty one.

    Raises
    ------
    InvalidRequest
        It is too large, no JSON, no object, or has a member that is not among ``names``.
    """
    if len(content) > MOST_BODY:
        raise InvalidRequest("body", f"is larger than {MOST_BODY} bytes")
    if not content.strip():
        return {}
    try:
        value = json.loads(content.decode())
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise InvalidRequest("body", "is not UTF-8") from None
    except UnicodeEncodeError:
        raise InvalidRequest("body", "holds half of a surrogate pair") from None
    except RecursionError:
        raise InvalidRequest("body", "is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest("body", f"is not JSON ({str(error)[:100]})") from None
    if not isinstance(value, dict):
        raise InvalidRequest("body", f"write a JSON object, not {_kind(value)}")
    for name in value:
        if name not in names:
            known = f"there are {', '.join(names)}" if names else "none is expected here"
            raise InvalidRequest(name[:80], f"no such member; {known}")
    return value


class Submission:
    """What ``POST jobs`` asks for."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.command = _command(body.get("command"))
        self.options: dict[str, Any] = _object(body, "options")
        self.cwd = _text(body, "cwd")
        self.env = _environment(_object(body, "env"))
        self.parameters = _object(body, "parameters")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, whichever way it came.

    Attributes
    ----------
    id
        The job's number in the address, as text.
    arguments
        The parameters behind the question mark.
    content
        The body.
    owner
        Who asks; None where people are not told apart, and so it is this process's own user.
    folder
        What a relative working directory is below.
    origin
        The kind of origin of jobs that are queued.
    browser
        Whether somebody at a browser asks: a person, even if an agent has started the server.
    about
        What the side that answers says of itself, as ``status`` tells it under ``server``.
    """

    id: str = ""
    arguments: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    content: bytes = b""
    owner: str | None = None
    folder: Path = Path()
    about: Callable[[], dict[str, Any]] = dict
    origin: str = "rest"
    browser: bool = False

    @property
    def job(self) -> int:
        """The number of the job that it is about."""
        return job_number(self.id)

    def query(self, *names: str) -> Query:
        """The parameters, of which there may be only these."""
        return Query(self.arguments, *names)

    def body(self, *names: str) -> dict[str, Any]:
        """The JSON object that was sent, of which there may be only these members."""
        return body_of(self.content, *names)


def submission_of(content: bytes) -> Submission:
    """Read the body of ``POST jobs``.

    Raises
    ------
    InvalidRequest
        Names the member that is wrong.
    """
    return Submission(body_of(content, "command", "options", "cwd", "env", "parameters"))


def _command(value: object) -> str | list[str]:
    if value is None:
        raise InvalidRequest("command", "is missing; write a list of words or a line for the shell")
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRequest("command", "holds a NUL character")
        return value
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    raise InvalidRequest("command", "write a list of texts, or one text")


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(name, f"write an object, not {_kind(value)}")
    return value


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidRequest(name, "write the path of a directory")
    return value


def _environment(values: dict[str, Any]) -> dict[str, str]:
    for name, value in values.items():
        # the value may be a secret: no message holds it
        if not name or "=" in name or "\0" in name:
            raise InvalidRequest("env", f"{name[:80]!r} is not the name of a variable")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidRequest("env", f"{name[:80]}: its value must be text")
    return values


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), "an object")
