"""Classes of which pickle's own way loses or breaks something, and what is done instead."""

from __future__ import annotations

import logging
import sys
import types
import weakref
from typing import Any

from gpuqueue.run import comms, parametrized, remade

__all__ = [
    "forwards",
    "has_own_way_to_begin",
    "is_bunch",
    "is_filled_in_place",
    "is_filled_plainly",
    "reduce_made_anew",
]


def _inherits(kind: type, name: str, base: type) -> bool:
    """Whether a class leaves a method as its base has it."""
    return getattr(kind, name) is getattr(base, name)


def is_bunch(kind: type) -> bool:
    """Whether a class is scikit-learn's dict with attributes."""
    return (kind.__module__, kind.__name__) == ("sklearn.utils._bunch", "Bunch")


def reduce_made_anew(value: Any) -> Any:
    """How an object is made again that refuses to be pickled; None for all others.

    Each process has its own of tqdm's lock and the thread that watches its bars, both on the class.
    """
    kind = type(value)
    if parametrized.is_parametrized(kind):
        return parametrized.reduce_parametrized(value)
    if kind.__module__ == "tqdm.std" and kind.__name__ == "TqdmDefaultWriteLock":
        return kind, ()
    if kind.__module__ == "tqdm._monitor" and kind.__name__ == "TMonitor":
        return type(None), ()
    return None


def is_filled_plainly(torch: Any, kind: type) -> bool:
    """Whether a class's own way of being pickled leaves out part of what its objects have.

    An optimizer's leaves out hooks, and that a scheduler watches it; a hook's what it wraps.
    """
    if issubclass(kind, torch.optim.Optimizer):
        return _inherits(kind, "__reduce__", object)
    return kind is getattr(torch.nn.modules.module, "_WrappedHook", None)


_forwarding: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def forwards(kind: type) -> bool:
    """Whether objects of a class look in another object for what they do not have.

    A half made one would look for that object, in itself, without end: pickle asks each object
    whether it has a way of its own to be filled.
    """
    known = _forwarding.get(kind)
    if known is not None:
        return known
    ways = ("__getstate__", "__reduce__", "__reduce_ex__", "__new__")
    _forwarding[kind] = found = (
        any(
            isinstance(base.__dict__.get("__getattr__"), types.FunctionType)
            for base in kind.__mro__
        )
        and all(_inherits(kind, name, object) for name in ways)
        and not hasattr(kind, "__setstate__")
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
        and not issubclass(kind, BaseException)
    )
    return found


def has_own_way_to_begin(kind: type) -> bool:
    """Whether an exception cannot be made again from its arguments alone."""
    return _inherits(kind, "__reduce__", BaseException) and not (
        _inherits(kind, "__init__", BaseException) or _inherits(kind, "__init__", Exception)
    )


def is_filled_in_place(value: Any) -> bool:
    """Whether loading a changed copy has put its state into the original.

    Whoever fills an object gets it by its number, and that means the original.
    """
    kind, torch = type(value), sys.modules.get("torch")
    if isinstance(value, (types.FunctionType, logging.Handler, *comms.special())):
        return True
    if isinstance(value, BaseException):
        return has_own_way_to_begin(kind)
    if (forwards(kind) and kind not in remade.REDUCERS) or is_bunch(kind):
        return True
    return hasattr(torch, "optim") and is_filled_plainly(torch, kind)
