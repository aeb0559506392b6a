"""Doing something as soon as a module is imported, without importing it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuqueue.run.quiet import quiet
from gpuqueue.run.surroundings import put_warnings, take_warnings

__all__ = ["is_here", "keep_filters", "stop_waiting", "when_imported"]


def is_here(module: str) -> bool:
    """Whether a module has been imported to its end; the empty name means Python itself."""
    if not module:
        return True
    found = sys.modules.get(module)
    # one that is just being imported has nothing to show yet
    return found is not None and not getattr(
        getattr(found, "__spec__", None), "_initializing", False
    )


def when_imported(module: str, name: str, work: Callable[[], None]) -> None:
    """Do something when a module arrives; what waits for it under the same name is forgotten."""
    _finder().later.setdefault(module, {})[name] = work


def stop_waiting(name: str) -> None:
    """Forget what waits under a name, for whichever module."""
    for waiting in _finder().later.values():
        waiting.pop(name, None)


def keep_filters(imported: Iterable[str]) -> None:
    """Let the import of these change no warning filters and print nothing: that has been done."""
    _finder().quiet = frozenset(name for name in imported if name not in sys.modules)


class _Finder(importlib.abc.MetaPathFinder):
    """Watches imports; finds nothing itself."""

    def __init__(self) -> None:
        self.later: dict[str, dict[str, Callable[[], None]]] = {}
        self.quiet: frozenset[str] = frozenset()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Have the others find it, and watch its loader."""
        if not self.later.get(fullname) and fullname not in self.quiet:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    self._watch(spec)
                return spec
        return None

    def _watch(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            filters = take_warnings()
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            with quiet() if spec.name in self.quiet else contextlib.nullcontext():
                run(module)
            if spec.name in self.quiet:
                put_warnings(filters)
            for work in self.later.pop(spec.name, {}).values():
                with contextlib.suppress(Exception):  # a library of another version
                    work()

        with contextlib.suppress(AttributeError):  # a loader that is one for all modules
            loader.exec_module = exec_module


_made: list[_Finder] = []


def _finder() -> _Finder:
    """The one of this process, first among those that find modules."""
    if not _made:
        _made.append(_Finder())
    finder = _made[0]
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
    return finder
