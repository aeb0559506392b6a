"""How objects are pickled between a notebook and a cell's job.

cloudpickle, with differences that a cell needs:

- functions of ``__main__`` join the ``__main__`` that loads them; classes that a process knows
  already are left as they are, so that they keep their identity;
- objects that both sides have are named by number instead of being sent again (``known``);
- arrays and tensors that share memory still share it, tensors keep their gradients, and their bytes
  travel beside the pickle;
- weak references travel with what they refer to.

The functions of this module that pickles name are called when they are loaded; their names and
arguments are part of the format of the files (``values.py``).
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import logging
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as inner

from gpuqueue.run import comms, remade, twins

__all__ = ["DEVICE", "Sender", "is_filled", "is_filled_in_place", "loading", "main_namespace"]

_new_object: Any = vars(copyreg)["__newobj__"]
DEVICE = "_gpuqueue_device"
"""On a tensor: the device that it was on in the job, where this process has it on the CPU."""

_BUNCH = ("sklearn.utils._bunch", "Bunch")
_WORTH = 1 << 20
_TIMES = 4
"""A view takes the array behind it along if that is small, or not much larger than itself."""


# -- called by pickles ------------------------------------------------------------------------


class _Main:
    """Stands for the namespace of ``__main__`` in a pickle."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_namespace, ()


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


def make_array(data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """An array over bytes that have come; a small one owns its memory, as one expects."""
    import numpy as np

    made = np.frombuffer(data, dtype).reshape(shape, order=order)
    if made.nbytes >= _WORTH:
        return made
    own = made.copy(order)
    own.flags.writeable = made.flags.writeable
    return own


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
    base: Any, offset: int, dtype: Any, shape: Any, strides: Any, write: bool
) -> Any:
    """An array over the memory of another one."""
    import numpy as np

    view = np.ndarray(shape, dtype, base, offset, strides)
    if not write:
        view.flags.writeable = False
    return view


def load_whole(text: bytes, buffers: list[Any]) -> Any:
    """An object that was pickled by itself."""
    return pickle.loads(text, buffers=buffers)


def make_storage(data: Any, device: str) -> Any:
    """Memory for tensors, over bytes that have come; on its device where that may be used."""
    import torch

    if not len(data):
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    whole = torch.frombuffer(data, dtype=torch.uint8)
    return (whole.to(device) if _may_use(torch, device) else whole).untyped_storage()


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


