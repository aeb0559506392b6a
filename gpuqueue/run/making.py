"""What pickles between a notebook and a cell's job call when they are loaded.

Pickle names these functions: their names, arguments and this module are part of the format of the
files (``container.py``). Some of them keep what a load has made so far, see ``loading``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cloudpickle import cloudpickle as inner

from gpuqueue.run import comms, remade

__all__ = [
    "DEVICE",
    "OF_MAPS",
    "fill_array",
    "fill_class",
    "fill_exception",
    "fill_function",
    "fill_plainly",
    "fill_tensor",
    "is_filled",
    "load_whole",
    "loading",
    "main_namespace",
    "make_array",
    "make_array_over",
    "make_cached",
    "make_cell",
    "make_class",
    "make_code",
    "make_exception",
    "make_memmap",
    "make_proxy",
    "make_reconstructed",
    "make_row",
    "make_storage",
    "make_storage_over",
    "make_tensor",
    "make_view",
    "make_weakref",
]

DEVICE = "_gpuqueue_device"
"""On a tensor: the device that it was on in the job, where this process has it on the CPU."""

_OWNED = 1 << 20
"""Bytes of an array below which it owns its memory."""

_target: list[dict[str, Any]] = []


def main_namespace() -> dict[str, Any]:
    """The namespace to which loaded functions of ``__main__`` are attached."""
    return _target[-1] if _target else sys.modules["__main__"].__dict__


@contextlib.contextmanager
def loading(into: dict[str, Any] | None = None) -> Iterator[None]:
    """Begin a load; with ``into``, functions are attached to that namespace."""
    _filled.clear()
    if into is None:
        yield
        return
    _target.append(into)
    try:
        with comms.quietly():
            yield
    finally:
        _target.pop()


_fresh: dict[int, type] = {}
_filled: set[int] = set()
"""Functions and classes that the load in progress has finished, by id."""


def is_filled(value: Any) -> bool:
    """Whether the load in progress has finished a function or class."""
    return id(value) in _filled


def make_class(maker: Callable[..., type], *args: Any) -> type:
    """Make a class by value, or find the one that this process knows under its tracking id."""
    known = args[-2] in inner._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: SLF001 - there is no public way
    made: type = remade.make_skeleton(maker, *args)
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
    """Fill a function; what the namespace it joins has already, stays as it is.

    A function that is known here, and was changed by the cell, is what ``made`` is then.
    """
    there = made.__globals__
    builtins = there.get("__builtins__")
    plain, slots = state
    carried = slots["__globals__"]
    slots["__globals__"] = {n: value for n, value in carried.items() if n not in there}
    for cell, content in zip(made.__closure__ or (), slots["__closure__"] or (), strict=False):
        if content:
            cell.cell_contents = content[0]
    slots["__closure__"] = None
    for name in [name for name in vars(made) if name not in plain]:
        delattr(made, name)
    inner._function_setstate(made, state)  # noqa: SLF001
    if builtins is not None:
        there["__builtins__"] = builtins
    _filled.add(id(made))


def make_weakref(value: Any) -> Any:
    """A weak reference; a dead one to nothing."""
    return weakref.ref(value if value is not None else types.SimpleNamespace())


def make_proxy(value: Any, callable_: bool) -> Any:
    """A weak proxy; a dead one to nothing."""
    if value is None:
        value = _Called() if callable_ else types.SimpleNamespace()
    return weakref.proxy(value)


class _Called:
    """What a dead proxy, which could be called, is to."""

    def __call__(self) -> None:
        """Never called: nothing keeps it."""


def make_code(maker: Callable[..., types.CodeType], args: Any, filename: str) -> types.CodeType:
    """Code under the name of its file, for which cloudpickle puts a made-up one."""
    return maker(*args).replace(co_filename=filename)


def make_cell() -> types.CellType:
    """A cell of a closure; the functions that share it fill it."""
    return types.CellType()


def make_cached(function: Any, most: int | None, typed: bool) -> Any:
    """A function with ``functools.lru_cache``, its cache empty."""
    if (most, typed) == (128, False):
        return functools.lru_cache(function)
    return functools.lru_cache(most, typed)(function)


def make_array(data: Any, dtype: Any, shape: Any, order: Any, kind: Any = None) -> Any:
    """An array over bytes that have come; a small one owns its memory, as one expects."""
    import numpy as np

    # not by frombuffer and reshape, which would leave an array behind this one
    made: Any = np.ndarray.__new__(kind or np.ndarray, shape, dtype, data, order=order)
    if made.nbytes >= _OWNED:
        return made
    own = made.copy(order)
    own.flags.writeable = made.flags.writeable
    return own


def fill_array(made: Any, state: Mapping[str, Any]) -> None:
    """Attributes of an array of a class of its own, in place of those it has made up."""
    kept = OF_MAPS if hasattr(made, "_mmap") else ()
    for name in [name for name in vars(made) if name not in state and name not in kept]:
        del vars(made)[name]
    vars(made).update(state)


OF_MAPS = ("_mmap", "filename", "offset", "mode")
"""Attributes of a memory map that are this process's."""


def make_reconstructed(make: Any, args: Any, state: Any) -> Any:
    """An array that is made in NumPy's own way, before it gets its attributes."""
    made = make(*args)
    made.__setstate__(state)
    return made


