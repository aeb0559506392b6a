"""What is done in a cell's kernel before and after the cell itself."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuqueue.run.celloutput import OVER
from gpuqueue.run.devicememory import is_out_of_memory, peak_of_torch
from gpuqueue.run.files import RESULT, read_json, write_json
from gpuqueue.run.quiet import quiet
from gpuqueue.run.shellstate import IPYTHON_NAMES, LAST, hidden_names, own_magics, put_history

__all__ = ["VALUES", "driver_order", "finish", "prepare", "setup"]

VALUES = "values.json"
"""In the attempt: what came back and what did not, written by ``finish``."""


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
    inputs: Any
    states: Mapping[str, bytes]
    environ: Mapping[str, str]
    magics: Mapping[str, Mapping[str, Any]]
    patches: Mapping[Any, Any]
    folder: str
    threads: int
    path: list[str]
    cells: set[str]
    handlers: list[tuple[str, Any]]
    printers: list[Any]
    depth: int = 0
    result: Any = None
    flushed: bool = False


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


def driver_order() -> Mapping[str, Any]:
    """The order that is being carried out."""
    return _Work.driver.order  # type: ignore[no-any-return]


def _nesting(step: int) -> None:
    """Say when the code of a cell has ended, before anybody else does something about that."""
    before, _Work.depth = _Work.depth, max(0, _Work.depth + step)
    if before and not _Work.depth:
        sys.stdout.flush()
        sys.stderr.flush()
        app = _Work.driver.app
        app.session.send(app.iopub_socket, OVER, {})


def _note_flush(hook: Any) -> None:
    """Notice that ``Out`` is emptied."""
    flush = hook.flush

    def noted() -> None:
        _Work.flushed = True
        flush()

    hook.flush = noted


def prepare() -> None:
    """Make namespace, history and surroundings what they were in the notebook."""
    from gpuqueue.run import ambient
    from gpuqueue.run.changes import Inputs
    from gpuqueue.run.patches import put_patches
    from gpuqueue.run.sources import known_names, put_sources
    from gpuqueue.run.values import load_file

    work, shell = _Work, _Work.shell
    # in a spare kernel some have registered already, such as the library that shows figures
    shell.events.callbacks["pre_run_cell"].insert(0, lambda *_: _nesting(1))
    shell.events.callbacks["post_execute"].insert(0, lambda: _nesting(-1))
    folder = work.driver.order["job_dir"]
    work.spec = spec = read_json(os.path.join(folder, "spec.json"))
    around: dict[str, Any] = {"states": {}, "imported": []}
    # a job of an earlier release has none
    with (
        contextlib.suppress(FileNotFoundError),
        open(os.path.join(folder, "surroundings"), "rb") as file,
    ):
        around = pickle.load(file)
    # modules are found as in the notebook, before anything is imported
    states = around["states"]
    sys.path[:] = spec["sys_path"]
    sys.argv[:] = spec.get("argv_of_kernel") or sys.argv
    path = os.path.join(folder, "payload")
    loaded = quiet()(load_file)(path)  # what it imports has been heard in the notebook
    needed = [name for name in loaded.problems if name in spec["needs"]]
    if needed:
        raise ImportError("; ".join(f"{name}: {loaded.problems[name]}" for name in needed))
    values = {name: value for name, value in loaded.values.items() if not name.startswith("<")}
    put_sources(shell, around.get("sources", {}))
    work.patches = put_patches(loaded.values)
    shell.user_ns.update(values)
    put_history(shell, values, around.get("history", ()), around.get("parsed", ()))
    _note_flush(shell.displayhook)
    for kind, magics in loaded.values.get("<magics>", {}).items():
        for name, function in magics.items():
            shell.register_magic_function(function, kind, name)
    work.magics, work.cells = own_magics(shell), known_names(shell)
    for name in spec["deletes"]:
        shell.user_ns.setdefault(name, None)
    shell.execution_count = spec.get("execution_count", 1)
    work.before = {name: _Was(value) for name, value in shell.user_ns.items()}
    hidden = hidden_names(shell.user_ns, shell.user_ns_hidden)
    own = {name: value for name, value in loaded.values.items() if name.startswith("<")}
    work.inputs = Inputs(path, values | own, loaded.objects, shell.user_ns, hidden)
    del loaded, values

    def remember(result: Any) -> None:
        if work.depth:
            return  # of a cell that the cell has run
        shell.events.unregister("post_run_cell", remember)
        # what is to be done before and after each cell has nothing to do with our own work
        for event in ("pre_execute", "pre_run_cell"):
            shell.events.callbacks[event].clear()
        work.result = result

    shell.events.register("post_run_cell", remember)
    _put_surroundings(spec["source"], states, around["imported"])
    _put_own(own)
    work.states = ambient.settled()
    work.environ, work.folder, work.path = dict(os.environ), os.getcwd(), list(sys.path)
    work.threads = threading.active_count()
    # taking them may have used some
    ambient.put({n: data for n, data in states.items() if "random" in n}, wait=False)


def _put_own(values: Mapping[str, Any]) -> None:
    """Register what of the notebook's own others call: handlers of loggers, printers."""
    from gpuqueue.run.loghandlers import put_handlers
    from gpuqueue.run.printers import put_printers

    _Work.handlers, _Work.printers = put_handlers(values), put_printers(values)


def _put_surroundings(source: str, states: Mapping[str, bytes], imported: Iterable[str]) -> None:
    from gpuqueue.run import ambient

    if "InlineBackend" in source and "inline figures" in states:
        with contextlib.suppress(ImportError):  # ``%config`` finds it only if it is there
            importlib.import_module("matplotlib_inline.config")
    ambient.put(states, imported=imported)


