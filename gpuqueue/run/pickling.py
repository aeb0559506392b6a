"""How objects are pickled between a notebook and a cell's job.

cloudpickle, with differences that a cell needs:

- functions of ``__main__`` join the ``__main__`` that loads them; classes that a process knows
  already are left as they are, so that they keep their identity;
- objects that both sides have are named by number instead of being sent again (``known``);
- arrays and tensors that share memory still share it, tensors keep their gradients, and their bytes
  travel beside the pickle;
- weak references travel with what they refer to.

``making.py`` has the functions that put it all together again.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import gc
import importlib
import io
import itertools
import logging
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as inner

from gpuqueue.run import comms, remade, twins
from gpuqueue.run.arrays import is_array, is_row, owner_of, reduce_array, reduce_row
from gpuqueue.run.making import (
    fill_class,
    fill_exception,
    fill_function,
    fill_plainly,
    fill_tensor,
    load_whole,
    main_namespace,
    make_array,
    make_cached,
    make_cell,
    make_class,
    make_code,
    make_exception,
    make_proxy,
    make_storage,
    make_tensor,
    make_view,
    make_weakref,
)
from gpuqueue.run.ownways import (
    forwards,
    has_own_way_to_begin,
    is_bunch,
    is_filled_plainly,
    reduce_made_anew,
)
from gpuqueue.run.setorder import orders_of
from gpuqueue.run.tensors import Tensors

# files of earlier releases name the functions of ``making.py`` as this module's
__all__ = [
    "Sender", "fill_tensor", "make_array", "make_storage", "make_tensor", "make_view",
    "uncollected",
]  # fmt: skip

_new_object: Any = vars(copyreg)["__newobj__"]
_WORTH = 1 << 20
_TIMES = 4
"""A view takes the array behind it along if that is small, or not much larger than itself."""


class _Main:
    """Stands for the namespace of ``__main__`` in a pickle."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_namespace, ()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Do without garbage collection where many objects are made that all stay.

    It would look for garbage among them again and again.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


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
        # not a method, which would hold this pickler and the memory that it has seen
        self._worth = functools.partial(_worth, self.owners)
        self.tensors = Tensors(self._worth)

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
        if is_array(obj):
            if reduced := reduce_array(obj, whole=self.whole, worth=self._worth):
                return reduced
            return super().reducer_override(obj)
        if kind in _WITH_HOME:
            _find_home(obj)
        library = str(kind.__module__)  # a class that was made by hand may have none
        if library.startswith("numpy") and not self.whole and is_row(obj):
            return reduce_row(obj, self._worth) or super().reducer_override(obj)
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
        if reduced := reduce_made_anew(obj):
            return reduced
        if forwards(kind):
            return _new_object, (kind,), dict(vars(obj)), None, None, fill_plainly
        if is_bunch(kind):  # its own way leaves out its attributes
            return _new_object, (kind,), dict(vars(obj)), None, iter(obj.items()), fill_plainly
        if isinstance(obj, logging.Handler):
            return remade.reduce_handler(obj)
        if isinstance(obj, remade.IMMUTABLE):
            return remade.reduce_immutable(obj)
        if isinstance(obj, self._special):
            return comms.reduce(obj)
        if isinstance(obj, BaseException):
            if not has_own_way_to_begin(kind):
                return None
            state = (obj.__cause__, obj.__context__, obj.__suppress_context__, dict(vars(obj)))
            return make_exception, (kind, obj.args), state, None, None, fill_exception
        if reduced := remade.reduce_bare(obj):
            return reduced
        self._usual.add(kind)
        return None

    def _of_library(self, kind: type, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "nn"):
            return None  # it is being imported
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self.tensors.tensor(torch, obj)
        if is_filled_plainly(torch, kind):
            return _new_object, (kind,), dict(vars(obj)), None, None, fill_plainly
        if kind is torch.UntypedStorage and obj.device.type in ("cpu", "cuda"):
            return self.tensors.storage(torch, obj)
        return None

    def _table(self, value: Any) -> Any:
        """A table or series by itself: pandas must not find that its values are shared.

        Its index and its columns it shares with others itself.
        """
        axes = list(value._mgr.axes)  # noqa: SLF001 - its public ones may be made for who asks
        sender = Sender(self._main, self._leave, {id(axis): at for at, axis in enumerate(axes)})
        sender.send_whole()
        text, buffers = sender.dump(value)
        return load_whole, (text, buffers, axes)


def _worth(owners: Collection[int], base: Any, size: int, base_size: int) -> bool:
    return base_size <= max(_WORTH, _TIMES * size) or id(base) in owners


def _find_home(value: Any) -> None:
    """Import the module that a class or function says it is from, as pickle does.

    Some libraries have names for their modules that are modules only once somebody asks for them;
    cloudpickle would send the class itself, and objects would be of another one there.
    """
    home = getattr(value, "__module__", None)
    if isinstance(home, str) and home not in sys.modules and home.partition(".")[0] in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module(home)


_WITH_HOME = (type, types.FunctionType)


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


class Sender:
    """One pickler over several values, so that what they share stays shared.

    Parameters
    ----------
    namespace, leave
        See ``_Pickler``.
    known
        Numbers of the objects that the receiver has, by id; ``number_of`` makes sure that the id
        is still that object's.
    arrays
        The arrays among them.
    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        leave: Collection[str] | None,
        known: Mapping[int, int] | None = None,
        number_of: Callable[[Any], int | None] | None = None,
        arrays: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self._arrays = arrays
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
        expected: list[Any] = []
        there = self._arrays
        # by way of this sender it would hold its own pickler: a circle that is left to the garbage
        # collector, and Python 3.11 crashes as that clears a memoryview before its PickleBuffer
        self._pickler.tensors.beside(lambda: itertools.chain(expected, there()))
        for value in values:
            if isinstance(value, arrays):
                owner = owner_of(value)
                self._pickler.owners.add(id(owner))
                if owner.flags.forc and owner.size and not owner.dtype.hasobject:
                    expected.append(owner)
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
            with uncollected():
                self._pickler.dump(value)
        except pickle.PicklingError as error:
            if isinstance(error.__cause__, RecursionError):
                raise error.__cause__ from None  # cloudpickle puts it in other words
            raise
        return self._file.getvalue(), list(self._buffers)

    def forget(self) -> None:
        """Begin anew: nothing has been sent yet."""
        self._pickler.clear_memo()

    def orders(self) -> dict[int, list[int]]:
        """Of the sets that have been sent, see ``setorder.py``."""
        return orders_of(self._pickler.memo.copy())

    def numbered(self) -> Mapping[int, Any]:
        """What has been sent, by the number under which the receiver has it. Ends the sending."""
        self._file.seek(0)
        self._file.truncate()
        self._buffers.clear()
        return _Numbered(self._pickler)


class _Numbered(Mapping[int, Any]):
    """What a pickler has sent, by number; looked up only when it is asked for."""

    def __init__(self, pickler: _Pickler) -> None:
        self._pickler: _Pickler | None = pickler  # its memo holds what was sent
        self._found: dict[int, Any] = {}

    def _all(self) -> dict[int, Any]:
        if self._pickler is not None:
            with uncollected():
                self._found = dict(self._pickler.memo.copy().values())
            self._pickler = None
        return self._found

    def __getitem__(self, number: int) -> Any:
        return self._all()[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
