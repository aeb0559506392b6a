"""Whether what a cell calls may look for variables by names that no source tells."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cloudpickle import cloudpickle as inner

__all__ = ["annotated", "runs_text"]

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_SAID = "__annotations__"
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


def annotated(names: Iterable[str], namespace: Mapping[str, Any]) -> set[str]:
    """Variables that the annotations of functions and classes name as text.

    So is every annotation under ``from __future__ import annotations``; nobody but
    ``typing.get_type_hints`` and its like looks them up.
    """
    found: set[str] = set()
    left = [name for name in names if name in namespace]
    while left:
        value = namespace[left.pop()]
        if not isinstance(value, types.FunctionType | type) or value.__module__ != "__main__":
            continue
        parts = [value, *vars(value).values()] if isinstance(value, type) else [value]
        for part in parts:
            if not isinstance(part, types.FunctionType | type):
                continue
            # a class without any would be given some by being asked
            known = vars(part) if isinstance(part, type) else {_SAID: part.__annotations__}
            said = known.get(_SAID)
            texts = [text for text in (said or {}).values() if isinstance(text, str)]
            new = {name for text in texts for name in _IDENTIFIER.findall(text)}
            new = {name for name in new if name in namespace} - found
            found |= new
            left += new
    return found


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
