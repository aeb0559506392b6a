"""What is to be run, checked and made ready before anything is queued."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuqueue.about import PACKAGE, ROOT
from gpuqueue.errors import PayloadError
from gpuqueue.model import JobKind
from gpuqueue.record.versions import version_of_function
from gpuqueue.run.kernelshare import without_share
from gpuqueue.run.large import Large, Linked

__all__ = [
    "Payload",
    "as_submitted",
    "function_payload",
    "notebook_payload",
    "python_payload",
    "script_payload",
]

_PYTHONS = frozenset({"python", "python3", f"python3.{sys.version_info.minor}"})
_PRIVATE = (
    "JPY_PARENT_PID", "GPUQUEUE_JOB_ID", "GPUQUEUE_ATTEMPT_DIR", "GPUQUEUE_RESUME",
    "GPUQUEUE_RUN_DIR", "GPUQUEUE_COMPUTE", "GPUQUEUE_MEMORY",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Payload:
    """A job's work, ready to be written into its directory.

    ``command`` is how it is shown; ``files`` are written beside the spec, name to content, which
    may be in pieces; ``large`` are those that are stored by themselves. ``objects`` is what a
    cell's inputs are made of, by the numbers that its results use. Without ``flush``, large files
    may reach the disk only later. ``notes`` are for the person: what the job will do without.
    """

    kind: JobKind
    program: str
    argv: tuple[str, ...]
    command: str
    tag: str
    cwd: str
    env: Mapping[str, str]
    extra: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes | Sequence[Any]] = field(default_factory=dict)
    objects: Mapping[int, Any] = field(default_factory=dict, repr=False, compare=False)
    flush: bool = True
    large: Mapping[str, Large | Linked] = field(default_factory=dict, repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def spec(self) -> dict[str, Any]:
        """The content of ``spec.json``."""
        return {
            "kind": str(self.kind),
            "program": self.program,
            "argv": list(self.argv),
            "cwd": self.cwd,
            "env": dict(self.env),
            **_umask(),
            **self.extra,
        }


def _umask() -> dict[str, int]:
    """The umask here, where it can be read without being changed."""
    try:
        handle = os.open("/proc/self/status", os.O_RDONLY)
        try:
            status = os.read(handle, 512)  # it is the second line
        finally:
            os.close(handle)
    except OSError:
        return {}
    found = re.search(rb"^Umask:\s*([0-7]+)", status, re.MULTILINE)
    return {"umask": int(found[1], 8)} if found else {}


def _surroundings(
    cwd: str | os.PathLike[str] | None, env: Mapping[str, str] | None
) -> tuple[str, dict[str, str]]:
    try:
        folder = os.path.abspath(os.fspath(cwd)) if cwd is not None else os.getcwd()
    except FileNotFoundError:
        raise PayloadError("cwd", "the current directory no longer exists; cd elsewhere") from None
    if not os.path.isdir(folder):
        raise PayloadError("cwd", f"{folder} is not a directory")
    values = without_share(os.environ)
    for name, value in (env or {}).items():
        if not isinstance(value, str) or "=" in name or "\0" in name + value:
            raise PayloadError("env", f"{name}: both name and value must be plain text")
        values[name] = value
    for name in _PRIVATE:
        values.pop(name, None)
    return folder, values


def _find(program: str, cwd: str, env: Mapping[str, str]) -> str:
    if os.sep in program or (os.altsep and os.altsep in program):
        path = os.path.join(cwd, program)
        if not os.path.isfile(path):
            raise PayloadError("command", f"there is no program {program} (in {cwd})")
        if not os.access(path, os.X_OK):
            hint = (
                f"python {shlex.quote(program)}"
                if program.endswith(".py")
                else f"chmod +x {program}"
            )
            raise PayloadError("command", f"{program} is not executable; try: {hint}")
        return path
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        where = (
            ""
            if not os.path.exists(os.path.join(cwd, program))
            else f"; for the file here write ./{program}"
        )
        raise PayloadError("command", f"there is no program {program!r} on PATH{where}")
    return os.path.join(cwd, found)


def _check_python(argv: Sequence[str], cwd: str) -> None:
    """Refuse a Python command whose script or module is plainly missing."""
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            rest[:1] = []
        elif word == "-m":
            return  # the module is found by the interpreter's own path, which is not ours
        elif word in ("-c", "-"):
            return
        elif not word.startswith("-"):
            path = os.path.join(cwd, word)
            if not os.path.exists(path):
                raise PayloadError("command", f"there is no script {word} (in {cwd})")
            return


def _tag_of(argv: Sequence[str]) -> str:
    for word in argv[1:]:
        if word.endswith((".py", ".sh", ".ipynb")):
            return Path(word).stem[:60] or "job"
    return (Path(argv[0]).name or "job")[:60]


def _offer_helper(env: dict[str, str]) -> None:
    """Let a Python that has no gpuqueue import ``gpuqueue.checkpoint``: see ``jobpath``."""
    folder = str(PACKAGE / "jobpath")
    there = [entry for entry in (env.get("PYTHONPATH"),) if entry]
    if folder not in os.pathsep.join(there).split(os.pathsep):
        env["PYTHONPATH"] = os.pathsep.join([*there, folder])


def as_submitted(env: Mapping[str, str]) -> dict[str, str]:
    """A job's environment as its submitter had it, without the helper that was offered."""
    folder = str(PACKAGE / "jobpath")
    values = without_share(env)
    entries = values.pop("PYTHONPATH", "").split(os.pathsep)
    if kept := os.pathsep.join(entry for entry in entries if entry != folder):
        values["PYTHONPATH"] = kept
    return values


