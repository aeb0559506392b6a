"""How the notebook has told IPython to show objects, by functions of its own or by SymPy's.

``for_type`` and ``for_type_by_name`` of a formatter, and ``sympy.init_printing()``, which calls the
first. What libraries register as they are imported is not looked at: that is there already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["new_printers", "printers_of_ones_own", "put_printers"]

_PRINTER = "<printer "
"""Begins the name of a value: a formatter's name, a class or its name in two parts, a function."""
_HOMES = ("__main__", "sympy.interactive.printing")

Printer = tuple[str, Any, Any]


def _formatters() -> dict[str, Any]:
    core = sys.modules.get("IPython.core.getipython")
    shell = core.get_ipython() if core is not None else None
    display = getattr(shell, "display_formatter", None)
    if display is None:
        return {}
    return {
        **display.formatters,
        "<display>": display.ipython_display_formatter,
        "<bundle>": display.mimebundle_formatter,
    }


def _own() -> Iterator[Printer]:
    for name, formatter in _formatters().items():
        for key, function in (
            *formatter.type_printers.items(),
            *formatter.deferred_printers.items(),
        ):
            if getattr(function, "__module__", "") in _HOMES:
                yield name, key, function


def printers_of_ones_own() -> dict[str, Printer]:
    """Those that are here, as values to be sent."""
    return {f"{_PRINTER}{number}>": one for number, one in enumerate(_own())}


def put_printers(values: Mapping[str, Any]) -> list[Printer]:
    """Register those that have come; returns all that are here then."""
    formatters = _formatters()
    for name, came in values.items():
        if name.startswith(_PRINTER) and came[0] in formatters:
            formatter, key = formatters[came[0]], came[1]
            table = (
                formatter.type_printers if isinstance(key, type) else formatter.deferred_printers
            )
            table[key] = came[2]
    return list(_own())


def new_printers(before: list[Printer]) -> dict[str, Printer]:
    """Those that are here and were not, as values to be sent."""
    known = {(name, key): function for name, key, function in before}
    return {
        name: one
        for name, one in printers_of_ones_own().items()
        if known.get(one[:2]) is not one[2]
    }
