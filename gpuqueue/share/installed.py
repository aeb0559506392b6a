"""Which frameworks a job's own Python has, told from its files: nothing is started for it.

Distributions leave a folder ``NAME-VERSION.dist-info`` beside their packages (PEP 376).
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["versions_in"]

_FRAMEWORKS = ("torch",)
"""Those whose settings hang on their version; see `gpuqueue.share.frameworks`."""


def versions_in(program: str) -> dict[str, str]:
    """Versions by name, of the Python that ``program`` is.

    Empty where it is no Python, where nothing is installed for that one alone, or where several
    versions are there and nobody knows which is used.
    """
    if not os.path.basename(program).startswith("python"):
        return {}
    prefix = Path(program).parent.parent  # of the environment: the program itself may be a link
    found = {}
    for name in _FRAMEWORKS:
        folders = prefix.glob(f"lib/python3*/site-packages/{name}-*.dist-info")
        there = {folder.name[len(name) + 1 : -len(".dist-info")] for folder in folders}
        if len(there) == 1:
            found[name] = there.pop()
    return found