# -- pickling ---------------------------------------------------------------------------------


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The pickler of this module's docstring.

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
        self.owners: set[int] = set()
        """Ids of the arrays and storages that are sent anyhow."""
        self.whole = False
        """Whether this is one object by itself, in which no array is a view."""
        self._twins = twins.here()
        self._special = comms.special()
        self._usual: set[type] = set()
        """Kinds that have no base of which ``_by_kind`` knows more."""
        self._kept: list[Any] = []
        self._devices: dict[int, str] = {}
        """Where the memory of tensors belongs, by the id of their storage."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduce what is to travel otherwise than cloudpickle would have it."""
        kind = type(obj)
        if kind in _REDUCERS:
            return _REDUCERS[kind](obj)
        if id(obj) in self._twins:
            return twins.twin, (self._twins[id(obj)],)
        if kind not in self._usual and (reduced := self._by_kind(kind, obj)):
            return reduced
        tables: Any = getattr(sys.modules.get("pandas"), "core", None)
        if not self.whole and tables is not None and isinstance(obj, tables.generic.NDFrame):
            return self._table(obj)
        library = str(kind.__module__)  # a class that was made by hand may have none
        of_library = library.startswith(("numpy", "torch")) or "torch.optim" in sys.modules
        if of_library and (found := self._of_library(kind, obj)):
            return found
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        make, args, state, _, _, fill = reduced
        if fill is inner._class_setstate:  # noqa: SLF001
            args = remade.class_arguments(obj, make, args)
            return make_class, (make, *args), state, None, None, fill_class
        if fill is inner._function_setstate:  # noqa: SLF001
            slots = state[1]
            if obj.__globals__ is self._main:
                slots["__globals__"] = {
                    name: value
                    for name, value in slots["__globals__"].items()
                    if self._leave is not None and name not in self._leave
                }
            if obj.__closure__ is not None:
                # the cells themselves, so that functions that share one still do
                args = (*args[:-1], obj.__closure__)
                slots["__closure__"] = [_content(cell) for cell in obj.__closure__]
            return make, args, state, None, None, fill_function
        return reduced

    def _by_kind(self, kind: type, obj: Any) -> Any:
        """How an object is made again whose class has a base of which we know more."""
        if _forwards(kind):
            return _new_object, (kind,), dict(vars(obj)), None, None, fill_plainly
        if (kind.__module__, kind.__name__) == _BUNCH:  # its own way leaves out its attributes
            return _new_object, (kind,), dict(vars(obj)), None, iter(obj.items()), fill_plainly
        if isinstance(obj, logging.Handler):
            return remade.reduce_handler(obj)
        if isinstance(obj, remade.IMMUTABLE):
            return remade.reduce_immutable(obj)
        if isinstance(obj, self._special):
            return comms.reduce(obj)
        if isinstance(obj, BaseException):
            if not _has_own_way_to_begin(kind):
                return None
            state = (obj.__cause__, obj.__context__, obj.__suppress_context__, dict(vars(obj)))
            return make_exception, (kind, obj.args), state, None, None, fill_exception
        self._usual.add(kind)
        return None

    def _of_library(self, kind: type, obj: Any) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and kind is numpy.ndarray:
            return self._array(obj)
        if torch is None or not hasattr(torch, "nn"):
            return None  # it is being imported
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self._tensor(torch, obj)
        if _is_filled_plainly(torch, kind):
            return _new_object, (kind,), dict(vars(obj)), None, None, fill_plainly
        if kind is torch.UntypedStorage and obj.device.type in ("cpu", "cuda"):
            return self._storage(torch, obj)
        return None

    def _table(self, value: Any) -> Any:
        """A table or series by itself: pandas must not find that its parts are shared."""
        sender = Sender(self._main, self._leave)
        sender.send_whole()
        text, buffers = sender.dump(value)
        return load_whole, (text, buffers)

    def _worth(self, base: Any, size: int, base_size: int) -> bool:
        return base_size <= max(_WORTH, _TIMES * size) or id(base) in self.owners

    def _array(self, value: Any) -> Any:
        base: Any = None if self.whole else value.base
        flags = value.flags
        if value.dtype.hasobject:
            return None
        if type(base) is not type(value) and flags.forc and value.size:
            order = "C" if flags.c_contiguous else "F"
            return make_array, (pickle.PickleBuffer(value), value.dtype, value.shape, order)
        if (
            type(base) is not type(value)
            or not base.flags.c_contiguous
            or not self._worth(base, value.nbytes, base.nbytes)
            or not base.size
        ):
            return None
        offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return make_view, (
            base, offset, value.dtype, value.shape, value.strides, bool(value.flags.writeable),
        )  # fmt: skip

    def _tensor(self, torch: Any, value: Any) -> Any:
        device = str(value.device)
        if (
            value.layout is not torch.strided
            or value.is_quantized
            or value.is_nested
            or value.is_conj()
            or value.is_neg()
            or value.device.type not in ("cpu", "cuda")
            or torch._C._functorch.is_functorch_wrapped_tensor(value)  # noqa: SLF001
        ):
            return None
        graph = ""
        if not value.is_leaf:
            graph = type(value.grad_fn).__name__
        plain = value.detach()
        storage = plain.untyped_storage()
        size = plain.numel() * plain.element_size()
        if not self._worth(storage, size, storage.nbytes()):
            plain = plain.clone()
            storage = plain.untyped_storage()
        self._kept.append(storage)  # an id must not be given to another one
        extras = {k: v for k, v in vars(value).items() if k != DEVICE}
        device = self._devices.setdefault(id(storage), getattr(value, DEVICE, device))
        args = (
            type(value), storage, value.dtype, plain.storage_offset(), tuple(plain.shape),
            plain.stride(), value.requires_grad, device, graph,
        )  # fmt: skip
        if not value.requires_grad and not extras:
            return make_tensor, args
        state: dict[str, Any] = {"vars": extras}
        if value.is_leaf:
            state["grad"] = value.grad
        return make_tensor, args, state, None, None, fill_tensor

    def _storage(self, torch: Any, value: Any) -> Any:
        device = self._devices.get(id(value), str(value.device))
        if not value.nbytes():
            return make_storage, (b"", device)
        here = torch.empty(0, dtype=torch.uint8, device=value.device)
        data = here.set_(value, 0, (value.nbytes(),), (1,)).cpu()
        return make_storage, (pickle.PickleBuffer(data.numpy()), device)


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _behind(proxy: Any) -> Any:
    """What a weak proxy is to; None if that is gone."""
    try:
        return proxy.__reduce_ex__.__self__
    except ReferenceError:
        return None


def _reduce_cached(value: Any) -> Any:
    if value.__module__ != "__main__":
        return value.__reduce__()
    words = value.cache_parameters()
    return make_cached, (value.__wrapped__, words["maxsize"], words["typed"])


def _reduce_code(code: types.CodeType) -> Any:
    return make_code, (*cloudpickle.Pickler.dispatch_table[types.CodeType](code), code.co_filename)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    **remade.REDUCERS,
    types.CodeType: _reduce_code,
    weakref.ReferenceType: lambda value: (make_weakref, (value(),)),
    weakref.ProxyType: lambda value: (make_proxy, (_behind(value), False)),
    weakref.CallableProxyType: lambda value: (make_proxy, (_behind(value), True)),
    types.CellType: lambda _: (make_cell, ()),
    functools._lru_cache_wrapper: _reduce_cached,  # noqa: SLF001 - there is no public name
}


