"""Which of the objects that came with a cell it has changed in place, and changing them elsewhere.

In the job: ``Inputs`` knows every object that came by the number that pickle gave it. After the
cell it pickles them again; where that differs, a second copy is loaded from the file that they came
from, and the two are compared object by object, each without what it refers to.

In the notebook ``becoming.py`` makes an object what its changed copy is. One of which that cannot
be made is sent as a new object, and with it all that refers to it.
"""

from __future__ import annotations

import hashlib
import sys
import types
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gpuqueue.run.arrays import is_array, owner_of
from gpuqueue.run.becoming import stays_as_made
from gpuqueue.run.deep import has_room, with_room
from gpuqueue.run.pages import Maps, changed_ranges
from gpuqueue.run.patch import patch_of
from gpuqueue.run.pickling import Sender, uncollected
from gpuqueue.run.values import Loaded, load_file

__all__ = ["Inputs"]

_SAME = (
    bool, int, float, complex, str, bytes, type(None), type(...), types.ModuleType, range,
    types.BuiltinFunctionType, tuple, frozenset, types.CodeType, types.CellType,
)  # fmt: skip
"""Kinds that never change."""
_NO_ORIGIN = (bool, int, float, complex, str, bytes, type(None), types.ModuleType, types.CodeType)
"""Kinds of which a copy is as good."""


class _Held:
    """Objects by key, weakly where that can be, so that what the cell drops is freed at once."""

    def __init__(self) -> None:
        self._all: dict[Any, Any] = {}
        self._weak: set[Any] = set()

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(value).__weakrefoffset__:
            self._all[key] = weakref.ref(value)
            self._weak.add(key)
        else:
            self._all[key] = value

    def __getitem__(self, key: Any) -> Any:
        """The object; None if it is gone."""
        value = self._all[key]
        return value() if key in self._weak else value

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    def __contains__(self, key: Any) -> bool:
        return key in self._all


