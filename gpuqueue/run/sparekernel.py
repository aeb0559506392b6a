"""A cell's kernel made in two steps: what takes long ahead of time, the rest in a fork of it.

The application is configured and the shell made ahead, so that libraries that look for IPython as
they are imported find it. Sockets, threads and the kernel itself come in the fork.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from collections.abc import Mapping
from importlib import invalidate_caches
from typing import Any, ClassVar

from gpuqueue.run.cellkernel import OPTIONS, app_class, start
from gpuqueue.run.environ import Mark
from gpuqueue.run.process import die_with_parent

__all__ = [
    "become", "end_orderly", "finish_in_fork", "kernel_ahead", "prepare", "prepared_stream", "warm",
]  # fmt: skip

_streams: dict[str, Any] = {}
"""What ``sys.stdout`` and ``sys.stderr`` are ahead and stay in the fork: libraries keep them."""


def prepared_stream(session: Any, thread: Any, name: str, **words: Any) -> Any:
    """Make the stream of that name one of the kernel's; takes the place of ``OutStream``."""
    from ipykernel.iostream import OutStream

    stream = _streams[name]
    stream.__class__ = OutStream
    stream.__init__(session, thread, name, **words)
    return stream


def _silent_class() -> Any:
    from ipykernel.iostream import OutStream

    class Silent(OutStream):
        """A stream of the kernel before there is a kernel: it forgets what is written."""

        closed = False

        def __init__(self) -> None:
            """Leave the rest for later."""

        def write(self, text: str) -> int:
            """Forget it."""
            return len(text)

        def flush(self) -> None:
            """Nothing is kept."""

        def isatty(self) -> bool:
            """As of a kernel's stream."""
            return False

    return Silent


class _KernelToCome:
    """Where a shell has its kernel before there is one."""


