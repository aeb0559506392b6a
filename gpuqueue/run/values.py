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
import os
import pickle
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuqueue.run.container import Reader, assemble
from gpuqueue.run.culprit import Unpicklable, blame
from gpuqueue.run.deep import has_room, with_room
from gpuqueue.run.large import Large
from gpuqueue.run.making import main_namespace
from gpuqueue.run.pickling import Sender
from gpuqueue.run.setorder import put_orders
from gpuqueue.run.unpickling import Loaded, unpickle
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
_SET = b"\x8f\x94"
"""Begins a set in a pickle."""
_ORDERS = "<orders>"
CHANGE = "<change "
"""Begins the name of what an object that the receiver has is to become: ``<change 12>``."""


class Known(Protocol):
    """Objects that the receiver has too."""

    @property
    def numbers(self) -> Mapping[int, int]:
        """Numbers by id."""

    def number_of(self, value: Any) -> int | None:
        """The number of an object, if the receiver has just this one."""

    def arrays(self) -> Iterable[Any]:
        """The arrays of NumPy that own their memory."""


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
                if any(_SET in text for text, _ in done.values()) and (found := sender.orders()):
                    done[_ORDERS] = sender.dump(found)
                pieces, large = assemble(done, problems, beside)
                return Dumped(pieces, large, problems, sender.numbered())
            order = by_weight


def _sender(
    namespace: Mapping[str, Any], leave: Collection[str] | None, known: Known | None
) -> Sender:
    if known is None:
        return Sender(namespace, leave)
    return Sender(namespace, leave, known.numbers, known.number_of, known.arrays)


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
    loaded = unpickle(reader, names, given, into)
    loaded.problems = problems | loaded.problems
    put_orders(loaded.objects, loaded.values.pop(_ORDERS, {}))
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
