"""Stands for gpuqueue in a job whose interpreter does not have it, so that checkpoints work there.

The folder of this file is at the end of such a job's ``PYTHONPATH``. Where the interpreter has
gpuqueue after all, that one is taken.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

_folder = os.path.dirname(os.path.abspath(__file__))


def _installed() -> ModuleSpec | None:
    """The interpreter's own gpuqueue, if it has one."""
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if os.path.abspath(entry or os.curdir) != _folder]
    for finder in list(sys.meta_path):
        spec = finder.find_spec("gpuqueue", None) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.origin:  # a mere folder of that name has none
            return spec
    sys.path[:] = before
    return None


_spec = _installed() if __name__ == "gpuqueue" else None
if _spec is None:
    __path__ = [os.path.dirname(_folder)]
else:
    from importlib.util import module_from_spec

    _module = module_from_spec(_spec)
    sys.modules["gpuqueue"] = _module
    assert _spec.loader is not None
    _spec.loader.exec_module(_module)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"{sys.executable} has no gpuqueue, and so no gpuqueue.{name}. In a job it can import "
        "gpuqueue.checkpoint and gpuqueue.integrations; for the rest: pip install jupyter-gpuqueue"
    )
