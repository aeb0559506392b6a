"""Named values in one file, between the notebook and the job and back.

The container, version 1: a magic line, the header's length (8 bytes, little endian), a JSON
header, then blobs, each at a multiple of 64 bytes. The header says for each name where its pickle
and its out-of-band buffers (pickle protocol 5) are::

    {"names": {"x": {"pickle": [offset, size], "buffers": [[offset, size, readonly], ...]}},
     "problems": {"fh": "why it is not in here"}}

All names are pickled by one pickler, one after another, so that objects shared between names stay
shared; still each name loads on its own, and one that cannot be loaded costs only itself and what
shares objects with it. Names in angle brackets are not variables: see ``load_extras``.

Functions of ``__main__`` are attached to the ``__main__`` of the process that loads them, as if
they had been defined there; classes that the process knows already are left as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import pickletools
import sys
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as inner

from gpuqueue.units import format_bytes

__all__ = [
    "Unpicklable",
    "dump_values",
    "load_extras",
    "load_values",
    "parse_values",
    "save_values",
]

_MAGIC = b"gpuqueue values 1\n"
_ALIGN = 64
_SEARCH_SECONDS = 1.0
_LARGE = 16 << 20


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
        super().__init__(f"{path} is a {kind}, which cannot be sent to another process ({reason})")
        self.name = name
        self.path = path
        self.kind = kind
        self.reason = reason


# -- pickling ---------------------------------------------------------------------------------


class _Main:
    """Stands for the namespace of ``__main__`` in a pickle."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_namespace, ()


def main_namespace() -> dict[str, Any]:
    """The namespace to which loaded functions of ``__main__`` are attached."""
    return sys.modules["__main__"].__dict__


_fresh: dict[int, type] = {}
_filled: set[int] = set()
"""Functions and classes that the load in progress has finished, by id."""


def make_class(maker: Callable[..., type], *args: Any) -> type:
    """Make a class by value, or find the one that this process knows under its tracking id."""
    known = args[-2] in inner._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: SLF001 - there is no public way
    made = maker(*args)
    if not known:
        _fresh[id(made)] = made
    return made


def fill_class(made: type, state: Any) -> type:
    """Fill a class that has just been made; one that was here before keeps what it has."""
    if _fresh.pop(id(made), None) is not None:
        inner._class_setstate(made, state)  # noqa: SLF001
    _filled.add(id(made))
    return made