class _FewModules:
    """``sys`` as if nothing had been imported."""

    modules: ClassVar[dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


def kernel_ahead() -> Any:
    """The application with its configuration and its shell; ``sys.stdout`` is silent afterwards."""
    from ipykernel.compiler import XCachingCompiler
    from ipykernel.zmqshell import ZMQInteractiveShell
    from IPython.core.application import BaseIPythonApplication

    class Configured(BaseIPythonApplication):
        """Reads its configuration once."""

        configured = False

        def initialize_ahead(self, argv: Any) -> None:
            """Do it now."""
            Configured.initialize(self, argv)

        def initialize(self, argv: Any = None) -> None:
            """Do what is left of it."""
            if not self.configured:
                super().initialize(argv)  # type: ignore[no-untyped-call]
                self.configured = True

    class AheadApp(app_class(), Configured):  # type: ignore[misc]
        """Takes the shell that is there."""

        def init_kernel(self) -> None:
            """Make it without the list of all modules' files, which only a debugger would want.

            Each that it looks at is memory to copy: with torch a third of all that a fork copies.
            """
            from ipykernel import ipkernel

            place: Any = ipkernel
            place.sys = _FewModules()
            try:
                super().init_kernel()
            finally:
                place.sys = sys

        def init_shell(self) -> None:
            """Have shell and kernel know each other."""
            super().init_shell()
            self.shell.kernel = self.shell.parent = self.kernel

    app: Any = AheadApp.instance()
    app.initialize_ahead(["-f", "later.json", *OPTIONS])
    app.init_pdb()
    shell: Any = ZMQInteractiveShell.instance(
        parent=app, profile_dir=app.profile_dir, user_module=None, user_ns=None,
        compiler_class=XCachingCompiler,
    )  # fmt: skip
    app.user_ns = shell.user_ns
    # libraries that ask as they are imported whether this is a terminal look for one
    shell.kernel = _KernelToCome()
    app.shell = shell
    app.init_gui_pylab()  # names the backend that matplotlib is to find when it is imported
    app.shell = None
    app.shell_ahead = shell
    app.outstream_class = f"{__name__}.{prepared_stream.__name__}"
    silent = _silent_class()
    for name in ("stdout", "stderr"):
        _streams[name] = silent()
        setattr(sys, name, _streams[name])
    return app


class _Fork:
    app: Any = None
    mark: Mark
    folder: str


def finish_in_fork(app: Any, mark: Mark, folder: str, orders: int, reports: int) -> None:
    """Be the kernel until it is told to stop. In a fork of the process that ``app`` was made in.

    It does not know its job before it is told to ``prepare``.
    """
    import asyncio

    _Fork.app, _Fork.mark, _Fork.folder = app, mark, folder
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    # a library may have made one as it was imported, which would be shared with other forks
    asyncio.set_event_loop(asyncio.new_event_loop())
    app.connection_file = os.path.join(folder, "kernel.json")
    app.parent_handle = os.getppid()
    app.init_code = lambda: None  # the user's own startup files run in the job's surroundings
    start(app, folder, orders, reports)


def warm() -> None:
    """Do what takes longer when it is done for the first time.

    In a fork that is the first write to each page of memory, which copies it: a thousand of them
    for a small cell. So this goes through the motions of a cell that does nothing.

    Raises
    ------
    RuntimeError
        The kernel has been configured not to watch its descriptors: they lead nowhere here.
    """
    from gpuqueue.run import ambient
    from gpuqueue.run.changes import Inputs
    from gpuqueue.run.patches import changed_patches, mentions_of
    from gpuqueue.run.values import dump_values, load_file

    if any(getattr(stream, "_fid", None) is None for stream in _streams.values()):
        raise RuntimeError("the descriptors are not watched")

    app = _Fork.app
    invalidate_caches()
    path = os.path.join(_Fork.folder, "nothing")
    with open(path, "wb") as file:
        file.writelines(dump_values({"one": [1, {"two": "three"}]}, namespace={}).pieces)
    loaded = load_file(path)
    inputs = Inputs(path, loaded.values, loaded.objects, app.user_ns, ())
    ambient.put(ambient.take(), wait=False)
    inputs.changes()
    changed_patches(mentions_of("x = 1", app.shell.transform_cell), app.user_ns, {})
    dump_values({"<out>": 1}, namespace=app.user_ns, leave=None, known=inputs)
    set(sys.modules)  # as IPython lists them once its startup files have run
    ambient.note()
    del loaded, inputs
    gc.collect()
    gc.freeze()  # none of this is garbage when the cell ends


def prepare() -> None:
    """Become the kernel of a job, then do what any kernel does to prepare for its cell."""
    from gpuqueue.run import ambient, cellwork

    app, shell, order = _Fork.app, _Fork.app.shell, cellwork.driver_order()
    die_with_parent(on=False)  # from here on the runner sees to its end
    become(order["env"], order["cwd"], order["umask"])
    os.environ["JPY_PARENT_PID"] = str(os.getppid())
    _Fork.mark.set(order["attempt"])
    invalidate_caches()
    shell.init_environment()
    shell.starting_dir = os.getcwd()
    app.user_ns["_dh"][:] = [os.getcwd()]
    app.init_gui_pylab()
    del app.init_code
    if _begins_with_code(app):
        ambient.forget()
    app.init_code()
    cellwork.prepare()


def _begins_with_code(app: Any) -> bool:
    """Whether the user has code that runs as each kernel starts, such as startup files."""
    folder = os.path.join(app.profile_dir.location, "startup")
    with contextlib.suppress(OSError):
        if any(name.endswith((".py", ".ipy")) for name in os.listdir(folder)):
            return True
    startup = app.exec_PYTHONSTARTUP and "PYTHONSTARTUP" in os.environ
    return bool(app.exec_lines or app.exec_files or startup)


def become(env: Mapping[str, str], cwd: str, umask: int | None) -> None:
    """Have the surroundings of a process that was started with these."""
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    os.chdir(cwd)
    if umask is not None:
        os.umask(umask)


def end_orderly(namespace: dict[str, Any], ahead: set[str]) -> None:
    """What an interpreter does at its end, as far as the user's own things go.

    Parameters
    ----------
    namespace
        The cell's variables.
    ahead
        Modules that were there before the cell: the time to take those apart is saved.
    """
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - waits for threads
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001
    namespace.clear()
    for name in [name for name in sys.modules if name not in ahead]:
        with contextlib.suppress(BaseException):
            vars(sys.modules[name]).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(BaseException):
            stream.flush()  # type: ignore[union-attr]