class _Referring(_Pickler):
    """Names by number what both sides have."""

    known: Mapping[int, int]
    number_of: Callable[[Any], int | None]
    by_value: Any = None

    def persistent_id(self, obj: Any) -> int | None:
        """The number of an object, unless it is to be sent by value just now."""
        number = self.number_of(obj) if id(obj) in self.known else None
        if number is not None and obj is self.by_value:
            self.by_value = None  # what it holds may refer to it
            return None
        return number


def _inherits(kind: type, name: str, base: type) -> bool:
    """Whether a class leaves a method as its base has it."""
    return getattr(kind, name) is getattr(base, name)


def _is_filled_plainly(torch: Any, kind: type) -> bool:
    """Whether a class's own way of being pickled leaves out part of what its objects have.

    An optimizer's leaves out hooks, and that a scheduler watches it; a hook's what it wraps.
    """
    if issubclass(kind, torch.optim.Optimizer):
        return _inherits(kind, "__reduce__", object)
    return kind is getattr(torch.nn.modules.module, "_WrappedHook", None)


_forwarding: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _forwards(kind: type) -> bool:
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


def is_filled_in_place(value: Any) -> bool:
    """Whether loading a changed copy has put its state into the original.

    Whoever fills an object gets it by its number, and that means the original.
    """
    kind, torch = type(value), sys.modules.get("torch")
    if isinstance(value, (types.FunctionType, logging.Handler, *comms.special())):
        return True
    if isinstance(value, BaseException):
        return _has_own_way_to_begin(kind)
    if _forwards(kind) or (kind.__module__, kind.__name__) == _BUNCH:
        return True
    return hasattr(torch, "optim") and _is_filled_plainly(torch, kind)


def _has_own_way_to_begin(kind: type) -> bool:
    """Whether an exception cannot be made again from its arguments alone."""
    return _inherits(kind, "__reduce__", BaseException) and not (
        _inherits(kind, "__init__", BaseException) or _inherits(kind, "__init__", Exception)
    )


class Sender:
    """One pickler over several values, so that what they share stays shared.

    Parameters
    ----------
    namespace, leave
        See ``_Pickler``.
    known
        Numbers of the objects that the receiver has, by id; ``number_of`` makes sure that the id
        is still that object's.
    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        leave: Collection[str] | None,
        known: Mapping[int, int] | None = None,
        number_of: Callable[[Any], int | None] | None = None,
    ) -> None:
        self._file = io.BytesIO()
        self._buffers: list[pickle.PickleBuffer] = []
        kind = _Referring if known else _Pickler
        self._pickler = kind(self._file, namespace, leave, self._buffers)
        if isinstance(self._pickler, _Referring):
            self._pickler.known = known or {}
            self._pickler.number_of = number_of or (lambda obj: (known or {}).get(id(obj)))

    def expect(self, values: Collection[Any]) -> None:
        """Say what will be sent, so that views of it are sent as views."""
        arrays: Any = getattr(sys.modules.get("numpy"), "ndarray", ())
        tensors: Any = getattr(sys.modules.get("torch"), "Tensor", ())
        for value in values:
            if isinstance(value, arrays):
                base = value.base if type(value.base) is type(value) else value
                self._pickler.owners.add(id(base))
            elif isinstance(value, tensors):
                with contextlib.suppress(Exception):
                    storage = value.untyped_storage()
                    if value.numel() * value.element_size() == storage.nbytes():
                        self._pickler.owners.add(id(storage))

    def send_whole(self) -> None:
        """Send what follows by itself."""
        self._pickler.whole = True

    def dump(
        self, value: Any, *, by_value: bool = False
    ) -> tuple[bytes, list[pickle.PickleBuffer]]:
        """Pickle one value; with ``by_value`` itself, even if the receiver knows it."""
        self._file.seek(0)
        self._file.truncate()
        self._buffers.clear()
        if by_value and isinstance(self._pickler, _Referring):
            self._pickler.by_value = value
        try:
            self._pickler.dump(value)
        except pickle.PicklingError as error:
            if isinstance(error.__cause__, RecursionError):
                raise error.__cause__ from None  # cloudpickle puts it in other words
            raise
        return self._file.getvalue(), list(self._buffers)

    def forget(self) -> None:
        """Begin anew: nothing has been sent yet."""
        self._pickler.clear_memo()

    def numbered(self) -> dict[int, Any]:
        """What has been sent, by the number under which the receiver has it."""
        return dict(self._pickler.memo.copy().values())