class Inputs:
    """What came with a cell.

    Attributes
    ----------
    numbers
        Numbers by id, see ``number_of``.
    sent
        What to send of the objects that ``changes`` has found, by number: the object itself, or a
        ``Patch`` of it.

    Parameters
    ----------
    path
        The file that it came in.
    values, objects
        What was loaded from it, by name and by number.
    namespace, hidden
        The namespace in which the cell runs, and names in it that are no variables.
    """

    def __init__(
        self,
        path: str,
        values: Mapping[str, Any],
        objects: dict[int, Any],
        namespace: dict[str, Any],
        hidden: Collection[str],
    ) -> None:
        self._path = path
        self._namespace = namespace
        self._hidden = hidden
        self.numbers: dict[int, int] = {}
        self.sent: dict[int, Any] = {}
        self._held = _Held()
        self._classes: dict[int, tuple[type, dict[str, Any]]] = {}
        with uncollected():
            self._take(objects)
        self._roots = _Held()
        for name, value in values.items():
            self._roots[name] = value
        self._before = with_room(lambda: self._look(list(self._roots)))

    def _take(self, objects: dict[int, Any]) -> None:
        no_origin: dict[type, bool] = {}
        for number in sorted(objects, reverse=True):
            value = objects.pop(number)
            kind = type(value)
            skip = no_origin.get(kind)
            if skip is None:
                skip = no_origin[kind] = issubclass(kind, _NO_ORIGIN)
            # what only unpickling needed; what holds others has a higher number than they
            if skip or sys.getrefcount(value) <= 2 or value is self._namespace:
                continue
            if isinstance(value, type):
                if value.__module__ == "__main__":
                    self._classes[number] = value, dict(vars(value))
                continue
            self.numbers[id(value)] = number
            self._held[number] = value

    def number_of(self, value: Any) -> int | None:
        """The number under which an object came; None if it is another one."""
        number = self.numbers.get(id(value))
        if number is not None and self._held[number] is value:
            return number
        return None

    def arrays(self) -> Iterator[Any]:
        """The arrays that own their memory and have come with the cell."""
        for number in self._held:
            value = self._held[number]
            if is_array(value) and owner_of(value) is value and value.flags.forc and value.size:
                yield value

    def _look(self, names: Collection[str]) -> dict[str, Any]:
        """Digests of the roots' pickles and sizes of what is beside them, or why there is none."""
        sender = Sender(self._namespace, self._hidden)
        roots = {name: self._roots[name] for name in names}
        sender.expect(list(roots.values()))
        found: dict[str, Any] = {}
        for name, value in roots.items():
            try:
                text, buffers = sender.dump(value)
                digest = hashlib.blake2b(text).digest()
                found[name] = digest, [len(buffer.raw()) for buffer in buffers]
            except Exception as error:
                if isinstance(error, RecursionError) and not has_room():
                    raise
                found[name] = error
                sender = Sender(self._namespace, self._hidden)
        return found

    def changes(self) -> tuple[dict[int, Any], dict[int, dict[str, Any]]]:
        """Objects that are other than they came, and class attributes that are; both by number."""
        self.sent.clear()
        now = with_room(lambda: self._look(self._before))
        # where no pickle has changed, only what travels beside the pickles can have
        only_bytes = all(now[name] == before for name, before in self._before.items())
        if only_bytes and not any(sizes for _, sizes in now.values()):
            return {}, self._class_changes()
        other: dict[str, Any] = {}
        loaded = load_file(self._path, into=other)
        changed = self._changed(loaded, other, only_bytes)
        while new := {number for number, value in changed.items() if self._is_new(value)}:
            # what refers to it has changed too, even if that itself can only be made anew
            for number in new:
                del self.numbers[id(self._held[number])]
            self.sent.clear()
            changed |= self._changed(loaded, other, only_bytes)
        return changed, self._class_changes()

    def _is_new(self, value: Any) -> bool:
        return id(value) in self.numbers and stays_as_made(value)

    def _changed(self, loaded: Loaded, other: dict[str, Any], only_bytes: bool) -> dict[int, Any]:
        """Objects that are other than they came, by number; fills ``sent``."""
        pristine = loaded.objects
        senders = self._comparing(pristine, other)
        senders[0].expect(list(loaded.values.values()))
        senders[1].expect([self._roots[name] for name in self._roots])
        maps = Maps()
        changed: dict[int, Any] = {}
        anew = len(self.numbers) < len(list(self._held))
        for number in self._held:
            value = self._held[number]
            if value is None or number not in pristine:
                continue
            if isinstance(value, _SAME) and not (anew and isinstance(value, tuple | frozenset)):
                continue
            if only_bytes and not _has_bytes(value):
                continue
            sent = _changed(value, pristine[number], senders, maps)
            if sent is not None:
                changed[number], self.sent[number] = value, sent
        return changed

    def _comparing(self, pristine: dict[int, Any], other: dict[str, Any]) -> tuple[Sender, Sender]:
        """Picklers of what came and of what is, to which the same objects are known by number."""
        classes = {id(kind): number for number, (kind, _) in self._classes.items()}

        def number_of(value: Any) -> int | None:
            number = classes.get(id(value))
            return self.number_of(value) if number is None else number

        there = {
            id(value): number
            for number, value in pristine.items()
            if number in self._held or number in self._classes
        }
        return (
            Sender(other, None, there),
            Sender(self._namespace, None, self.numbers | classes, number_of),
        )

    def _class_changes(self) -> dict[int, dict[str, Any]]:
        found = {}
        for number, (kind, before) in self._classes.items():
            now = dict(vars(kind))
            changed = {
                name: value
                for name, value in now.items()
                if before.get(name, before) is not value and name not in _OF_CLASSES
            }
            gone = [n for n in before if n not in now and n not in _OF_CLASSES]
            if changed or gone:
                found[number] = {"set": changed, "delete": gone}
        return found


_OF_CLASSES = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__slotnames__",
        "_abc_impl",
        "__abstractmethods__",
        "__subclasshook__",
    ]
)


def _changed(value: Any, old: Any, senders: tuple[Sender, Sender], maps: Maps) -> Any:
    """What is to be sent of an object that may be other than it came; None if it is not."""
    there_by, here_by = senders
    try:
        there_by.forget()
        there, old_buffers = _shallow(old, there_by)
    except Exception:  # noqa: BLE001 - whatever the value's own code raises
        return None  # it is not sent as such
    try:
        here_by.forget()
        here, buffers = _shallow(value, here_by)
    except Exception:  # noqa: BLE001
        return value
    if here != there or [len(one) for one in buffers] != [len(one) for one in old_buffers]:
        return value
    ranges = [
        changed_ranges(one, other, maps) for one, other in zip(buffers, old_buffers, strict=True)
    ]
    return patch_of(value, buffers, ranges[0]) if any(ranges) else None


def _has_bytes(value: Any) -> bool:
    kind = type(value)
    tables: Any = getattr(sys.modules.get("pandas"), "core", None)
    if tables is not None and isinstance(value, tables.generic.NDFrame):
        return True
    library = str(kind.__module__).startswith(("numpy", "torch"))
    return library or kind in (bytearray, memoryview) or is_array(value)


def _shallow(value: Any, sender: Sender) -> tuple[bytes, list[Any]]:
    text, buffers = sender.dump(value, by_value=True)
    return text, [buffer.raw() for buffer in buffers]
