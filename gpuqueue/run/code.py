"""Pickling calls so that tracebacks in the job show the user's lines.

cloudpickle gives code that it sends by value a made-up file name, and a notebook's cells are in no
file at all. Here code keeps its file name, and the lines that are on no disk travel along.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle

__all__ = ["dump_call", "load_call", "named_code"]


def named_code(make: Callable[..., types.CodeType], args: Any, filename: str) -> types.CodeType:
    """Make a code object and give it back its file name; called by pickle in the job."""
    return make(*args).replace(co_filename=filename)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with file names; ``lines`` has the sources that are on no disk."""

    def __init__(self, file: io.BytesIO) -> None:
        # pickle looks the table up once, when it is initialised
        self.dispatch_table = ChainMap(
            {types.CodeType: self._reduce_code}, cloudpickle.Pickler.dispatch_table
        )
        self.lines: dict[str, list[str]] = {}
        super().__init__(file, protocol=5)

    def _reduce_code(self, code: types.CodeType) -> Any:
        make, args = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
        name = code.co_filename
        if name not in self.lines and not os.path.isfile(name):
            self.lines[name] = linecache.getlines(name)
        return named_code, (make, args, name)


def dump_call(value: Any) -> bytes:
    """Pickle a call, by value where it was defined in a notebook or a script."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return pickle.dumps(pickler.lines) + file.getvalue()


def load_call(file: Any) -> Any:
    """The call in an open file, its lines made known to tracebacks."""
    for name, lines in pickle.load(file).items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return pickle.load(file)
