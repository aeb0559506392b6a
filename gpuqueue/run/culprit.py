"""Which part of a value it is that cannot be sent to another process."""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gpuqueue.run.pickling import Sender

__all__ = ["Unpicklable", "blame"]

_SEARCH_SECONDS = 1.0
_LONG_PATH = 200
_OF_TRAITS = ("_trait_notifiers", "_trait_validators")
"""Attributes that do not travel as they are, see ``comms.py``."""


class Unpicklable(Exception):
    """A value that cannot be sent.

    Attributes
    ----------
    name
        The variable.
    path
        The way from the variable to the culprit, such as ``trk._guard``.
    kind
        The culprit's type.
    reason
        What pickle said.
    """

    def __init__(self, name: str, path: str, kind: str, reason: str) -> None:
        if len(path) > _LONG_PATH:
            path = f"{path[: _LONG_PATH // 2]} ... {path[-_LONG_PATH // 2 :]}"
        super().__init__(f"{path} is a {kind}, which cannot be sent to another process ({reason})")
        self.name = name
        self.path = path
        self.kind = kind
        self.reason = reason


def blame(
    name: str,
    value: Any,
    error: Exception,
    namespace: Mapping[str, Any],
    leave: Collection[str] | None,
) -> Unpicklable:
    """Follow the failure down to the smallest part that has it."""
    deadline = time.monotonic() + _SEARCH_SECONDS
    path, culprit, seen = name, value, {id(value)}
    while time.monotonic() < deadline:
        for label, part in _parts(culprit):
            if id(part) in seen or time.monotonic() > deadline:
                continue
            seen.add(id(part))
            try:
                Sender(namespace, leave).dump(part)
            except Exception as found:  # noqa: BLE001
                path, culprit, error = path + label, part, found
                break
        else:
            break
    words = str(error) or type(error).__name__
    return Unpicklable(name, path, type(culprit).__qualname__, words.splitlines()[0][:300])


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object is made of, each with how to write the step to it."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items())[:1000])
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value[:1000]))
    elif isinstance(value, set | frozenset):
        yield from ((" (an element)", part) for part in list(value)[:1000])
    if isinstance(value, types.FunctionType):
        yield from _function_parts(value)
        return
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
        return
    with contextlib.suppress(Exception):
        kept = list(vars(value).items())[:1000]
        yield from ((f".{key}", part) for key, part in kept if key not in _OF_TRAITS)
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(Exception):
                yield f".{slot}", getattr(value, slot)
    for attribute in ("func", "args", "keywords"):  # functools.partial
        if type(value).__name__ == "partial":
            yield f".{attribute}", getattr(value, attribute)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
        with contextlib.suppress(ValueError):
            yield f" (uses {name})", cell.cell_contents
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield f" (uses {name})", function.__globals__[name]
    yield from ((" (a default)", part) for part in function.__defaults__ or ())
