"""How kinds of Python's own travel that pickle or cloudpickle would refuse, copy or change.

Classes keep their slots, and making one again runs no code of its metaclass or its bases a second
time; a number with a ``__new__`` of its own is not put through it again; weak mappings stay weak;
views go on looking at what they looked at.
"""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import functools
import gc
import io
import logging
import os
import random
import re
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudpickle import cloudpickle as inner

__all__ = [
    "IMMUTABLE",
    "REDUCERS",
    "class_arguments",
    "make_skeleton",
    "reduce_bare",
    "reduce_handler",
    "reduce_immutable",
]

_new_object: Any = vars(copyreg)["__newobj__"]

# -- classes ----------------------------------------------------------------------------------


def class_arguments(kind: type, maker: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a class's maker, with the slots that cloudpickle leaves out."""
    if maker is not inner._make_skeleton_class or "__slots__" not in kind.__dict__:  # noqa: SLF001
        return args
    words = {**args[3], "__slots__": kind.__dict__["__slots__"]}
    # what NamedTuple stands for as a base is no class
    return (*args[:2], kind.__bases__ if issubclass(kind, tuple) else args[2], words, *args[4:])


def make_skeleton(maker: Callable[..., Any], *args: Any) -> Any:
    """A class that is still empty; that of its tracking id, where this process has one."""
    known = inner._DYNAMIC_CLASS_TRACKER_BY_ID.get(args[-2])  # noqa: SLF001 - there is no public way
    if known is not None:
        return known
    if maker is not inner._make_skeleton_class:  # noqa: SLF001
        return maker(*args)
    meta, name, named, words, track, _ = args
    bases = types.resolve_bases(named)
    theirs: Any = next(one for one in meta.__mro__ if one.__module__ != "__main__")
    with _without_hooks(bases):
        if theirs is meta:
            return maker(*args)
        made = theirs.__new__(meta, name, bases, dict(words))
    return inner._lookup_class_or_track(track, made)  # noqa: SLF001


@contextlib.contextmanager
def _without_hooks(bases: tuple[Any, ...]) -> Iterator[None]:
    """What the notebook's classes do when they are inherited from has been done already."""
    hooks: dict[Any, Any] = {
        base: base.__dict__["__init_subclass__"]
        for root in bases
        for base in root.__mro__
        if base.__module__ == "__main__" and "__init_subclass__" in base.__dict__
    }
    for base in hooks:
        base.__init_subclass__ = classmethod(lambda *_, **__: None)
    try:
        yield
    finally:
        for base, hook in hooks.items():
            base.__init_subclass__ = hook


# -- called by pickles ------------------------------------------------------------------------


def make_cached_property(function: Any, name: str | None) -> functools.cached_property[Any]:
    """A ``cached_property``, whose lock is each process's own."""
    made = functools.cached_property(function)
    if name is not None:
        made.__set_name__(object, name)
    return made


def make_immutable(kind: Any, base: Any, value: Any) -> Any:
    """An object of a class that inherits from an immutable one."""
    return base.__new__(kind, value)


def make_bare(kind: Any, base: Any) -> Any:
    """An object that is still empty, without asking its class, which may know of one already."""
    return base.__new__(kind)


def make_memoryview(base: Any, form: str, shape: tuple[int, ...], readonly: bool) -> memoryview:
    """A view of all of an object's bytes."""
    made = memoryview(base).cast("B")
    if (form, shape) != ("B", (made.nbytes,)):
        made = made.cast(form, shape)  # type: ignore[call-overload]
    return made.toreadonly() if readonly else made


def make_library(kind: Any, name: str | None, functions: Mapping[str, tuple[Any, Any]]) -> Any:
    """A C library, loaded in this process, whose functions have these result and argument types."""
    made = kind(name)
    for function, (result, arguments) in functions.items():
        found = getattr(made, function)
        found.restype = result
        if arguments is not None:
            found.argtypes = arguments
    return made


def make_closed_file(kind: Any, name: Any, raw_mode: str, mode: str, words: Any) -> Any:
    """A file that has been closed: nothing is opened but a device in which nothing is."""
    raw: Any = io.FileIO(os.devnull, raw_mode.replace("x", "w"))
    raw.name = name
    made: Any = raw
    if issubclass(kind, io.TextIOWrapper):
        buffer = io.BufferedReader if raw_mode == "rb" else io.BufferedWriter
        made = kind(io.BufferedRandom(raw) if "+" in raw_mode else buffer(raw), **words)
        if mode:
            made.mode = mode
    elif kind is not io.FileIO:
        made = kind(raw)
    made.close()
    return made


def make_match(pattern: re.Pattern[Any], text: Any, first: int, end: int, regs: Any) -> Any:
    """The match of a pattern that has these spans, found again; None if there is none."""
    ways: list[Callable[..., Any]] = [pattern.search, pattern.match, pattern.fullmatch]
    for way in ways:
        found = way(text, first, end)
        if found is not None and found.regs == regs:
            return found
    return next((one for one in pattern.finditer(text, first, end) if one.regs == regs), None)


def fill_handler(made: logging.Handler, state: Mapping[str, Any]) -> None:
    """A logging handler, with a lock of its own."""
    vars(made).clear()
    vars(made).update(state)
    made.createLock()
    if made.name:
        logging._handlers[made.name] = made  # type: ignore[attr-defined]  # noqa: SLF001


# -- pickling ---------------------------------------------------------------------------------


def reduce_handler(value: logging.Handler) -> Any:
    """How a logging handler is made again; None if it has a way of its own."""
    kind: Any = type(value)
    object_: Any = object
    if any(getattr(kind, way, None) is not getattr(object_, way, None) for way in _WAYS):
        return None
    state = {name: part for name, part in vars(value).items() if name != "lock"}
    if isinstance(value, logging.FileHandler) and value.stream is not None:
        state |= {"stream": None, "mode": "a"}  # each process opens it for itself, and goes on
    return _new_object, (kind,), state, None, None, fill_handler


def _weak_mapping(value: Any) -> Any:
    return type(value), (), None, None, iter(list(value.items()))


def _proxy(value: Any) -> Any:
    # there is no other way to what it is a proxy of
    behind = [one for one in gc.get_referents(value) if isinstance(one, Mapping)]
    return types.MappingProxyType, (behind[0] if len(behind) == 1 else dict(value),)


def _library(value: Any) -> Any:
    functions = {name: one for name, one in vars(value).items() if name[0] != "_"}
    plain = all(
        isinstance(one, value._FuncPtr) and one.errcheck is None  # noqa: SLF001
        for one in functions.values()
    )
    usual = type(value)(value._name)._FuncPtr._flags_ == value._FuncPtr._flags_  # noqa: SLF001
    if not plain or not usual:  # made with use_errno, for example
        return object.__reduce_ex__(value, 5)
    types_ = {name: (one.restype, one.argtypes) for name, one in functions.items()}
    return make_library, (type(value), value._name, types_)  # noqa: SLF001


def _closed_file(value: Any) -> Any:
    """A file that has been closed is a name and a mode; an open one does not travel."""
    if not value.closed:
        return object.__reduce_ex__(value, 5)
    raw = getattr(value, "buffer", value)
    raw = getattr(raw, "raw", raw)
    name = getattr(raw, "name", None)
    if not isinstance(name, str | bytes):
        return object.__reduce_ex__(value, 5)
    words = {}
    if isinstance(value, io.TextIOWrapper):
        words = {"encoding": value.encoding, "errors": value.errors}
    return make_closed_file, (type(value), name, raw.mode, getattr(value, "mode", ""), words)


def _match(value: re.Match[Any]) -> Any:
    args = (value.re, value.string, value.pos, value.endpos, value.regs)
    # one that a scanner or an unusual call has made may not be found again
    return (make_match, args) if make_match(*args) is not None else object.__reduce_ex__(value, 5)


def _memoryview(value: memoryview) -> Any:
    base = value.obj
    whole = isinstance(base, bytes | bytearray) and len(base) == value.nbytes
    if not whole or not value.c_contiguous:
        return inner._memoryview_reduce(value)  # noqa: SLF001
    fixed = value.readonly and not isinstance(base, bytes)
    return make_memoryview, (base, value.format, value.shape, fixed)


REDUCERS: dict[type, Callable[[Any], Any]] = {
    functools.cached_property: lambda value: (
        make_cached_property, (value.func, value.attrname),
    ),
    weakref.WeakKeyDictionary: _weak_mapping,
    weakref.WeakValueDictionary: _weak_mapping,
    types.MappingProxyType: _proxy,
    memoryview: _memoryview,
    ctypes.CDLL: _library,
    ctypes.PyDLL: _library,
    random.SystemRandom: lambda _: (random.SystemRandom, ()),
    re.Match: _match,
    # cloudpickle would send what is in the file, and take it for the file
    io.TextIOWrapper: _closed_file,
    io.BufferedReader: _closed_file,
    io.BufferedWriter: _closed_file,
    io.BufferedRandom: _closed_file,
    io.FileIO: _closed_file,
}  # fmt: skip

IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset)
_WAYS = ("__reduce__", "__reduce_ex__", "__getnewargs_ex__", "__getstate__", "__setstate__")


