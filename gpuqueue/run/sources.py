"""The lines of cells: in no file, and looked for by tracebacks and ``inspect`` all the same."""

from __future__ import annotations

import linecache
import types
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["known_names", "names_in", "put_sources", "sources"]


def _numbers(shell: Any) -> dict[str, Any]:
    """By name, the number of the cell, as a traceback shows it."""
    found = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return found if isinstance(found, dict) else {}


def known_names(shell: Any) -> set[str]:
    """Names of the cells that a shell has run."""
    return set(_numbers(shell))


def sources(shell: Any, names: Iterable[str]) -> dict[str, list[Any]]:
    """For each name that is a cell's: its lines, and the cell's number or None."""
    found = {}
    for name in names:
        entry = linecache.cache.get(name)
        if entry is not None and len(entry) == 4 and entry[1] is None:
            found[name] = [list(entry[2]), _numbers(shell).get(name)]
    return found


def names_in(objects: Iterable[Any]) -> set[str]:
    """The names under which the lines of functions are looked for."""
    return {
        value.__code__.co_filename for value in objects if isinstance(value, types.FunctionType)
    }


def put_sources(shell: Any, found: Mapping[str, list[Any]]) -> None:
    """Have lines where tracebacks look for them; those that are there already stay."""
    for name, (lines, number) in found.items():
        if name not in linecache.cache:
            linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)
        if number is not None:
            _numbers(shell).setdefault(name, number)
