"""Named values in one file, between the notebook and the job and back.

All names are pickled by one pickler, one after another, so that objects shared between names stay
shared; still each name loads on its own, and one that cannot be loaded costs only itself and what
shares objects with it. Names in angle brackets are not variables: ``<error>``,
``<out>``, ``<change N>`` and others.

The format of the file is in ``container.py``, how objects are pickled in ``pickling.py``. What a
pickler has sent is known on both sides by the number that pickle gave it: a job's result names what
came with the inputs by that number (``Loaded.objects``, ``origins``), so that the notebook's own
objects are found again.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuqueue.run.container import Reader, assemble
from gpuqueue.run.culprit import Unpicklable, blame
from gpuqueue.run.deep import has_room, with_room
from gpuqueue.run.large import Large
from gpuqueue.run.making import is_filled, loading, main_namespace
from gpuqueue.run.pickling import Sender, uncollected
from gpuqueue.units import format_bytes

__all__ = [
    "CHANGE",
    "SOON",
    "Dumped",
    "FromFile",
    "Known",
    "Loaded",
    "dump_values",
    "load_file",
    "load_values",
    "parse_values",
    "save_values",
]

_LEAST = 16 << 20
"""Bytes below which the order of names makes no difference."""
SOON = 64 << 20
"""Bytes from which on somebody who waits gets a file before it has reached the disk."""


_CALLED = (types.ModuleType, types.FunctionType, type)
"""Kinds that the loading of others may call."""
CHANGE = "<change "
"""Begins the name of what an object that the receiver has is to become: ``<change 12>``."""


class Known(Protocol):
    """Objects that the receiver has too."""

    @property
    def numbers(self) -> Mapping[int, int]:
        """Numbers by id."""

    def number_of(self, value: Any) -> int | None:
        """The number of an object, if the receiver has just this one."""


@dataclass
class Dumped:
    """A container that is ready to be written.

    Attributes
    ----------
    pieces
        The container's bytes, in pieces that are not copied.
    large
        What is to be in files beside it, by their names.
    problems
        What cannot be sent, and why.
    objects
        What was sent, by number.
    """

    pieces: list[Any]
    large: dict[str, Large]
    problems: dict[str, Unpicklable]
    objects: Mapping[int, Any]


def dump_values(
    values: Mapping[str, Any],
    *,
    namespace: Mapping[str, Any] | None = None,
    leave: Collection[str] | None = (),
    known: Known | None = None,
    beside: str = "",
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
    beside
        The name of the file that this becomes, if large buffers may have files beside it.
    """
    namespace = main_namespace() if namespace is None else namespace
    return with_room(lambda: _dump_values(values, namespace, leave, known, beside))


def _dump_values(
    values: Mapping[str, Any],
    namespace: Mapping[str, Any],
    leave: Collection[str] | None,
    known: Known | None,
    beside: str,
) -> Dumped:
    problems: dict[str, Unpicklable] = {}
    weights = dict.fromkeys(values, _LEAST)

    def rank(name: str) -> tuple[bool, bool, int]:
        # what loading an object may call comes before it
        called = weights[name] <= _LEAST and isinstance(values[name], _CALLED)
        return not called, name[0] != "<", weights[name]

    order = sorted(values, key=rank)
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
                problems[name] = blame(name, values[name], error, namespace, leave)
                order.remove(name)
                break  # the pickler has noted objects that will not be in the stream
        else:
            # The largest last, so that a reader can do without them. What names share counts for
            # whoever comes first, hence the second look.
            for name, parts in done.items():
                weights[name] = max(weights[name], _size(*parts))
            by_weight = sorted(order, key=rank)
            passes += 1
            if by_weight == order or passes > 2:
                pieces, large = assemble(done, problems, beside)
                return Dumped(pieces, large, problems, sender.numbered())
            order = by_weight


def _sender(
    namespace: Mapping[str, Any], leave: Collection[str] | None, known: Known | None
) -> Sender:
    if known is None:
        return Sender(namespace, leave)
    return Sender(namespace, leave, known.numbers, known.number_of)


def _size(text: bytes, buffers: list[pickle.PickleBuffer]) -> int:
    return len(text) + sum(buffer.raw().nbytes for buffer in buffers)


def save_values(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    *,
    namespace: Mapping[str, Any] | None = None,
    leave: Collection[str] | None = (),
    known: Known | None = None,
    flush: bool = True,
    let_go: bool = False,
) -> dict[str, str]:
    """Write named values to a file, whole or not at all; returns what is not in it, and why.

    Large buffers get files beside it. Without ``flush``, large files may reach the disk only
    later. With ``let_go``, see ``Large.store``.
    """
    path = os.fspath(path)
    dumped = dump_values(
        values, namespace=namespace, leave=leave, known=known, beside=os.path.basename(path)
    )
    flush = flush or sum(large.size for large in dumped.large.values()) < SOON
    partial = f"{path}.part"
    try:
        for name, large in dumped.large.items():
            beside = os.path.join(os.path.dirname(path), name)
            large.store(beside, flush=flush, let_go=let_go)
            large.note(beside)
        handle = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            for piece in dumped.pieces:
                file.write(piece)
            file.flush()
            if flush or file.tell() < SOON:
                os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        for name in (partial, *(os.path.join(os.path.dirname(path), n) for n in dumped.large)):
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    return {name: str(error) for name, error in dumped.problems.items()}


# -- loading ----------------------------------------------------------------------------------


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
    reader = Reader(file)
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
    with loading(into), uncollected(), _Lent() as lent:
        try:
            loaded = _load_all(reader, names, given, lent)
        except Exception:  # noqa: BLE001 - loading runs the user's own code
            loaded = _load_each(reader, names, given, lent)
            if any("NameError" in why for why in loaded.problems.values()):
                # what was looked for may have come after who looked
                with contextlib.suppress(Exception):
                    loaded = _load_all(reader, names, given, lent)
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
