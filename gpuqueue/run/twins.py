"""Objects of which every process has its own, in pickles.

A notebook's shell, its standard streams and its environment cannot be sent; what refers to them in
the notebook refers in the job to the job's, and the other way round.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["here", "twin"]


def _shell() -> Any:
    core: Any = sys.modules.get("IPython.core.getipython")
    return core.get_ipython() if core is not None else None


def _loop() -> Any:
    asyncio: Any = sys.modules.get("asyncio")
    try:
        return asyncio.get_running_loop() if asyncio is not None else None
    except RuntimeError:
        return getattr(
            getattr(getattr(_shell(), "kernel", None), "io_loop", None), "asyncio_loop", None
        )


def _of_module(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(sys.modules.get(module), name, None)


_PARTS = (
    "display_formatter", "display_pub", "displayhook", "history_manager", "magics_manager",
    "events", "extension_manager", "alias_manager", "input_transformer_manager",
)  # fmt: skip
"""Of the shell, each of which refers to it."""
_SHOWN_AS = (
    "text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png",
    "image/jpeg", "application/pdf", "application/json", "application/javascript",
)  # fmt: skip


def _part(name: str) -> Callable[[], Any]:
    return lambda: getattr(_shell(), name, None)


def _formatter(kind: str) -> Callable[[], Any]:
    return lambda: getattr(_part("display_formatter")(), "formatters", {}).get(kind)


_TWINS: dict[str, Callable[[], Any]] = {
    "shell": _shell,
    "kernel": lambda: getattr(_shell(), "kernel", None),
    "stdout": lambda: sys.stdout,
    "stderr": lambda: sys.stderr,
    "stdin": lambda: sys.stdin,
    "first stdout": lambda: sys.__stdout__,
    "first stderr": lambda: sys.__stderr__,
    "event loop": _loop,
    "environment": lambda: os.environ,
    "main thread": threading.main_thread,
    "rcParams": _of_module("matplotlib", "rcParams"),
    "NumPy's generator": _of_module("numpy.random.mtrand", "_rand"),
    "Python's generator": _of_module("random", "_inst"),
    "torch's generator": _of_module("torch", "default_generator"),
    **{f"shell's {name}": _part(name) for name in _PARTS},
    **{f"formatter of {kind}": _formatter(kind) for kind in _SHOWN_AS},
}


def here() -> dict[int, str]:
    """The names of this process's twins, by id."""
    found: dict[int, str] = {}
    for name, get in _TWINS.items():
        value = get()
        # what the notebook has put in its place is an object like others
        if value is not None and type(value).__module__ != "__main__":
            found.setdefault(id(value), name)
    return found


def twin(name: str) -> Any:
    """What this process has of its own; called by pickles."""
    return _TWINS[name]()