def fill_function(made: types.FunctionType, state: Any) -> None:
    """Fill a function, without replacing the builtins of the namespace it joins."""
    builtins = made.__globals__.get("__builtins__")
    inner._function_setstate(made, state)  # noqa: SLF001
    if builtins is not None:
        made.__globals__["__builtins__"] = builtins
    _filled.add(id(made))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with functions and classes of ``__main__`` as this module's docstring says.

    Parameters
    ----------
    namespace
        The sender's ``__main__``.
    leave
        Names of globals that functions do not carry along; None: they carry none.
    """

    def __init__(
        self,
        file: Any,
        namespace: Mapping[str, Any],
        leave: Collection[str] | None,
        buffers: list[pickle.PickleBuffer],
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.globals_ref[id(namespace)] = _Main()
        self._main = namespace
        self._leave = leave

    def reducer_override(self, obj: Any) -> Any:
        """Reduce functions and classes in our own way."""
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        make, args, state, _, _, fill = reduced
        if fill is inner._class_setstate:  # noqa: SLF001
            return make_class, (make, *args), state, None, None, fill_class
        if fill is inner._function_setstate:  # noqa: SLF001
            if obj.__globals__ is self._main:
                carried = state[1]["__globals__"]
                state[1]["__globals__"] = {
                    name: value
                    for name, value in carried.items()
                    if self._leave is not None and name not in self._leave
                }
            return make, args, state, None, None, fill_function
        return reduced


class _Sender:
    """One pickler over several names."""

    def __init__(self, namespace: Mapping[str, Any], leave: Collection[str] | None) -> None:
        self._file = io.BytesIO()
        self._buffers: list[pickle.PickleBuffer] = []
        self._pickler = _Pickler(self._file, namespace, leave, self._buffers)

    def dump(self, value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
        self._file.seek(0)
        self._file.truncate()
        self._buffers.clear()
        self._pickler.dump(value)
        return self._file.getvalue(), list(self._buffers)


def dump_values(
    values: Mapping[str, Any],
    *,
    namespace: Mapping[str, Any] | None = None,
    leave: Collection[str] | None = (),
) -> tuple[list[Any], dict[str, Unpicklable]]:
    """Pickle named values; returns the container in pieces, and what cannot be sent and why.

    ``namespace`` is the sender's ``__main__``; ``leave`` names globals that functions do not
    carry along, None for all of them.
    """
    namespace = main_namespace() if namespace is None else namespace
    problems: dict[str, Unpicklable] = {}
    order = list(values)
    weights = dict.fromkeys(order, _LARGE)
    passes = 0
    while True:
        sender = _Sender(namespace, leave)
        done: dict[str, tuple[bytes, list[pickle.PickleBuffer]]] = {}
        for name in order:
            try:
                done[name] = sender.dump(values[name])
            except Exception as error:  # noqa: BLE001 - whatever the value's own code raises
                problems[name] = _blame(name, values[name], error, namespace, leave)
                order.remove(name)
                break  # the pickler has noted objects that will not be in the stream
        else:
            # The largest last, so that a reader can do without them. What names share counts for
            # whoever comes first, hence the second look.
            for name, parts in done.items():
                weights[name] = max(weights[name], _size(*parts))
            by_weight = sorted(order, key=weights.__getitem__)
            passes += 1
            if by_weight == order or passes > 2:
                return _assemble(done, problems), problems
            order = by_weight


def _size(text: bytes, buffers: list[pickle.PickleBuffer]) -> int:
    return len(text) + sum(buffer.raw().nbytes for buffer in buffers)


def fingerprint(value: Any, namespace: Mapping[str, Any]) -> bytes:
    """What changes when a value is changed in place; empty where that cannot be told."""
    try:
        text, buffers = _Sender(namespace, None).dump(value)
    except Exception:  # noqa: BLE001 - whatever the value's own code raises
        return b""
    digest = hashlib.blake2b(text)
    for buffer in buffers:
        digest.update(buffer.raw())
    return digest.digest()


def _assemble(
    done: Mapping[str, tuple[bytes, list[pickle.PickleBuffer]]], problems: Mapping[str, Exception]
) -> list[Any]:
    blobs: list[Any] = []
    size = 0

    def place(blob: Any) -> list[int]:
        nonlocal size
        start, length = size, memoryview(blob).nbytes
        blobs.append(blob)
        size += length
        if gap := -size % _ALIGN:
            blobs.append(bytes(gap))
            size += gap
        return [start, length]

    names = {
        name: {
            "pickle": place(text),
            "buffers": [
                [*place(raw), raw.readonly] for raw in (buffer.raw() for buffer in buffers)
            ],
        }
        for name, (text, buffers) in done.items()
    }
    header = json.dumps(
        {"names": names, "problems": {name: str(error) for name, error in problems.items()}}
    ).encode()
    head = _MAGIC + len(header).to_bytes(8, "little") + header
    return [head, bytes(-len(head) % _ALIGN), *blobs]


def save_values(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    *,
    namespace: Mapping[str, Any] | None = None,
    leave: Collection[str] | None = (),
) -> dict[str, str]:
    """Write named values to a file, whole or not at all; returns what is not in it, and why."""
    pieces, problems = dump_values(values, namespace=namespace, leave=leave)
    partial = f"{os.fspath(path)}.part"
    handle = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return {name: str(error) for name, error in problems.items()}


# -- finding the culprit ----------------------------------------------------------------------


def _blame(
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
                _Sender(namespace, leave).dump(part)
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
        yield from ((f".{key}", part) for key, part in list(vars(value).items())[:1000])
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


# -- loading ----------------------------------------------------------------------------------


class _Reader:
    """The parts of one container."""

    def __init__(self, file: Any) -> None:
        self._file = file
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("this is not a file of gpuqueue values, or of another version")
        length = int.from_bytes(file.read(8), "little")
        self.header = json.loads(file.read(length))
        head = len(_MAGIC) + 8 + length
        self._base = head + (-head % _ALIGN)

    def _blob(self, start: int, size: int, *, readonly: bool = False) -> Any:
        # a bytearray, because an array over it can be written to
        blob = bytearray(size)
        self._file.seek(self._base + start)
        view = memoryview(blob)
        while view:
            count = self._file.readinto(view)
            if not count:
                raise EOFError("the file of values is cut short")
            view = view[count:]
        return memoryview(blob).toreadonly() if readonly else blob

    def size(self, name: str) -> int:
        """Bytes of a name's pickle and buffers."""
        entry = self.header["names"][name]
        return int(entry["pickle"][1] + sum(size for _, size, _ in entry["buffers"]))

    def pickle(self, name: str) -> bytearray:
        text: bytearray = self._blob(*self.header["names"][name]["pickle"])
        return text

    def buffers(self, name: str) -> Iterator[Any]:
        for start, size, readonly in self.header["names"][name]["buffers"]:
            yield self._blob(start, size, readonly=readonly)


