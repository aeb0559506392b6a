"""Versions of code: a short name for exactly these lines."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

from gpuqueue.model import JobKind

__all__ = ["version_of", "version_of_bytes", "version_of_function"]

_DIGITS = 16
_LARGEST = 64 << 20
_PYTHONS = ("python", "pypy")
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})
_LAUNCHERS = frozenset(
    [
        *("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun"),
        *("uv", "poetry", "pdm", "hatch", "conda", "mamba", "micromamba", "pipenv"),
        *("env", "nice", "nohup", "time", "stdbuf", "numactl", "taskset"),
    ]
)
"""Programs that run the script which they are given."""


def version_of_bytes(content: bytes) -> str:
    """16 hex digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def version_of_function(function: Callable[..., Any]) -> str | None:
    """The version of a function's own source; None if there is none to be found."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else _version_of_code(code)


@functools.lru_cache(maxsize=64)
def _version_of_code(code: CodeType) -> str | None:
    try:
        return version_of_bytes(inspect.getsource(code).encode())
    except (OSError, TypeError):
        return None


def version_of(spec: Mapping[str, Any], folder: str) -> tuple[str | None, str, str]:
    """The version of a job's code as it is now, what it is of, and the script's path if it is one.

    Parameters
    ----------
    spec
        What was submitted.
    folder
        The job's directory.

    Raises
    ------
    OSError
        The script or the notebook cannot be read.
    """
    kind = spec["kind"]
    if kind == JobKind.CELL:
        return version_of_bytes(spec["source"].encode()), "cell", ""
    if kind == JobKind.FUNCTION:
        return spec.get("code"), "function", ""
    if kind == JobKind.NOTEBOOK:
        with open(os.path.join(folder, "payload"), "rb") as file:
            return _version_of_notebook(file.read()), "notebook", ""
    path = _script_of(spec["argv"], spec["cwd"])
    if not path:
        return None, "", ""
    return _version_of_file(path), path, path


def _version_of_file(path: str) -> str | None:
    status = os.stat(path)
    if status.st_size > _LARGEST:
        return None
    return _version_of_content(path, status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(maxsize=256)
def _version_of_content(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return version_of_bytes(file.read())


def _version_of_notebook(content: bytes) -> str:
    """Of its code alone: outputs and words around it change nothing of what runs."""
    cells = json.loads(content)["cells"]
    sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    code = [source if isinstance(source, str) else "".join(source) for source in sources]
    return version_of_bytes(json.dumps(code).encode())


def _script_of(argv: list[str], cwd: str) -> str:
    """The script that a command runs, by the habits of its program; empty if none is plain."""

    def first(words: Iterable[str], suffix: str = "") -> str:
        paths = (os.path.join(cwd, word) for word in words if word.endswith(suffix))
        return next((path for path in paths if os.path.isfile(path)), "")

    program = os.path.basename(argv[0])
    if program in _LAUNCHERS:
        return first(argv[1:], ".py")
    if not (program.startswith(_PYTHONS) or program in _SHELLS):
        # itself a script, with its interpreter in the first line
        return first(argv[:1]) if program.endswith((".py", ".sh")) else ""
    words = iter(argv[1:])
    for word in words:
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif word == "-m":
            return first(words, ".py")  # a launcher's
        elif word in ("-c", "-", "-s"):
            return ""
        elif not word.startswith("-"):
            return os.path.join(cwd, word)
    return ""