def make_memmap(  # noqa: PLR0917
    kind: Any, path: str, mode: str, dtype: Any, offset: int, shape: Any, order: Any, data: Any
) -> Any:
    """The same file as a memory map in this process; ``data`` is what a private one has."""
    made = kind(path, dtype, "r+" if mode == "w+" else mode, offset, shape, order)
    made.mode = mode
    if data is not None:
        made[...] = make_array(data, dtype, shape, order)
    return made


def make_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception, without asking its constructor, which may want other arguments."""
    return kind.__new__(kind, *args)


def fill_exception(made: BaseException, state: Any) -> None:
    """What an exception has beside its arguments."""
    made.__cause__, made.__context__, made.__suppress_context__ = state[:3]
    vars(made).update(state[3])


def fill_plainly(made: Any, state: Mapping[str, Any]) -> None:
    """Attributes of an object whose own way of being filled would add or lose some."""
    vars(made).clear()
    vars(made).update(state)
    if hasattr(made, "_patch_step_function"):
        # an optimizer's, without which its hooks are not called
        made._patch_step_function()  # noqa: SLF001


def make_view(  # noqa: PLR0917
    base: Any, offset: int, dtype: Any, shape: Any, strides: Any, write: bool, kind: Any = None
) -> Any:
    """An array over the memory of another one."""
    import numpy as np

    memory = base if base.flags.c_contiguous else base.T
    if memory.dtype.kind in "mM":  # dates have no place in the buffer protocol
        memory = memory.view("i8")
    locked = write and not base.flags.writeable
    if locked:  # only the array itself is, not its memory
        base.flags.writeable = memory.flags.writeable = True
    view = np.ndarray.__new__(kind or np.ndarray, shape, dtype, memory, offset, strides)
    if locked:
        base.flags.writeable = False
    if isinstance(view, np.memmap) and isinstance(base, np.memmap):
        vars(view).update(vars(base))
    if not write:
        view.flags.writeable = False
    return view


def make_array_over(tensor: Any) -> Any:
    """The array that shares a tensor's memory."""
    return tensor.numpy()


def make_row(array: Any, offset: int, kind: Any, dtype: Any) -> Any:
    """A row of a structured array; what is set in it is set in the array."""
    import numpy as np

    memory = array if array.flags.c_contiguous else array.T
    return np.ndarray((1,), np.dtype((kind, dtype)), memory, offset)[0]


class _Whole(pickle.Unpickler):
    """Has the parts that were not pickled with the rest."""

    parts: Sequence[Any] = ()

    def persistent_load(self, at: Any) -> Any:
        """The part of a number."""
        return self.parts[at]


def load_whole(text: bytes, buffers: list[Any], parts: Sequence[Any] = ()) -> Any:
    """An object that was pickled by itself, but for some parts."""
    unpickler = _Whole(io.BytesIO(text), buffers=buffers)
    unpickler.parts = parts
    return unpickler.load()


def make_storage(data: Any, device: str) -> Any:
    """Memory for tensors, over bytes that have come; on its device where that may be used."""
    import torch

    if not len(data):
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    whole = torch.frombuffer(data, dtype=torch.uint8)
    return (whole.to(device) if _may_use(torch, device) else whole).untyped_storage()


def make_storage_over(array: Any, offset: int, size: int) -> Any:
    """Memory for tensors that is a part of an array's."""
    import numpy as np
    import torch

    memory = array if array.flags.c_contiguous else array.T
    if memory.dtype.kind in "mM":  # dates have no place in the buffer protocol
        memory = memory.view("i8")
    return torch.from_numpy(np.ndarray((size,), np.uint8, memory, offset)).untyped_storage()


def _may_use(torch: Any, device: str) -> bool:
    if not device.startswith("cuda"):
        return False
    # a notebook must not take a GPU by reading a result; the job that it sends it to may
    return bool(
        torch.cuda.is_initialized()
        or ("GPUQUEUE_JOB_ID" in os.environ and torch.cuda.is_available())
    )


def make_tensor(  # noqa: PLR0917 - pickle names no arguments
    kind: type,
    storage: Any,
    dtype: Any,
    offset: int,
    size: Any,
    stride: Any,
    grad: bool,
    device: str,
    graph: str,
) -> Any:
    """A tensor over memory that has come."""
    import torch

    made = torch.empty(0, dtype=dtype, device=storage.device)
    made.set_(storage, offset, size, stride)
    if graph:
        made = _with_lost_graph(made, graph)
    elif kind is torch.nn.Parameter:
        made = torch.nn.Parameter(made, requires_grad=grad)
    elif grad:
        made.requires_grad_(grad)
    if device != "cpu" and storage.device.type == "cpu":
        setattr(made, DEVICE, device)  # read when it is sent to the next job
    return made


def fill_tensor(tensor: Any, state: Any) -> None:
    """What a tensor has beside its numbers."""
    if "grad" in state:
        tensor.grad = state["grad"]
    vars(tensor).update(state["vars"])


def _with_lost_graph(tensor: Any, graph: str) -> Any:
    import torch

    class _StayedInJob(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, value: Any, __: Any) -> Any:
            return value.view_as(value)

        @staticmethod
        def backward(_: Any, *__: Any) -> Any:
            raise RuntimeError(
                f"what this tensor was computed from ({graph}) stayed in the job that computed it; "
                "call backward() in the same cell"
            )

    with torch.enable_grad():
        return _StayedInJob.apply(  # type: ignore[no-untyped-call]
            tensor, torch.empty(0, requires_grad=True)
        )
