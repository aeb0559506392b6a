"""Whether what a cell calls may look for variables by names that no source tells."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cloudpickle import cloudpickle as inner

__all__ = ["runs_text"]

_RUN_TEXT = frozenset({"eval", "exec", "globals"})


def runs_text(values: Iterable[Any], namespace: Mapping[str, Any]) -> bool:
    """Whether functions of the notebook, reached from these values, run text as code.

    Followed are functions and classes of ``__main__`` by the globals that they name, and objects to
    their classes; what objects hold is not looked through.
    """
    names = {name for name in _RUN_TEXT if name not in namespace}
    seen: set[int] = set()
    left = list(values)
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            if value.__globals__ is not namespace:
                continue
            read = inner._extract_code_globals(value.__code__)  # noqa: SLF001 - it keeps them
            if not names.isdisjoint(read):
                return True
            left += [namespace[name] for name in read if name in namespace]
            left += _inside(value)
        elif isinstance(value, type):
            if value.__module__ == "__main__":
                left += [*vars(value).values(), *value.__bases__]
        else:
            left += _parts(value)
    return False


def _inside(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
    yield from function.__defaults__ or ()
    if wrapped := vars(function).get("__wrapped__"):
        yield wrapped


def _parts(value: Any) -> list[Any]:
    """What stands behind a wrapper or an object."""
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        return [value.__func__]
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if isinstance(value, functools.partial):
        return [value.func]
    if isinstance(value, functools.cached_property):
        return [value.func]
    kind = type(value)
    if kind.__module__ == "__main__":
        return [kind]
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    return [] if wrapped is None else [wrapped]
