"""Named values in one file, between the notebook and the job and back.

The container, version 1: a magic line, the header's length (8 bytes, little endian), a JSON
header, then blobs, each at a multiple of 64 bytes. The header says for each name where its pickle
and its out-of-band buffers (pickle protocol 5) are::

    {"names": {"x": {"pickle": [offset, size], "buffers": [[offset, size, readonly], ...]}},
     "problems": {"fh": "why it is not in here"}}

All names are pickled by one pickler, one after another, so that objects shared between names stay
shared; still each name loads on its own, and one that cannot be loaded costs only itself and what
shares objects with it. Names in angle brackets are not variables: ``<error>``,
``<out>``, ``<change N>`` and others.

How objects are pickled is in ``pickling.py``. What a pickler has sent is known on both sides by the
number that pickle gave it: a job's result names what came with the inputs by that number
(``Loaded.objects``, ``origins``), so that the notebook's own objects are found again.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
import pickle
import pickletools
import time
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuqueue.run.deep import has_room, with_room
from gpuqueue.run.pickling import Sender, is_filled, loading, main_namespace
from gpuqueue.units import format_bytes

__all__ = [
    "CHANGE",
    "MAPPED",
    "SOON",
    "Dumped",
    "FromFile",
    "Known",
    "Loaded",
    "Unpicklable",
    "dump_values",
    "load_file",
    "load_values",
    "parse_values",
    "save_values",
]

_MAGIC = b"gpuqueue values 1\n"
_ALIGN = 64
_SEARCH_SECONDS = 1.0
_LARGE = 16 << 20
_LONG_PATH = 200
_OF_TRAITS = ("_trait_notifiers", "_trait_validators")
"""Attributes that do not travel as they are, see ``comms.py``."""
MAPPED = 1 << 20
"""Bytes of a buffer from which on it is mapped from the file instead of read."""
SOON = 64 << 20
"""Bytes from which on somebody who waits gets a file before it has reached the disk."""


CHANGE = "<change "
"""Begins the name of what an object that the receiver has is to become: ``<change 12>``."""


class Known(Protocol):
    """Objects that the receiver has too."""

    @property
    def numbers(self) -> Mapping[int, int]:
        """Numbers by id."""

    def number_of(self, value: Any) -> int | None:
        """The number of an object, if the receiver has just this one."""


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


@dataclass
class Dumped:
    """A container that is ready to be written.

    Attributes
    ----------
    pieces
        The container's bytes, in pieces that are not copied.
    problems
        What cannot be sent, and why.
    objects
        What was sent, by number.
    """

    pieces: list[Any]
    problems: dict[str, Unpicklable]
    objects: dict[int, Any]


def dump_values(
    values: Mapping[str, Any],
    *,
    namespace: Mapping[str, Any] | None = None,
    leave: Collection[str] | None = (),
    known: Known | None = None,
) -> Dumped:
    """Pickle named values.

    Parameters
    ----------
    values
        Values by name. What is named ``<change N>`` is sent by value even if it is known.
    namespace, leave
        The sender's ``__main__``, and names of globals that functions do not carry along, None for
        all of them.
    known
        Objects that the receiver has.
    """
    namespace = main_namespace() if namespace is None else namespace
    return with_room(lambda: _dump_values(values, namespace, leave, known))


def _dump_values(
    values: Mapping[str, Any],
    namespace: Mapping[str, Any],
    leave: Collection[str] | None,
    known: Known | None,
) -> Dumped:
    problems: dict[str, Unpicklable] = {}
    order = list(values)
    weights = dict.fromkeys(order, _LARGE)
    passes = 0
    while True:
        sender = _sender(namespace, leave, known)
        sender.expect(values.values())
        done: dict[str, tuple[bytes, list[pickle.PickleBuffer]]] = {}
        for name in order:
            try:
                done[name] = sender.dump(values[name], by_value=name.startswith(CHANGE))
            except Exception as error:
                if isinstance(error, RecursionError) and not has_room():
                    raise
                problems[name] = _blame(name, values[name], error, namespace, leave)
                order.remove(name)
                break  # the pickler has noted objects that will not be in the stream
        else:
            # The largest last, so that a reader can do without them. What names share counts for
            # whoever comes first, hence the second look.
            for name, parts in done.items():
                weights[name] = max(weights[name], _size(*parts))
            by_weight = sorted(order, key=lambda name: (name[0] != "<", weights[name]))
            passes += 1
            if by_weight == order or passes > 2:
                return Dumped(_assemble(done, problems), problems, sender.numbered())
            order = by_weight


def _sender(
    namespace: Mapping[str, Any], leave: Collection[str] | None, known: Known | None
) -> Sender:
    if known is None:
        return Sender(namespace, leave)
    return Sender(namespace, leave, known.numbers, known.number_of)


def _size(text: bytes, buffers: list[pickle.PickleBuffer]) -> int:
    return len(text) + sum(buffer.raw().nbytes for buffer in buffers)


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
    known: Known | None = None,
    flush: bool = True,
) -> dict[str, str]:
    """Write named values to a file, whole or not at all; returns what is not in it, and why.

    Without ``flush``, a large file may reach the disk only later.
    """
    dumped = dump_values(values, namespace=namespace, leave=leave, known=known)
    partial = f"{os.fspath(path)}.part"
    handle = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in dumped.pieces:
                file.write(piece)
            file.flush()
            if flush or file.tell() < SOON:
                os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return {name: str(error) for name, error in dumped.problems.items()}


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
        self._map: Any = None

    def _mapped(self, start: int, size: int) -> Any:
        """A part of the file in memory: it can be written to, and the file stays as it is."""
        if self._map is None:
            try:
                length = os.fstat(self._file.fileno()).st_size
                self._map = memoryview(mmap.mmap(self._file.fileno(), length, mmap.MAP_PRIVATE))
            except (OSError, ValueError, AttributeError):
                self._map = memoryview(b"")  # it is no file
        view = self._map[self._base + start : self._base + start + size]
        return view if len(view) == size else None

    def _blob(self, start: int, size: int, *, readonly: bool = False) -> Any:
        if size >= MAPPED and (view := self._mapped(start, size)) is not None:
            return view.toreadonly() if readonly else view
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
        return bytearray(self._blob(*self.header["names"][name]["pickle"]))

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


def _load_all(reader: _Reader, names: list[str], origins: Mapping[int, Any]) -> Loaded:
    """The quick way: one unpickler over all names."""
    stream = io.BytesIO(b"".join(reader.pickle(name) for name in names))
    buffers = (buffer for name in names for buffer in reader.buffers(name))
    unpickler = _Unpickler(stream, buffers, origins)
    values = {name: unpickler.load() for name in names}
    return Loaded(values, {}, unpickler.memo.copy())


def _load_each(reader: _Reader, names: list[str], origins: Mapping[int, Any]) -> Loaded:
    """The patient way: a name that cannot be loaded costs itself and what shares with it."""
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    memo = _Memo()
    for name in names:
        before = len(memo)
        text = bytearray()
        try:
            text = reader.pickle(name)
            unpickler: Any = _PatientUnpickler(io.BytesIO(text), reader.buffers(name), origins)
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
    made = {index: value for index, value in memo.items() if value is not _LOST}
    return Loaded(values, problems, made)


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
        return is_filled(value) or value.__module__ != "__main__"
    return value is main_namespace() or isinstance(
        value, str | bytes | int | float | types.ModuleType | types.BuiltinFunctionType
    )


def parse_values(
    file: Any,
    *,
    most: int | None = None,
    origins: Mapping[int, Any] | None = None,
    into: dict[str, Any] | None = None,
) -> Loaded:
    """Load what is in an open container.

    Parameters
    ----------
    file
        Open for reading; where it is a real file, large buffers are mapped, not copied.
    most
        A value of more bytes is not loaded.
    origins
        Objects that this process has and the container names by number.
    into
        The namespace that functions are attached to, instead of ``__main__``.
    """
    reader = _Reader(file)
    problems: dict[str, str] = dict(reader.header["problems"])
    names = list(reader.header["names"])
    for index, name in enumerate(names):
        if most is not None and name[0] != "<" and reader.size(name) > most:
            # what follows is as large or may share objects with this one
            for other in names[index:]:
                size = format_bytes(reader.size(other))
                large = reader.size(other) > most
                problems[other] = f"it is large ({size})" if large else f"it comes with {name}"
            del names[index:]
            break
    given = {} if origins is None else origins
    with loading(into):
        try:
            loaded = _load_all(reader, names, given)
        except Exception:  # noqa: BLE001 - loading runs the user's own code
            loaded = _load_each(reader, names, given)
    loaded.problems = problems | loaded.problems
    return loaded


def load_file(
    path: str | os.PathLike[str],
    *,
    most: int | None = None,
    origins: Mapping[int, Any] | None = None,
    into: dict[str, Any] | None = None,
) -> Loaded:
    """As ``parse_values``, from a file; one that does not exist holds nothing."""
    try:
        with open(path, "rb") as file:
            return parse_values(file, most=most, origins=origins, into=into)
    except FileNotFoundError:
        return Loaded({}, {})


class FromFile(dict[int, Any]):
    """The objects of a container by number, loaded when the first of them is asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = path
        self.values_of: dict[str, Any] | None = None

    def __missing__(self, number: int) -> Any:
        if self.values_of is not None:
            raise KeyError(number)
        self.load()
        return self[number]

    def load(self) -> dict[str, Any]:
        """Load it, if that has not been done; returns the named values."""
        if self.values_of is None:
            loaded = load_file(self.path)
            self.update(loaded.objects)
            self.values_of = loaded.values
        return self.values_of


def load_values(
    path: str | os.PathLike[str], *, origins: Mapping[int, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables in a file of values, and why others are not there or cannot be loaded here.

    A file that does not exist holds nothing.
    """
    loaded = load_file(path, origins=origins)
    return (
        {name: value for name, value in loaded.values.items() if not name.startswith("<")},
        {name: why for name, why in loaded.problems.items() if not name.startswith("<")},
    )