def finish() -> None:
    """Save what the cell made: the names it bound, its last value, its exception."""
    from gpuqueue.run.loghandlers import handlers_of_ones_own
    from gpuqueue.run.patches import GONE, changed_patches, mentions_of
    from gpuqueue.run.printers import new_printers
    from gpuqueue.run.sources import known_names, sources
    from gpuqueue.run.values import CHANGE, save_values

    for stream in (sys.stdout, sys.stderr):
        _drain(stream)
    peak = peak_of_torch()  # of the cell, without what saving takes
    work, shell = _Work, _Work.shell
    for event in ("post_execute", "post_run_cell"):
        shell.events.callbacks[event].clear()
    namespace, spec = shell.user_ns, work.spec
    attempt = work.driver.order["attempt"]
    extras: dict[str, Any] = {"<around>": _around()}
    values = dict(_made(namespace, spec))
    asked = spec["outs"]
    missing = {name: "the cell did not make it" for name in asked or () if name not in values}
    names_of: dict[str, str] = {}
    if asked is None:
        changed, classes = work.inputs.changes()
        for number, value in changed.items():
            extras[f"{CHANGE}{number}>"] = work.inputs.sent[number]
            names_of[f"{CHANGE}{number}>"] = _called(value)
        if classes:
            extras["<classes>"] = classes
        extras |= _widgets(work.inputs, namespace)
    if asked is None:
        came = [handler for _, handler in work.handlers]
        extras |= {n: pair for n, pair in handlers_of_ones_own().items() if pair[1] not in came}
        extras |= new_printers(work.printers)
    patches = changed_patches(
        mentions_of(spec["source"], shell.transform_cell), namespace, work.patches
    )
    for place, value in patches.items():
        if value is not GONE:
            extras[place.key] = value
            names_of[place.key] = str(place)
    new = {
        kind: {n: one for n, one in magics.items() if work.magics[kind].get(n) is not one}
        for kind, magics in own_magics(shell).items()
    }
    if any(new.values()):
        extras["<magics>"] = new
    result, error = work.result, None
    if result is not None:
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            extras["<error>"] = _bare(error)
        elif (shown := _shown(namespace, result)) is not None:
            extras["<out>"] = shown
    problems = save_values(
        os.path.join(attempt, RESULT),
        {**values, **extras},
        namespace=namespace,
        leave=None,
        known=work.inputs,
        # a notebook that waits has it at once, and sees to the disk afterwards
        flush=not spec.get("waited"),
        # nothing of it is needed here any more, unless a thread of the cell still goes on
        let_go=threading.active_count() <= work.threads,
    )
    told = {name: why for name, why in problems.items() if not name.startswith("<")}
    for name, why in problems.items():
        if name in names_of:
            told[names_of[name]] = f"it was changed in place, and {why}"
        elif name == "<classes>":
            told["a class"] = f"its attributes were changed, and {why}"
    write_json(
        os.path.join(attempt, VALUES),
        {
            "names": [name for name in values if name not in problems],
            "problems": told | missing,
            "deleted": [name for name in work.before if _was_deleted(name)],
            "where": _where(),
            "sources": sources(shell, known_names(shell) - work.cells),
            "unpatched": [place.key for place, value in patches.items() if value is GONE],
            "peak": peak,
            "out_of_memory": is_out_of_memory(error),
            "flushed": [n for n in LAST if n in namespace] if work.flushed else None,
        },
        flush=False,  # read by the process beside this one, and not again
    )


def _shown(namespace: Mapping[str, Any], result: Any) -> Any:
    """The cell's last value; IPython loses that of a cell which has run another one."""
    if result.result is not None:
        return result.result
    return namespace.get("_oh", {}).get(_Work.spec.get("execution_count"))


def _widgets(inputs: Any, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The widgets that the cell has made: who shows one talks to it, whatever names it has."""
    from gpuqueue.run.comms import live_widgets
    from gpuqueue.run.deep import with_room
    from gpuqueue.run.pickling import Sender

    made = [one for one in live_widgets().values() if inputs.number_of(one) is None]

    def can_go(value: Any) -> bool:
        with contextlib.suppress(Exception):
            Sender(namespace, None, inputs.numbers, inputs.number_of).dump(value)
            return True
        return False

    if made and not with_room(lambda: can_go(made)):
        made = [one for one in made if can_go(one)]
    return {"<widgets>": made} if made else {}


def _called(value: Any) -> str:
    """A variable for an object, or else its kind."""
    for name, other in _Work.shell.user_ns.items():
        if other is value and not IPYTHON_NAMES.fullmatch(name):
            return str(name)
    return f"a {type(value).__qualname__}"


def _around() -> dict[str, Any]:
    """What the cell has changed besides variables."""
    from gpuqueue.run import ambient

    work = _Work
    now, environ = ambient.take(), dict(os.environ)
    return {
        "states": {n: data for n, data in now.items() if work.states.get(n) != data},
        "environ": {n: v for n, v in environ.items() if work.environ.get(n) != v},
        "unset": [name for name in work.environ if name not in environ],
        "quiet": [
            [name, work.inputs.number_of(handler)]
            for name, handler in work.handlers
            if handler not in logging.getLogger(name or None).handlers
        ],
    }


def _where() -> dict[str, Any]:
    """Where modules are found now, if that has changed: needed to load what comes back."""
    work, found = _Work, {}
    with contextlib.suppress(FileNotFoundError):  # the cell has removed the folder it is in
        if (folder := os.getcwd()) != work.folder:
            found["folder"] = folder
    path = list(sys.path)
    if path != work.path and all(isinstance(entry, str) for entry in path):
        found["path"] = path  # type: ignore[assignment]
    return found


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
    hidden -= {name for name in spec["binds"] if name in LAST}
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
