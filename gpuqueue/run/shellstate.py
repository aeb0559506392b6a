"""What IPython's shell keeps of a notebook: its own names, magics and history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["IPYTHON_NAMES", "LAST", "hidden_names", "own_magics", "put_history"]

IPYTHON_NAMES = re.compile(r"_+|_i+|_i\d+|_\d+|_[iod]h|_sh|In|Out|__builtins__|_exit_code")
"""Names that IPython itself sets, cell by cell."""
LAST = ("_", "__", "___")
"""The last values."""


def hidden_names(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> set[str]:
    """Names that IPython put into a namespace and that still mean what it put there."""
    missing = object()
    return {
        name
        for name in namespace
        if IPYTHON_NAMES.fullmatch(name) or hidden.get(name, missing) is namespace[name]
    }


def own_magics(shell: Any) -> dict[str, dict[str, Any]]:
    """Magics that the notebook has defined itself, and other names of magics, by kind and name."""
    from IPython.core.magic import MagicAlias

    return {
        kind: {
            name: function
            for name, function in magics.items()
            if isinstance(function, MagicAlias) or getattr(function, "__module__", "") == "__main__"
        }
        for kind, magics in shell.magics_manager.magics.items()
    }


def put_history(
    shell: Any, values: Mapping[str, Any], inputs: Sequence[str], parsed: Sequence[str]
) -> None:
    """Have what the cell reads of IPython's history where IPython looks for it.

    ``inputs`` are the cells up to this one as they were typed, ``parsed`` what IPython made of
    them, if the cell asks for any.
    """
    past = shell.history_manager
    for name in ("_oh", "Out"):
        if name in values:
            shell.user_ns["_oh"] = shell.user_ns["Out"] = values[name]
    for name in LAST:
        if name in values:
            setattr(shell.displayhook, name, values[name])
    # each cell that runs moves these on by one
    for name, before in (("_i", "_i00"), ("_ii", "_i"), ("_iii", "_ii")):
        if name in values:
            setattr(past, before, values[name])
    parsed = values.get("In", values.get("_ih", parsed or inputs))
    if parsed or inputs:
        past.input_hist_raw[:] = (inputs or parsed)[:-1]
        past.input_hist_parsed[:] = parsed[:-1]
        shell.user_ns["In"] = shell.user_ns["_ih"] = past.input_hist_parsed
