"""What a notebook has imported of installed libraries, for its spare kernel."""

from __future__ import annotations

import os
import sys
from typing import Any

from gpuqueue.run.preload import LEFT_OUT, installed_places, packed
from gpuqueue.run.process import identify

__all__ = ["IMPORTS", "spare_files", "spare_words"]

IMPORTS = "imports"
"""The file in the job's directory."""

_known: dict[tuple[int, str], bytes] = {}
"""The content for the modules as they were last."""


def spare_words() -> dict[str, Any]:
    """For the spec: whose spare kernel may serve this cell. Empty where there are none."""
    me = identify(os.getpid()) if sys.platform.startswith("linux") else None
    return {} if me is None else {"spare": [me.pid, me.start, me.boot]}


def spare_files() -> dict[str, bytes]:
    """For the job's directory: names of imported library modules, in the order of their import."""
    if not sys.platform.startswith("linux"):
        return {}
    # a notebook with torch has 3,000 modules; they are looked through when some have come
    state = len(sys.modules), next(reversed(sys.modules))
    if state not in _known:
        _known.clear()
        _known[state] = packed(_installed())
    return {IMPORTS: _known[state]}


def _installed() -> list[str]:
    places = installed_places()
    found = []
    for name, module in list(sys.modules.items()):
        spec: Any = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if not isinstance(origin, str) or spec.name != name or name.startswith(LEFT_OUT):
            continue
        # one that lies elsewhere was found on a path of its library's own
        where = name.replace(".", os.sep)
        if any(origin.startswith(place + where) for place in places):
            found.append(name)
    return found