def reduce_immutable(value: Any) -> Any:
    """How an object is made again whose class changes what it is given; None if it does not."""
    kind: Any = type(value)
    if not isinstance(kind.__dict__.get("__new__"), staticmethod):
        return None
    base: Any = next(one for one in IMMUTABLE if isinstance(value, one))
    own = getattr(kind, "__getnewargs__", None) is not getattr(base, "__getnewargs__", None)
    object_: Any = object
    if own or any(getattr(kind, way, None) is not getattr(object_, way, None) for way in _WAYS):
        return None
    plain = base(value) if base is not tuple else tuple(value)
    return make_immutable, (kind, base, plain), vars(value) or None


def reduce_bare(value: Any) -> Any:
    """How an object is made again whose class decides which object one gets; None for others.

    There may be but one of it, or one for each key, and the class would take a half made one for
    the one that it has.
    """
    kind: Any = type(value)
    object_: Any = object
    ways = ("__reduce__", "__reduce_ex__")
    if isinstance(value, type) or any(getattr(kind, w) is not getattr(object_, w) for w in ways):
        return None
    owners = [one for one in kind.__mro__ if "__new__" in one.__dict__]
    if owners[0].__module__ != "__main__":
        return None
    base: Any = next(one for one in owners if one.__module__ != "__main__")
    if not isinstance(base.__dict__["__new__"], types.BuiltinFunctionType):
        return None
    return make_bare, (kind, base), *object_.__reduce_ex__(value, 5)[2:]
