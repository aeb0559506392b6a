"""The options of ``%%gpu``, as typed."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuqueue.errors import InvalidRequest
from gpuqueue.model import Preset

__all__ = ["CELL_ONLY", "COMMAND_ONLY", "FLAGS", "VALUED", "Asked", "parse_options"]

VALUED = ("preset", "gpus", "share", "mem", "slots", "eta", "after", "tag", "key", "require")
"""Options that take a value, in the words of ``gpuqueue.submit``."""

FLAGS = ("restartable", "preemptible", "burst", "no-wait", *Preset)
COMMAND_ONLY = ("resumable",)
CELL_ONLY = ("bg", "in", "out")
_BOTH = (*VALUED, *FLAGS, "priority")


@dataclass
class Asked:
    """What a line asks for: options for ``options_from``, and what only a cell has."""

    options: dict[str, Any] = field(default_factory=dict)
    background: bool = False
    ins: list[str] | None = None
    outs: list[str] | None = None
    rest: list[str] = field(default_factory=list)


def split_line(line: str) -> list[str]:
    """Words of a line, quoted as for a shell.

    Raises
    ------
    InvalidRequest
        A quotation is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidRequest("options", f"{error} in: {line.strip()}") from None


def parse_options(words: Sequence[str], *, cell: bool = True) -> Asked:
    """Options from words; for a command, what follows them (or ``--``) is the rest.

    Raises
    ------
    InvalidRequest
        Names the option, and the one that was probably meant.
    """
    asked, left = Asked(), list(words)
    while left:
        word = left.pop(0)
        if not cell and (word == "--" or not word.startswith("-")):
            asked.rest = left if word == "--" else [word, *left]
            break
        if not word.startswith("--") or word == "--":
            raise InvalidRequest(word, "options begin with --, such as --one or --mem 6G")
        name, equals, value = word[2:].partition("=")
        _check(name, cell=cell)
        if name in VALUED or name in ("in", "out"):
            if not equals:
                if not left:
                    raise InvalidRequest(f"--{name}", "a value must follow")
                value = left.pop(0)
            _set(asked, name, value)
        elif name == "priority":
            if not equals and left and _is_number(left[0]):
                value = left.pop(0)
            asked.options["priority"] = value or True
        elif equals:
            raise InvalidRequest(f"--{name}", "takes no value")
        elif name == "bg":
            asked.background = True
        elif name == "no-wait":
            asked.options["wait"] = False
        elif name in {"restartable", "preemptible", "resumable", "burst"}:
            asked.options[name] = True
        else:
            _preset(asked, name)
    return asked


def _check(name: str, *, cell: bool) -> None:
    known = (*_BOTH, *(CELL_ONLY if cell else COMMAND_ONLY))
    if name in known:
        return
    if cell and name in COMMAND_ONLY:
        raise InvalidRequest(
            f"--{name}",
            "is for commands; a cell can save with gpuqueue.checkpoint, which needs no option",
        )
    close = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean --{close[0]}?" if close else "there are --" + ", --".join(known)
    raise InvalidRequest(f"--{name}", f"no such option; {hint}")


def _set(asked: Asked, name: str, value: str) -> None:
    if name in ("in", "out"):
        names = [part for part in value.replace(",", " ").split() if part]
        if name == "in":
            asked.ins = [*(asked.ins or ()), *names]
        else:
            asked.outs = [*(asked.outs or ()), *names]
    elif name == "preset":
        _preset(asked, value)
    else:
        asked.options[name] = value


def _preset(asked: Asked, value: str) -> None:
    before = asked.options.setdefault("preset", value)
    if before != value:
        raise InvalidRequest(f"--{value}", f"contradicts --{before}")


def _is_number(word: str) -> bool:
    return word.removeprefix("-").isdigit()
