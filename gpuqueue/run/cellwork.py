"""What is done in a cell's kernel before and after the cell itself."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from gpuqueue.run.files import RESULT, read_json, write_json

__all__ = ["IPYTHON_NAMES", "VALUES", "finish", "hidden_names", "prepare", "setup"]

VALUES = "values.json"
"""In the attempt: what came back and what did not, written by ``finish``."""

IPYTHON_NAMES = re.compile(r"_+|_i+|_i\d+|_\d+|_[iod]h|_sh|In|Out|__builtins__|_exit_code")
"""Names that IPython itself sets, cell by cell."""


_MOST_MARKED = 256 << 20
"""Bytes of inputs up to which changes made in place are looked for."""

_UNCHANGING = (
    bool, int, float, complex, str, bytes, type(None), type, types.ModuleType, types.FunctionType,
    types.BuiltinFunctionType, range,
)  # fmt: skip


class _Was:
    """An object that a name meant, to tell later whether it still means it.

    By weak reference where that can be, so that what the cell drops is freed at once; an id alone
    may be given to a newcomer.
    """

    def __init__(self, value: Any) -> None:
        self._value: Any = value
        self._weak = False
        with contextlib.suppress(TypeError):
            self._value, self._weak = weakref.ref(value), True

    def is_(self, value: Any) -> bool:
        return (self._value() if self._weak else self._value) is value


class _Work:
    shell: Any
    driver: Any
    spec: Mapping[str, Any]
    before: dict[str, _Was]
    marks: dict[str, bytes]
    result: Any = None


def setup(shell: Any, driver: Any) -> None:
    """Remember the kernel's parts; called once, before the kernel starts to listen."""
    _Work.shell = shell
    _Work.driver = driver
    # so that %%gpu inside a job says why it cannot be, where it is not loaded by itself
    with contextlib.suppress(Exception):
        shell.extension_manager.load_extension("gpuqueue")
    # exit() would take the kernel away with everything the cell has made
    shell.ask_exit = lambda: None
    # what is written to the descriptors is reported; the kernel would also copy it to where they
    # led before, and it would be in the log twice
    with open(os.devnull, "wb") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):
                os.dup2(nowhere.fileno(), stream._original_stdstream_copy)  # type: ignore[union-attr]  # noqa: SLF001


def hidden_names(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> set[str]:
    """Names that IPython put into a namespace and that still mean what it put there."""
    missing = object()
    return {
        name
        for name in namespace
        if IPYTHON_NAMES.fullmatch(name) or hidden.get(name, missing) is namespace[name]
    }


def prepare() -> None:
    """Make import path, arguments, namespace and history what they were in the notebook."""
    work, shell = _Work, _Work.shell
    order = work.driver.order
    work.spec = spec = read_json(os.path.join(order["job_dir"], "spec.json"))
    sys.path[:] = spec["sys_path"]
    sys.argv[:] = spec.get("argv_of_kernel") or sys.argv
    with open(os.path.join(order["job_dir"], "payload"), "rb") as file:
        from gpuqueue.run.values import parse_values

        values, problems = parse_values(io.BytesIO(file.read()))
    needed = [name for name in problems if name in spec["needs"]]
    if needed:
        raise ImportError("; ".join(f"{name}: {problems[name]}" for name in needed))
    shell.user_ns.update(values)
    for name in spec["deletes"]:
        shell.user_ns.setdefault(name, None)
    shell.execution_count = spec.get("execution_count", 1)
    work.before = {name: _Was(value) for name, value in shell.user_ns.items()}
    work.marks = _marks(values, os.path.getsize(os.path.join(order["job_dir"], "payload")))

    def remember(result: Any) -> None:
        shell.events.unregister("post_run_cell", remember)
        work.result = result

    shell.events.register("post_run_cell", remember)


def _marks(values: Mapping[str, Any], size: int) -> dict[str, bytes]:
    """Fingerprints of the inputs that the cell may change in place."""
    from gpuqueue.run.values import fingerprint

    if size > _MOST_MARKED:
        return {}
    marks = {
        name: fingerprint(value, _Work.shell.user_ns)
        for name, value in values.items()
        if not isinstance(value, _UNCHANGING)
    }
    return {name: mark for name, mark in marks.items() if mark}


def _changed() -> list[str]:
    """Inputs that are the same objects as before, with other content."""
    from gpuqueue.run.values import fingerprint

    work, namespace = _Work, _Work.shell.user_ns
    return [
        name
        for name, mark in work.marks.items()
        if name in namespace
        and work.before[name].is_(namespace[name])
        and fingerprint(namespace[name], namespace) != mark
    ]


def finish() -> None:
    """Save what the cell made: the names it bound, its last value, its exception."""
    from gpuqueue.run.values import save_values

    for stream in (sys.stdout, sys.stderr):
        _drain(stream)
    work, shell = _Work, _Work.shell
    namespace, spec = shell.user_ns, work.spec
    attempt = work.driver.order["attempt"]
    values = dict(_made(namespace, spec))
    changed = _changed() if spec["outs"] is None else []
    values |= {name: namespace[name] for name in changed}
    asked = spec["outs"]
    missing = {name: "the cell did not make it" for name in asked or () if name not in values}
    extras: dict[str, Any] = {}
    result = work.result
    if result is not None:
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            extras["<error>"] = _bare(error)
        elif result.result is not None:
            extras["<out>"] = result.result
    problems = save_values(
        os.path.join(attempt, RESULT), {**values, **extras}, namespace=namespace, leave=None
    )
    problems = {name: why for name, why in problems.items() if not name.startswith("<")}
    write_json(
        os.path.join(attempt, VALUES),
        {
            "names": [name for name in values if name not in problems],
            "problems": problems | missing,
            "changed": changed,
            "deleted": [name for name in work.before if _was_deleted(name)],
        },
    )


def _drain(stream: Any, patience: float = 2.0) -> None:
    """Wait until what child processes and C code wrote to a descriptor has been reported.

    The kernel reads it from a pipe in a thread; one byte more in that pipe tells when all that
    came before has been read.
    """
    try:
        handle, pipe = stream._original_stdstream_fd, stream._fid  # noqa: SLF001
        if os.fstat(handle).st_ino != os.fstat(pipe).st_ino:
            return  # the cell has led it elsewhere
    except (AttributeError, OSError, TypeError):
        return  # it is not watched here
    done, write = threading.Event(), stream.write

    def look(text: str) -> Any:
        if text.endswith("\0"):
            done.set()
            text = text[:-1]
        return write(text)

    stream.write = look
    try:
        os.write(handle, b"\0")
        done.wait(patience)
    finally:
        del stream.write
    stream.flush()


def _made(namespace: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names that come back: those asked for, or else all that mean something else than before."""
    if spec["outs"] is not None:
        yield from ((name, namespace[name]) for name in spec["outs"] if name in namespace)
        return
    hidden = hidden_names(namespace, _Work.shell.user_ns_hidden)
    before = _Work.before
    for name, value in list(namespace.items()):
        was = before.get(name)
        if name not in hidden and (was is None or not was.is_(value)):
            yield name, value


def _was_deleted(name: str) -> bool:
    spec = _Work.spec
    known = name in spec["deletes"] or name in spec["inputs"]
    return known and name not in _Work.shell.user_ns and spec["outs"] is None


def _bare(error: BaseException) -> BaseException:
    """The exception without the frames that hold everything the cell had."""
    with contextlib.suppress(Exception):
        return error.with_traceback(None)
    return error