def script_payload(
    command: Sequence[str] | str,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    own_python: bool = True,
) -> Payload:
    """A program with its arguments, or a line for the shell.

    With ``own_python``, the word ``python`` means the interpreter that submits, as in a notebook
    one expects the kernel's own.

    Raises
    ------
    PayloadError
        There is no such program, script or working directory.
    """
    folder, values = _surroundings(cwd, env)
    if isinstance(command, str):
        if not command.strip():
            raise PayloadError("command", "is empty")
        if "\0" in command:
            raise PayloadError("command", "holds a NUL character")
        shell = _find("sh" if os.name == "posix" else "cmd", folder, values)
        _offer_helper(values)
        argv = [shell, "-c" if os.name == "posix" else "/c", command]
        words = command.split()
        return Payload(
            JobKind.SCRIPT, shell, tuple(argv), command.strip(), _tag_of(words), folder, values
        )
    argv = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    if not argv:
        raise PayloadError("command", "is empty")
    for word in argv:
        if not isinstance(word, str):
            raise PayloadError("command", f"{word!r} is not text; turn it into a str first")
        if "\0" in word:
            raise PayloadError("command", f"{word!r} holds a NUL character")
    shown = shlex.join(argv)
    if own_python and argv[0] in _PYTHONS and sys.executable:
        program = sys.executable
    else:
        program = _find(argv[0], folder, values)
    if Path(argv[0]).name in _PYTHONS:
        _check_python(argv, folder)
    if own_python and argv[0] in _PYTHONS:
        argv[0] = program
    if program != sys.executable:
        _offer_helper(values)
    return Payload(JobKind.SCRIPT, program, tuple(argv), shown, _tag_of(argv), folder, values)


