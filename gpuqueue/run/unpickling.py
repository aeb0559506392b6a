"""How objects are made of their pickles: quickly, and name by name where one cannot be loaded."""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuqueue.run.container import Reader
from gpuqueue.run.making import is_filled, loading, main_namespace
from gpuqueue.run.pickling import uncollected

__all__ = ["Loaded", "unpickle"]


class _Memo(dict[int, Any]):
    """A memo in which what a failed load may have half made cannot be found."""

    def __getitem__(self, index: int) -> Any:
        value = super().__getitem__(index)
        if value is _LOST:
            raise pickle.UnpicklingError("it is part of what could not be loaded")
        return value


_LOST = object()


@dataclass
class Loaded:
    """What was in a container.

    Attributes
    ----------
    values
        By name.
    problems
        What is not there, or could not be loaded, and why.
    objects
        Everything that was made, by the number that the sender knows it by.
    """

    values: dict[str, Any]
    problems: dict[str, str]
    objects: dict[int, Any] = field(default_factory=dict)


class _Unpickler(pickle.Unpickler):
    """Finds objects that this process has by their number."""

    def __init__(self, file: Any, buffers: Any, origins: Mapping[int, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._origins = origins

    def persistent_load(self, number: Any) -> Any:
        return self._origins[number]


class _PatientUnpickler(pickle._Unpickler):  # noqa: SLF001
    """The same in Python: the memo of C's cannot be handed on."""

    def __init__(self, file: Any, buffers: Any, origins: Mapping[int, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._origins = origins

    def persistent_load(self, number: Any) -> Any:
        return self._origins[number]


class _Lent:
    """Puts values into the namespace while others are loaded, whose own code may look for them.

    A class with a ``__setstate__`` that calls a function, or makes a lock of ``threading``.
    """

    def __enter__(self) -> _Lent:
        self._space = main_namespace()
        self._names: list[str] = []
        return self

    def lend(self, name: str, value: Any) -> Any:
        """Bind a name that means nothing yet; returns the value."""
        if name[0] != "<" and name not in self._space:
            self._space[name] = value
            self._names.append(name)
        return value

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self._space.pop(name, None)


def _load_all(reader: Reader, names: list[str], origins: Mapping[int, Any], lent: _Lent) -> Loaded:
    """The quick way: one unpickler over all names."""
    stream = io.BytesIO(b"".join(reader.pickle(name) for name in names))
    buffers = (buffer for name in names for buffer in reader.buffers(name))
    unpickler = _Unpickler(stream, buffers, origins)
    values = {name: lent.lend(name, unpickler.load()) for name in names}
    return Loaded(values, {}, unpickler.memo.copy())


def _load_each(reader: Reader, names: list[str], origins: Mapping[int, Any], lent: _Lent) -> Loaded:
    """The patient way: a name that cannot be loaded costs itself and what shares with it."""
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    memo = _Memo()
    for name in names:
        before = len(memo)
        text: Any = b""
        try:
            text = reader.pickle(name)
            unpickler: Any = _PatientUnpickler(io.BytesIO(text), reader.buffers(name), origins)
            unpickler.memo = memo
            values[name] = lent.lend(name, unpickler.load())
        except Exception as error:  # noqa: BLE001 - loading runs the user's own code
            words = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0][:300]
            if problems and isinstance(error, pickle.UnpicklingError):
                words = f"it shares objects with {' or '.join(problems)}"
            problems[name] = f"it cannot be loaded here ({words})"
            count = _memoized(text)
            for index in range(before, before + count):
                if not _is_whole(memo.get(index, _LOST)):
                    memo[index] = _LOST
    made = {index: value for index, value in memo.items() if value is not _LOST}
    return Loaded(values, problems, made)


def _memoized(text: Any) -> int:
    """How many objects a pickle puts into the memo; 0 if it is cut short."""
    try:
        return sum(op.name == "MEMOIZE" for op, _, _ in pickletools.genops(bytes(text)))
    except ValueError:
        return 0


def _is_whole(value: Any) -> bool:
    """Whether something that a failed load has made is surely finished, so that others may use it.

    Without this, one result that cannot be loaded would cost every function and class beside it.
    """
    if isinstance(value, type | types.FunctionType):
        return is_filled(value) or value.__module__ != "__main__"
    return value is main_namespace() or isinstance(
        value, str | bytes | int | float | types.ModuleType | types.BuiltinFunctionType
    )


def unpickle(
    reader: Reader,
    names: list[str],
    origins: Mapping[int, Any],
    into: dict[str, Any] | None,
) -> Loaded:
    """Load these names of a container, in its order; the rest is as ``parse_values`` has it."""
    with loading(into), uncollected(), _Lent() as lent:
        try:
            loaded = _load_all(reader, names, origins, lent)
        except Exception:  # noqa: BLE001 - loading runs the user's own code
            loaded = _load_each(reader, names, origins, lent)
            if any("NameError" in why for why in loaded.problems.values()):
                # what was looked for may have come after who looked
                with contextlib.suppress(Exception):
                    loaded = _load_all(reader, names, origins, lent)
    return loaded
