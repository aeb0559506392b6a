"""Modules of torch with parametrizations, which refuse to be pickled: weight norm, for example.

Each has a class of its own, made as the first parametrization was registered (torch 2,
``torch.nn.utils.parametrize``); so one is made again from the class that it had before and the
names of its parametrized tensors, and filled with its attributes.
"""

from __future__ import annotations

from typing import Any

__all__ = ["become_parametrized", "is_parametrized", "make_parametrized", "reduce_parametrized"]

_HOME = "torch.nn.utils.parametrize"


def is_parametrized(kind: type) -> bool:
    """Whether a class is one that torch has made for a module with parametrizations."""
    return kind.__module__ == _HOME and kind.__name__.startswith("Parametrized")


def reduce_parametrized(value: Any) -> Any:
    """How such a module is made again."""
    kind = type(value)
    names = tuple(name for name, one in vars(kind).items() if isinstance(one, property))
    return make_parametrized, (kind.__bases__[0], names), dict(vars(value))


def make_parametrized(kind: Any, names: tuple[str, ...]) -> Any:
    """Such a module, without its attributes."""
    from torch.nn.utils import parametrize

    made = kind.__new__(kind)
    parametrize._inject_new_class(made)  # noqa: SLF001 - what registering one does
    for name in names:
        parametrize._inject_property(made, name)  # noqa: SLF001
    type(made).__setstate__ = _fill
    return made


def _fill(module: Any, state: dict[str, Any]) -> None:
    vars(module).update(state)


def become_parametrized(old: Any, new: Any) -> bool:
    """Make such a module what its changed copy is; False if they are none."""
    if not (is_parametrized(type(old)) and is_parametrized(type(new))):
        return False
    if type(old).__bases__ != type(new).__bases__:
        return False
    for name, one in vars(type(new)).items():
        if isinstance(one, property):
            setattr(type(old), name, one)
    vars(old).clear()
    vars(old).update(vars(new))
    return True
