"""A spare kernel: a process with a notebook's libraries imported, which forks for each cell.

Started by the launcher (``spares.py``). Orders come on descriptor 0, what is to be told goes out on
3, both as lines. It forks a runner, which forks the job's payload, which forks the kernel
(``sparejob.py``): each is to the others, and to the controller, what it is without a spare kernel.
Those of the next job are forked ahead and wait.

======================  ====================================================================
line in (JSON)          what it does
======================  ====================================================================
``{"do": "begin"}``     first of all: import ``imports`` with ``sys_path`` in ``cwd``
``{"do": "run"}``       have the runner that waits carry out ``order``
``{"do": "rest"}``      a cell has ended: import what has come since, fork the next runner
======================  ====================================================================

===========================  ===============================================================
line out                     meaning
===========================  ===============================================================
``ready``                    it can take an order
``busy``                     it cannot, until it is ready again
``claimed JOB PID``          that runner has made the attempt its own
``refused JOB``              it has not, or will not: start it otherwise
``unfit WORDS``              it ends, and why
===========================  ===============================================================

It ends with the pipe from the launcher, whoever has been killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import weakref
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NoReturn

from gpuqueue.run.environ import Mark
from gpuqueue.run.memory import free_memory, into_large_pages, own_memory
from gpuqueue.run.preload import Preloaded, Unfit, unpacked
from gpuqueue.run.process import die_with_parent
from gpuqueue.run.sparejob import Image, in_child, lines_of, start_runner, try_kernel
from gpuqueue.run.sparekernel import kernel_ahead
from gpuqueue.run.watching import Watch

__all__ = ["main"]

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OF_EVERY_KERNEL = (
    "cloudpickle", "jupyter_client.session", "zmq", "gpuqueue.magics", "gpuqueue.magics.complete",
    "gpuqueue.run.ambient", "gpuqueue.run.changes", "gpuqueue.run.patches",
    "gpuqueue.run.sources", "gpuqueue.run.values",
)  # fmt: skip
_MANY_PAGES = 48 << 20
"""Bytes from which on a cell is slower for the table of pages that forks copy and take down."""
_TRIAL = 20.0
_LOOK = 10.0


class Spare:
    """The process itself.

    Parameters
    ----------
    orders, tell
        Descriptors of the pipes from and to the launcher.
    """

    def __init__(self, orders: int, tell: int) -> None:
        self._orders = orders
        self._read = lines_of(orders)
        self._tell_to = tell
        self._armed: socket.socket | None = None
        self._tried = False
        # beside a job that has just started only where there is more than one core
        self._at_once = len(os.sched_getaffinity(0)) > 1

    def run(self) -> None:
        """Be what the first order says, then carry out orders until there are no more."""
        try:
            if line := self._read():
                self._begin(json.loads(line))
                self._serve()
        except Unfit as error:
            self._tell(f"unfit {error}")

    def _tell(self, words: str) -> None:
        os.write(self._tell_to, words.encode() + b"\n")

    # -- ahead -------------------------------------------------------------------------------

    def _begin(self, words: Mapping[str, Any]) -> None:
        """Import all that can be."""
        self._limit = int(words["limit"])
        self._cwd = words["cwd"]
        os.umask(words["umask"])
        mark = Mark("GPUQUEUE_ATTEMPT_DIR")
        watch = Watch()
        own = _descriptors()
        # a library that looks for one finds none, as in a kernel that nobody can debug
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        for name in _OF_EVERY_KERNEL:
            import_module(name)
        with _folder(self._cwd):
            app = kernel_ahead()
        del sys.modules["debugpy"]
        self._image = Image(app, mark, self._tell_to, set(), set())
        self._preloaded = Preloaded(words["sys_path"], _ROOT, watch)
        self._argv = words["argv"] or list(sys.argv)
        self._import(words["imports"], own)

    def _import(self, path: str, own: set[int]) -> None:
        """Import the modules that a file names; ``own`` are descriptors that are open before."""
        before = list(sys.argv)
        sys.argv[:] = self._argv
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            names = unpacked(file.read())
        try:
            # as in a cell: libraries ask ``get_ipython()`` whether this is a terminal
            with _folder(self._cwd), self._image.app.shell_ahead.builtin_trap:
                self._preloaded.add(names)
        finally:
            sys.argv[:] = before
        self._preloaded.check()
        self._image.files |= _descriptors() - own
        self._image.modules = set(sys.modules)
        self._settle()

    def _settle(self) -> None:
        """See that what there is now can be shared, and fork the next runner."""
        gc.collect()
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
            # what a library has made is not for the first cell that ends to take down
            finalizer.atexit = False
        gc.freeze()  # a fork then copies fewer pages when it looks for garbage
        ctypes.CDLL(None).fflush(None)  # or each fork would write what a library has left there
        if (size := own_memory()) > self._limit:
            raise Unfit(f"with its libraries it takes {size >> 20} MB")
        if not self._tried:
            self._try()
            self._tried = True
        if size > _MANY_PAGES:
            into_large_pages()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended runners are not kept as zombies
        self._armed = start_runner(self._image)
        if len(os.listdir("/proc/self/task")) > 1:  # a library may end them when it is forked
            raise Unfit("a library has threads running, which a fork cannot take along")
        self._tell("ready")

    def _try(self) -> None:
        """Start a kernel as for a cell, once.

        Raises
        ------
        Unfit
            It did not start.
        """
        child = os.fork()
        if not child:
            in_child(lambda: try_kernel(self._image))
        handle = os.pidfd_open(child)
        if not select.select([handle], [], [], _TRIAL)[0]:
            os.kill(child, signal.SIGKILL)
        os.close(handle)
        _, status = os.waitpid(child, 0)
        if status:
            raise Unfit("a kernel did not start from it")

    # -- orders ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while line := self._next():
            words = json.loads(line)
            if words["do"] == "run":
                self._run(words["order"])
            elif words["imports"] is not None:
                self._tell("busy")
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                if self._armed is not None:
                    self._armed.close()
                    self._armed = None
                self._import(words["imports"], _descriptors())
            elif self._armed is None:
                self._armed = start_runner(self._image)

    def _next(self) -> bytes:
        while not select.select([self._orders], [], [], _LOOK)[0]:
            if free_memory() < self._limit:
                raise Unfit("memory is short")
        return self._read()

    def _run(self, order: Mapping[str, Any]) -> None:
        """Give a runner its order.

        Raises
        ------
        Unfit
            A cell would no longer import what was imported.
        """
        try:
            self._preloaded.check()
        except Unfit:
            self._tell(f"refused {order['job']}")
            raise
        line = json.dumps(order).encode() + b"\n"
        given = False
        for _ in range(2 if self._image.mark.fits(order["attempt_dir"]) else 0):
            armed = self._armed or start_runner(self._image)
            self._armed = None
            with armed, contextlib.suppress(OSError):  # somebody may have killed it
                armed.sendall(line)
                given = True
                break
        if not given:
            self._tell(f"refused {order['job']}")
        elif self._at_once:
            self._armed = start_runner(self._image)


def _descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of this very list
            os.fstat(int(name))
            found.add(int(name))
    return found


@contextlib.contextmanager
def _folder(path: str) -> Iterator[None]:
    """Be in a folder for a while, and otherwise in none that somebody may want to remove.

    Raises
    ------
    Unfit
        It is gone.
    """
    try:
        os.chdir(path)
    except OSError as error:
        raise Unfit(f"the notebook's folder cannot be entered: {error}") from None
    try:
        yield
    finally:
        os.chdir("/")


def main() -> NoReturn:
    """Be a spare kernel."""
    die_with_parent()
    orders, tell = os.dup(0), 3
    os.set_inheritable(tell, False)  # noqa: FBT003
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    in_child(Spare(orders, tell).run)
