"""Making an object what its changed copy is.

The object stays itself, so that everything that refers to it, from wherever, sees the change.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import pickle
import sys
import types
import weakref
from typing import Any

from gpuqueue.run.arrays import is_array
from gpuqueue.run.making import DEVICE
from gpuqueue.run.ownways import is_filled_in_place
from gpuqueue.run.parametrized import become_parametrized
from gpuqueue.run.setorder import adding_order

__all__ = ["become", "replace", "stays_as_made"]

_MADE_ANEW = (
    enumerate, itertools.count, itertools.islice, itertools.repeat, itertools.zip_longest,
)  # fmt: skip
"""Kinds that change and cannot take over a changed state, or not all of it."""
_CONTAINERS = (
    list, bytearray, collections.deque, dict, set, weakref.WeakSet, weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
)  # fmt: skip


def stays_as_made(value: Any) -> bool:
    """Whether ``become`` can surely make nothing else of an object."""
    kind: Any = type(value)
    if isinstance(value, _MADE_ANEW):
        return True
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if isinstance(value, _CONTAINERS) or kind.__module__ == "array" or is_filled_in_place(value):
        return False
    if numpy is not None and isinstance(value, numpy.ndarray):
        return False
    if hasattr(torch, "Tensor") and str(kind.__module__).startswith("torch"):
        return False
    if hasattr(value, "__setstate__") or isinstance(getattr(value, "__dict__", None), dict):
        return False
    return not any(one.__dict__.get("__slots__") for one in kind.__mro__)


def replace(old: Any, new: Any) -> None:
    """Have everything refer to another object that can: names, lists, dictionaries, attributes.

    Takes a look at all of memory.
    """
    holder: Any
    for holder in gc.get_referrers(old):
        # no inner function here may use ``old``: its closure would be one of the holders
        if type(holder) is types.CellType:
            holder.cell_contents = new
        elif type(holder) is _TEE:
            holder.__setstate__((new, holder.__reduce__()[2][1]))
        elif isinstance(holder, list):
            for index, one in enumerate(holder):
                if one is old:
                    list.__setitem__(holder, index, new)
        else:
            held: Any = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
            for name, one in list(held.items()) if isinstance(held, dict) else ():
                if one is old:
                    dict.__setitem__(held, name, new)


_TEE: Any = type(itertools.tee(())[0])


def become(old: Any, new: Any) -> bool:
    """Make an object what its changed copy is; False where that cannot be."""
    if type(old) is not type(new):
        return become_parametrized(old, new)
    if old is new:
        return True
    try:
        return _become(old, new)
    except Exception:  # noqa: BLE001 - it runs the object's own code
        return False


def _become(old: Any, new: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if stays_as_made(old):
        return False
    if numpy is not None and isinstance(old, numpy.ndarray):
        return _become_array(numpy, old, new)
    if torch is not None and isinstance(old, torch.Tensor):
        return _become_tensor(torch, old, new)
    if torch is not None and isinstance(old, torch.UntypedStorage):
        old.copy_(new)
        return True
    if torch is not None and isinstance(old, torch.Generator):
        old.set_state(new.get_state())
        return True
    if is_filled_in_place(old):
        if isinstance(old, BaseException):
            old.args = new.args
        _become_container(old, new)
        return True
    tables: Any = getattr(sys.modules.get("pandas"), "core", None)
    if tables is not None and isinstance(old, tables.generic.NDFrame):
        flags = vars(old).get("_flags")  # they refer to it
        vars(old).clear()
        vars(old).update(vars(new))
        vars(old)["_flags"] = flags
        return True
    changed = _become_container(old, new)
    if changed and type(old).__module__ == "weakref":
        return True
    kind: Any = type(old)
    base: Any = object
    plain = kind.__reduce_ex__ is base.__reduce_ex__ and kind.__reduce__ is base.__reduce__
    # what is written in C has more than its attributes: the text of a StringIO
    plain = plain and not isinstance(
        getattr(kind, "__setstate__", None), types.MethodDescriptorType
    )
    if not changed and not plain and hasattr(old, "__setstate__"):
        old.__setstate__(new.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[2])
        return True
    return _become_object(old, new) or changed


def _become_array(numpy: Any, old: Any, new: Any) -> bool:
    if old.dtype != new.dtype:
        return False
    if not old.flags.writeable:
        old.flags.writeable = True  # refused where the memory itself cannot be written to
    if old.shape != new.shape:
        if old.base is None and old.size != new.size:
            old.resize(new.shape, refcheck=False)
        else:
            old.shape = new.shape
    numpy.copyto(old, new)
    old.flags.writeable = new.flags.writeable
    attributes = getattr(new, "__dict__", None)
    # those of other kinds have been filled in place as the new one was loaded
    if attributes is not None and not is_array(old):
        vars(old).update(attributes)  # such as the mask of a masked array
    return True


def _become_tensor(torch: Any, old: Any, new: Any) -> bool:
    same_memory = (
        old.untyped_storage().data_ptr() == new.untyped_storage().data_ptr()
        and old.storage_offset() == new.storage_offset()
        and old.shape == new.shape
        and old.stride() == new.stride()
    )
    if not same_memory:
        if old.dtype == new.dtype and old.shape == new.shape and old.device == new.device:
            with torch.no_grad():
                old.detach().copy_(new)
        else:
            old.data = new.detach()
    vars(old).pop(DEVICE, None)
    if DEVICE in vars(new):
        setattr(old, DEVICE, getattr(new, DEVICE))
    # loading the new one has given its gradient to the old one
    if old.is_leaf and old.requires_grad != new.requires_grad:
        old.requires_grad_(new.requires_grad)
    return True


def _become_container(old: Any, new: Any) -> bool:
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, collections.deque):
        old.clear()
        old.extend(new)
    elif isinstance(old, collections.OrderedDict):
        collections.OrderedDict.clear(old)
        for key, value in new.items():
            collections.OrderedDict.__setitem__(old, key, value)
    elif isinstance(old, dict):
        entries = list(new.items())
        dict.clear(old)
        dict.update(old, entries)
    elif isinstance(old, set | weakref.WeakSet):
        order = adding_order(new) if type(new) is set else None
        old.clear()
        old.update(order or new)
    elif isinstance(old, weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
        kept = list(new.items())
        old.clear()
        old.update(kept)
    elif type(old).__module__ == "array":
        old[:] = new
    else:
        return False
    return True


def _become_object(old: Any, new: Any) -> bool:
    done = False
    if isinstance(vars_of := getattr(old, "__dict__", None), dict):
        state = dict(vars(new))
        vars_of.clear()
        vars_of.update(state)
        done = True
    for kind in type(old).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot in ("__dict__", "__weakref__"):
                continue
            name = f"_{kind.__name__.lstrip('_')}{slot}" if slot.startswith("__") else slot
            if hasattr(new, name):
                object.__setattr__(old, name, getattr(new, name))
            else:
                with contextlib.suppress(AttributeError):
                    object.__delattr__(old, name)
            done = True
    return done