def python_payload(
    kind: JobKind,
    *,
    command: str,
    tag: str,
    files: Mapping[str, bytes | Sequence[Any]],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    objects: Mapping[int, Any] | None = None,
    flush: bool = True,
    large: Mapping[str, Large] | None = None,
    notes: tuple[str, ...] = (),
) -> Payload:
    """A payload that ``gpuqueue.run.<kind>`` runs in this interpreter, with this import path."""
    folder, values = _surroundings(cwd, env)
    bootstrap = PACKAGE / "run" / "bootstrap.py"
    path = [os.path.abspath(entry) if entry else folder for entry in sys.path]
    if ROOT not in path:
        path.append(ROOT)
    return Payload(
        kind,
        sys.executable,
        (sys.executable, "-P", str(bootstrap), str(kind)),
        command,
        tag[:60] or str(kind),
        folder,
        values,
        {"sys_path": path, **(extra or {})},
        files,
        {} if objects is None else objects,
        flush,
        large or {},
        notes,
    )


def _dumps(value: Any, field_name: str, what: str) -> bytes:
    from gpuqueue.run.code import dump_call

    try:
        return dump_call(value)
    except Exception as error:
        raise PayloadError(
            field_name,
            f"{what} cannot be sent to another process ({type(error).__name__}: {error}). Leave "
            "out what cannot travel (a lock, an open file, a connection) and make it inside the "
            "function.",
        ) from error


def function_payload(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Payload:
    """A call, pickled by value where the function was defined in a notebook or a script.

    Raises
    ------
    PayloadError
        The arguments do not match the function, or something cannot be pickled: names it.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise PayloadError("arguments", f"{name}(): {error}") from None
    except ValueError:
        pass  # builtins without a signature
    try:
        content = _dumps((function, tuple(args), dict(kwargs)), "call", name)
    except PayloadError:
        # find out which part it is, to name it
        _dumps(function, "function", f"{name}, or something it uses,")
        for index, value in enumerate(args):
            _dumps(value, "arguments", f"argument {index + 1}, a {type(value).__name__},")
        for key, value in kwargs.items():
            _dumps(value, key, f"a {type(value).__name__}")
        raise
    named = (f"{name}={_short(value, name)}" for name, value in kwargs.items())
    shown = ", ".join([*map(_short, args), *named])
    return python_payload(
        JobKind.FUNCTION,
        command=f"{name}({shown})",
        tag=getattr(function, "__name__", name),
        files={"payload": content},
        cwd=cwd,
        env=env,
        extra={"code": version_of_function(function)},
    )


_SECRET = re.compile("key|token|secret|passw|credential", re.IGNORECASE)


def _short(value: Any, name: str = "") -> str:
    if isinstance(value, str) and _SECRET.search(name):
        return "..."
    if isinstance(value, int | float | bool | str | None):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"<{type(value).__name__}>"


def notebook_payload(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Payload:
    """A whole notebook, run from top to bottom as it is on disk now.

    Raises
    ------
    PayloadError
        There is no such notebook, or it is not one.
    """
    import nbformat

    where = Path(cwd or os.getcwd()) / path
    try:
        notebook = nbformat.read(where, as_version=4)  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise PayloadError("notebook", f"there is no notebook {where}") from None
    except Exception as error:
        raise PayloadError("notebook", f"{where} cannot be read as a notebook: {error}") from error
    for name, value in (parameters or {}).items():
        if not name.isidentifier():
            raise PayloadError("parameters", f"{name!r} is not a name")
        if not isinstance(value, int | float | bool | str | None | list | tuple | dict):
            raise PayloadError(
                "parameters", f"{name}: a {type(value).__name__} cannot be written into a notebook"
            )
    content = nbformat.writes(notebook).encode()  # type: ignore[no-untyped-call]
    return python_payload(
        JobKind.NOTEBOOK,
        command=os.fspath(path),
        tag=where.stem,
        files={"payload": content},
        # a notebook's relative paths are relative to the notebook
        cwd=where.parent,
        env=env,
        extra={"parameters": dict(parameters or {}), "name": where.name},
    )


def load_result(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """What a function job kept: ``("value", v)`` or ``("error", (exception or None, text))``."""
    with open(path, "rb") as file:
        kind, value = pickle.load(file)
    return kind, value
