"""Comms, and the widgets that talk through them, in pickles between a notebook and a job.

A comm is a channel between an object in a kernel and the one in the front end that shows it; both
know it by its id. A widget that travels keeps its id: in the job it goes on talking to what the
notebook shows (its messages are written down with the cell's outputs, and sent on by the notebook),
and afterwards it is the notebook's own again.

What unpickling makes here takes part in that, except while two states are compared (``quietly``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "fill_comm", "fill_traits", "live_widgets", "make_comm", "open_comm", "quietly", "reduce",
    "special",
]  # fmt: skip

_quiet: list[bool] = []


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """What is loaded meanwhile opens, closes and registers nothing."""
    _quiet.append(True)
    try:
        yield
    finally:
        _quiet.pop()


# -- pickling ---------------------------------------------------------------------------------


def special() -> tuple[type, ...]:
    """Classes of which ``reduce`` knows what to do, as far as they have been imported."""
    homes = (("comm.base_comm", "BaseComm"), ("traitlets.traitlets", "HasTraits"))
    found = (getattr(sys.modules.get(home), name, None) for home, name in homes)
    return tuple(kind for kind in found if isinstance(kind, type))


def reduce(value: Any) -> Any:
    """How a comm, or an object with traits, is made again; None if its own way is as good."""
    base: Any = getattr(sys.modules.get("comm.base_comm"), "BaseComm", ())
    return _reduce_comm(value) if isinstance(value, base) else _reduce_traits(value)


def _reduce_comm(value: Any) -> Any:
    args = (value.target_name, value.comm_id, value.target_module, bool(value._closed))  # noqa: SLF001
    own = [value._msg_callback, value._close_callback]  # noqa: SLF001
    # a widget sets its own when it is made again
    state = [None if _widget_of(callback) is not None else callback for callback in own]
    if not any(state):
        return make_comm, args
    return make_comm, args, state, None, None, fill_comm


def _reduce_traits(value: Any) -> Any:
    """With what observes it: traitlets' own way leaves out observers that were added later."""
    traits: Any = sys.modules["traitlets.traitlets"]
    kind: Any = type(value)
    base: Any = traits.HasTraits
    if kind.__getstate__ is not base.__getstate__ or kind.__reduce_ex__ is not base.__reduce_ex__:
        return None
    if kind.__reduce__ is not base.__reduce__ or kind.__setstate__ is not base.__setstate__:
        return None
    state = dict(vars(value))
    if state.get("close") is _nothing:
        del state["close"]
    state["_trait_notifiers"] = _added(traits, state.get("_trait_notifiers", {}))
    state["_trait_validators"] = {}
    state["_cross_validation_lock"] = False
    return vars(sys.modules["copyreg"])["__newobj__"], (kind,), state, None, None, fill_traits


def _added(traits: Any, notifiers: Mapping[Any, Mapping[Any, Any]]) -> dict[Any, Any]:
    """Observers that do not come with the class, by trait and kind of change."""
    found: dict[Any, Any] = {}
    for name, kinds in notifiers.items():
        for kind, handlers in kinds.items():
            own = [one for one in handlers if not isinstance(one, traits.EventHandler)]
            if own:
                found.setdefault(name, {})[kind] = own
    return found


def _is_widget(value: Any) -> bool:
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    return module is not None and isinstance(value, module.Widget)


def _widget_of(callback: Any) -> Any:
    owner = getattr(callback, "__self__", None)
    return owner if owner is not None and _is_widget(owner) else None


# -- called by pickles ------------------------------------------------------------------------


def make_comm(target: str, comm_id: str, module: str | None, closed: bool) -> Any:
    """The end in this process of a comm that is open already."""
    import comm

    manager: Any = comm.get_comm_manager()
    if _quiet or closed:
        from comm.base_comm import BaseComm

        made: Any = BaseComm(target, comm_id=comm_id, primary=False, target_module=module)
        made._closed = True  # noqa: SLF001 - it must not tell anybody that it goes
        return made
    if comm_id not in manager.comms:
        manager.register_comm(open_comm(target, comm_id, module))
    return manager.comms[comm_id]


def open_comm(target: str, comm_id: str, module: str | None) -> Any:
    """A comm that the front end has open already."""
    import comm

    made: Any = comm.create_comm(
        target_name=target, comm_id=comm_id, primary=False, target_module=module
    )
    if getattr(made, "kernel", made) is None:
        # it looks for its kernel with the first message, and until then a widget sends none
        kernels: Any = sys.modules["ipykernel.kernelbase"]
        if kernels.Kernel.initialized():
            made.kernel = kernels.Kernel.instance()
    return made


def fill_comm(made: Any, state: Any) -> None:
    """What a comm calls; one that was here before keeps what it has, if that is no stand-in."""
    if getattr(made._msg_callback, "stands_in", made._msg_callback is None):  # noqa: SLF001
        made.on_msg(state[0])
    if made._close_callback is None:  # noqa: SLF001
        made.on_close(state[1])


def fill_traits(made: Any, state: dict[str, Any]) -> None:
    """The state of an object with traits; a widget is from now on the one behind its comm."""
    traits: Any = sys.modules["traitlets.traitlets"]
    own, validators = made._trait_notifiers, made._trait_validators  # noqa: SLF001
    added = state["_trait_notifiers"]
    vars(made).clear()
    vars(made).update(state, _trait_notifiers=own, _trait_validators=validators)
    for kinds in own.values():
        for handlers in kinds.values():
            handlers[:] = [one for one in handlers if isinstance(one, traits.EventHandler)]
    for name, kinds in added.items():
        for kind, handlers in kinds.items():
            own.setdefault(name, {}).setdefault(kind, []).extend(handlers)
    if _is_widget(made):
        _adopt(made)


def _adopt(widget: Any) -> None:
    channel = widget.comm
    if channel is None:
        return
    known = live_widgets()
    if _quiet or known.get(channel.comm_id, widget) is not widget:
        # a copy, which would close the comm when it is dropped
        vars(widget)["close"] = _nothing
        return
    known[channel.comm_id] = widget
    channel.on_msg(widget._handle_msg)  # noqa: SLF001


def _nothing() -> None:
    """In place of a copy's own ``close``."""


def live_widgets() -> dict[str, Any]:
    """The widgets of this process by the id of their comm, as ipywidgets itself keeps them."""
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    if module is None:
        return {}
    found: Any = getattr(module, "_instances", None)
    if found is None:  # before version 8
        found = module.Widget.widgets
    return found  # type: ignore[no-any-return]
