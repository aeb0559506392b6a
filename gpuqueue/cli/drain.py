"""``gpuqueue drain`` and ``undrain``: GPUs that take no new jobs."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuqueue.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuqueue.client import LocalClient

__all__ = ["drain", "set_in_file", "undrain"]

Indices = Annotated[list[int], typer.Argument(metavar="GPU...", help="Numbers of GPUs.")]


def drain(gpus: Indices) -> None:
    """Give a GPU no new jobs. What runs there may end."""
    _change(gpus, drained=True)


def undrain(gpus: Indices) -> None:
    """Give a drained GPU jobs again."""
    _change(gpus, drained=False)


def _change(indices: Sequence[int], *, drained: bool) -> None:
    from gpuqueue.client.local import default_client

    client = default_client()
    known = {gpu.index for gpu in client.machine().gpus}
    for index in indices:
        if drained and index not in known:
            there = ", ".join(map(str, sorted(known))) or "none"
            raise InvalidRequest("gpu", f"there is no GPU {index}; the GPUs here are: {there}")
    before = set(client.settings.drained)
    after = before | set(indices) if drained else before - set(indices)
    if after != before:
        set_in_file(client.home.config, "drained", sorted(after))
    for index in dict.fromkeys(indices):
        typer.echo(_sentence(client, index, drained=drained))


def _sentence(client: LocalClient, index: int, *, drained: bool) -> str:
    if not drained:
        return f"GPU {index} takes jobs"
    from gpuqueue.client.status import status_of

    gpus = status_of(client, recent=0).to_dict()["gpus"]
    held = [gpu["grants"] for gpu in gpus if gpu["index"] == index]
    jobs = ", ".join(f"job {grant['job']} ({grant['tag']})" for grants in held for grant in grants)
    return f"GPU {index} takes no new jobs; " + (f"still there: {jobs}" if jobs else "it is empty")


def set_in_file(path: Path, name: str, value: object) -> None:
    """Change one setting in a settings file and leave all else in it as it is.

    Raises
    ------
    InvalidRequest
        The file has it in a form that cannot be changed a line at a time.
    """
    path = Path(os.path.realpath(path))  # a link to somebody's dotfiles stays one
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    before = _parsed(text)
    if before is None:
        raise InvalidRequest(str(path), "is not valid TOML; mend it first")
    line = f"{name} = {json.dumps(value)}"
    # as a line of its own, or as the comment that explains it
    pattern = re.compile(rf"^[ \t]*#?[ \t]*{re.escape(name)}[ \t]*=.*$", re.MULTILINE)
    live = re.compile(rf"^[ \t]*{re.escape(name)}[ \t]*=.*$", re.MULTILINE)
    chosen = live if live.search(text) else pattern
    changed, count = chosen.subn(lambda _: line, text, count=1)
    if not count:
        # before the first table: what comes after its head would be part of it
        head, table, rest = re.match(r"(?s)(.*?)(^[ \t]*\[|\Z)(.*)", text, re.MULTILINE).groups()  # type: ignore[union-attr]
        gap = "" if not head or head.endswith("\n") else "\n"
        changed = f"{head}{gap}{line}\n{table}{rest}"
    if _parsed(changed) != {**before, name: value}:
        raise InvalidRequest(name, f"set {line} in {path} yourself: it is in another form there")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(
            os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(changed)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _parsed(text: str) -> dict[str, object] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