class _Memo(dict[int, Any]):
    """A memo in which what a failed load may have half made cannot be found."""

    def __getitem__(self, index: int) -> Any:
        value = super().__getitem__(index)
        if value is _LOST:
            raise pickle.UnpicklingError("it is part of what could not be loaded")
        return value


_LOST = object()


def _load_all(reader: _Reader, names: list[str]) -> dict[str, Any]:
    """The quick way: one unpickler over all names."""
    stream = io.BytesIO(b"".join(reader.pickle(name) for name in names))
    buffers = (buffer for name in names for buffer in reader.buffers(name))
    unpickler = pickle.Unpickler(stream, buffers=buffers)
    return {name: unpickler.load() for name in names}


def _load_each(reader: _Reader, names: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The patient way: a name that cannot be loaded costs itself and what shares with it."""
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    memo = _Memo()
    _filled.clear()
    for name in names:
        before = len(memo)
        text = bytearray()
        try:
            text = reader.pickle(name)
            # the memo of C's Unpickler cannot be handed on, that of Python's can
            unpickler: Any = pickle._Unpickler(io.BytesIO(text), buffers=reader.buffers(name))  # noqa: SLF001
            unpickler.memo = memo
            values[name] = unpickler.load()
        except Exception as error:  # noqa: BLE001 - loading runs the user's own code
            words = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0][:300]
            if problems and isinstance(error, pickle.UnpicklingError):
                words = f"it shares objects with {' or '.join(problems)}"
            problems[name] = f"it cannot be loaded here ({words})"
            count = _memoized(text)
            for index in range(before, before + count):
                if not _is_whole(memo.get(index, _LOST)):
                    memo[index] = _LOST
    return values, problems


def _memoized(text: bytearray) -> int:
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
        return id(value) in _filled or value.__module__ != "__main__"
    return value is main_namespace() or isinstance(
        value, str | bytes | int | float | types.ModuleType | types.BuiltinFunctionType
    )


def parse_values(file: Any, *, most: int | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Load what is in an open container; returns values, and problems by name.

    A value of more than ``most`` bytes is not loaded.
    """
    reader = _Reader(file)
    problems: dict[str, str] = dict(reader.header["problems"])
    names = list(reader.header["names"])
    for index, name in enumerate(names):
        if most is not None and reader.size(name) > most:
            # what follows is as large or may share objects with this one
            for other in names[index:]:
                size = format_bytes(reader.size(other))
                large = reader.size(other) > most
                problems[other] = f"it is large ({size})" if large else f"it comes with {name}"
            del names[index:]
            break
    try:
        return _load_all(reader, names), problems
    except Exception:  # noqa: BLE001 - loading runs the user's own code
        values, found = _load_each(reader, names)
        return values, problems | found


def load_values(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables in a file of values, and why others are not there or cannot be loaded here.

    A file that does not exist holds nothing.
    """
    values, problems = _load(path)
    return (
        {name: value for name, value in values.items() if not name.startswith("<")},
        {name: why for name, why in problems.items() if not name.startswith("<")},
    )


def load_extras(
    path: str | os.PathLike[str], *, most: int | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """As ``load_values``, with what is not a variable too: ``<error>``, ``<out>``.

    Values of more than ``most`` bytes stay in the file, and are named as problems.
    """
    return _load(path, most)


def _load(
    path: str | os.PathLike[str], most: int | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with open(path, "rb") as file:
            return parse_values(file, most=most)
    except FileNotFoundError:
        return {}, {}


def change_in_place(old: Any, new: Any) -> Any:
    """Make an object what its changed copy is, and return it; where that cannot be, the copy.

    Its own identity is kept, so that other names for it see the change; what it holds is the
    copy's.
    """
    if type(old) is not type(new):
        return new
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)
    elif hasattr(old, "shape") and hasattr(old, "__setitem__"):
        if old.shape != new.shape or old.dtype != new.dtype:
            return new
        try:
            old[...] = new
        except Exception:  # noqa: BLE001 - read-only, or an array of another kind
            return new
    elif isinstance(old, type | types.ModuleType | types.FunctionType) or not hasattr(
        old, "__dict__"
    ):
        return new
    else:
        vars(old).clear()
        vars(old).update(vars(new))
    return old
