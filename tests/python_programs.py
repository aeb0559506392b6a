"""Programs for tests that are written in Python and found under a name of their own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["python_program"]


def python_program(path: Path, source: str) -> None:
    """Make an executable at ``path`` that this Python runs, with nothing but its own library.

    By way of a shell: the path of a Python in a folder with a space cannot stand behind ``#!``.
    """
    inner = path.parent / "in python" / path.name
    inner.parent.mkdir(exist_ok=True)
    inner.write_text(source)
    words = shlex.join([sys.executable, "-IS", str(inner)])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o700)
