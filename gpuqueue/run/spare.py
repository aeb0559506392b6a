"""A spare kernel: a process with a notebook's libraries imported, which forks for each cell.

Run by path, by the launcher: orders come on descriptor 0, what is to be told goes out on 3, both
as lines. It forks a runner, which forks the job's payload, which forks the kernel: each is to the
others, and to the controller, what it is without a spare kernel. Runner and payload of the next job
are forked ahead and wait.

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

import os
import sys

if __name__ == "__main__":
    # __main__ is to become the notebook's
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from gpuqueue.run.spare import main

    main()

import contextlib
import ctypes
import gc
import json
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from gpuqueue.run.environ import Mark
from gpuqueue.run.files import read_json
from gpuqueue.run.memory import free_memory, own_memory
from gpuqueue.run.preload import Preloaded, Unfit, unpacked
from gpuqueue.run.process import die_with_parent
from gpuqueue.run.runner import DEFAULTED, Runner

__all__ = ["main"]

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_TRIAL = 20.0
_LOOK = 10.0
_HELD_BACK = {signal.SIGTERM, signal.SIGINT}


# -- forks ------------------------------------------------------------------------------------


def _in_child(work: Callable[[], int | None]) -> NoReturn:
    """Do a fork's work and end; nothing of the parent's is run at the end."""
    code = 1
    try:
        code = work() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - the fork must never return into its parent's work
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _close_all_but(kept: Iterable[int]) -> None:
    kept = {0, 1, 2, *kept}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _untouched_signals() -> None:
    """As in a process that has just been started."""
    signal.set_wakeup_fd(-1)
    for number in DEFAULTED:
        if number != signal.SIGPIPE:  # Python itself ignores that one
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _lines(handle: int) -> Callable[[], bytes]:
    """A reader of lines; empty at the end."""
    buffer = b""

    def read() -> bytes:
        nonlocal buffer
        while b"\n" not in buffer:
            chunk = os.read(handle, 1 << 16)
            if not chunk:
                return b""
            buffer += chunk
        line, _, buffer = buffer.partition(b"\n")
        return line

    return read


class _Child:
    """A forked kernel, as ``cell.Process`` wants it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self._code is None:
                with contextlib.suppress(ChildProcessError):
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                    if pid:
                        self._code = os.waitstatus_to_exitcode(status)
            return self._code

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        while (code := self.poll()) is None:
            with contextlib.suppress(ChildProcessError):
                # its status is left for poll, which more than one thread may call
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return code

    def kill(self) -> None:
        """End it, if it still runs."""
        with self._lock:
            if self._code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)


# -- the job's processes ----------------------------------------------------------------------


class _Runner(Runner):
    """A runner whose payload waits already."""

    def __init__(
        self, order: Mapping[str, Any], tell: int, payload: int, channel: socket.socket
    ) -> None:
        super().__init__(order)
        self._tell = tell
        self._waiting = payload
        self._channel = channel

    def claim(self) -> bool:
        """Take the attempt, and say so."""
        mine = False
        try:
            mine = super().claim()
        finally:
            job = self.order["job"]
            word = f"claimed {job} {os.getpid()}" if mine else f"refused {job}"
            with contextlib.suppress(OSError):
                os.write(self._tell, f"{word}\n".encode())
            os.close(self._tell)
        return mine

    def _begin(self, spec: Mapping[str, Any], env: dict[str, str], sink: int) -> int:
        words = {"env": env, "cwd": spec["cwd"], "umask": spec.get("umask")}
        try:
            socket.send_fds(self._channel, [b"."], [sink])
            self._channel.sendall(json.dumps(words).encode() + b"\n")
        except OSError:  # it is gone
            return super()._begin(spec, env, sink)
        finally:
            self._channel.close()
        return self._waiting


class Spare:
    """The process itself."""

    def __init__(self, orders: int, tell: int) -> None:
        self._orders = orders
        self._read = _lines(orders)
        self._tell_to = tell
        self._armed: socket.socket | None = None
        self._libraries: set[int] = set()
        self._ahead: set[str] = set()
        self._tried = False

    def tell(self, words: str) -> None:
        """One line to the launcher."""
        os.write(self._tell_to, words.encode() + b"\n")

    # -- ahead -------------------------------------------------------------------------------

    def begin(self, words: Mapping[str, Any]) -> None:
        """Import all that can be."""
        self._limit = int(words["limit"])
        self._cwd = words["cwd"]
        self._mark = Mark("GPUQUEUE_ATTEMPT_DIR")
        os.umask(words["umask"])
        own = set(map(int, os.listdir("/proc/self/fd")))
        # a library that looks for one finds none, as in a kernel that nobody can debug
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        # what a kernel imports for every cell
        import cloudpickle  # noqa: F401
        import jupyter_client.session
        import zmq  # noqa: F401

        import gpuqueue.magics
        from gpuqueue.run import ambient, cell, cellwork, changes, values  # noqa: F401
        from gpuqueue.run.sparekernel import kernel_ahead

        with contextlib.chdir(self._cwd):
            self._app = kernel_ahead()
        del sys.modules["debugpy"]
        self._preloaded = Preloaded(words["sys_path"], _ROOT)
        self._argv = words["argv"] or sys.argv
        self._import(words["imports"], own)

    def _import(self, path: str | None, own: set[int]) -> None:
        before = list(sys.argv)
        sys.argv[:] = self._argv
        names: list[str] = []
        if path is not None:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                names = unpacked(file.read())
        try:
            with contextlib.chdir(self._cwd):
                self._preloaded.add(names)
        except OSError as error:
            raise Unfit(f"the notebook's folder is gone: {error}") from None
        finally:
            sys.argv[:] = before
        self._preloaded.check()
        self._libraries |= set(map(int, os.listdir("/proc/self/fd"))) - own
        self._ahead = set(sys.modules)
        self._settle()

    def _settle(self) -> None:
        """See that what there is now can be shared, and fork the next runner."""
        gc.collect()
        gc.freeze()  # a fork then copies fewer pages when it looks for garbage
        ctypes.CDLL(None).fflush(None)  # or each fork would write what a library has left there
        if own_memory() > self._limit:
            raise Unfit(f"with its libraries it takes {own_memory() >> 20} MB")
        if not self._tried:
            self._try()
            self._tried = True
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended runners are not kept as zombies
        self.arm()
        if len(os.listdir("/proc/self/task")) > 1:  # those that a fork cannot take along
            raise Unfit("a library has threads of its own running")
        self.tell("ready")

    def _try(self) -> None:
        """Start a kernel as for a cell, once.

        Raises
        ------
        Unfit
            It did not start.
        """
        child = os.fork()
        if not child:
            _in_child(self._trial)
        handle = os.pidfd_open(child)
        ready, _, _ = select.select([handle], [], [], _TRIAL)
        if handle not in ready:
            os.kill(child, signal.SIGKILL)
        os.close(handle)
        _, status = os.waitpid(child, 0)
        if status:
            raise Unfit("a kernel did not start from it")

    def _trial(self) -> int:
        die_with_parent()
        from gpuqueue.run.cell import CellKernel

        self._app.init_code = die_with_parent  # the user's own startup files are for cells
        kernel = CellKernel(self._fork_kernel)
        nothing, _ = os.pipe()
        try:
            while (reports := kernel.reports(nothing)) is not None:
                if any(report["type"] == "gpuqueue_ready" for report in reports):
                    return 0
        finally:
            kernel.process.kill()
            kernel.remove()
        return 1

    # -- jobs --------------------------------------------------------------------------------

    def arm(self) -> None:
        """Fork the runner and the payload of the next job."""
        here, there = socket.socketpair()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)  # until the runner has its handlers
        if not os.fork():
            _in_child(lambda: self._be_runner(there))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        there.close()
        self._armed = here

    def _be_runner(self, channel: socket.socket) -> None:
        _close_all_but({*self._libraries, channel.fileno(), self._tell_to})
        here, there = socket.socketpair()
        payload = os.fork()
        if not payload:
            _in_child(lambda: self._be_payload(there))
        there.close()
        line = _lines(channel.fileno())()
        channel.close()
        if line:
            _Runner(json.loads(line), self._tell_to, payload, here).run()

    def _be_payload(self, channel: socket.socket) -> int:
        os.setsid()
        _close_all_but({*self._libraries, channel.fileno()})
        first, handles, _, _ = socket.recv_fds(channel, 1, 1)
        line = _lines(channel.fileno())() if first else b""
        channel.close()
        if not line:
            return 0  # no job came
        words = json.loads(line)
        for number in (1, 2):
            os.dup2(handles[0], number)
        os.close(handles[0])
        _untouched_signals()
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        env = words["env"]
        for name in os.environ.keys() - env.keys():
            del os.environ[name]
        for name, value in env.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        attempt = env["GPUQUEUE_ATTEMPT_DIR"]
        self._mark.set(attempt)
        os.chdir(words["cwd"])
        if words["umask"] is not None:
            os.umask(words["umask"])
        from gpuqueue.run.cell import CellRun, leave

        job_dir = os.path.dirname(attempt)
        spec = read_json(os.path.join(job_dir, "spec.json"))
        leave(CellRun(job_dir, attempt, spec, self._fork_kernel).run())

    def _fork_kernel(self, folder: str, orders: int, reports: int) -> _Child:
        pid = os.fork()
        if not pid:
            _in_child(lambda: self._be_kernel(folder, orders, reports))
        return _Child(pid)

    def _be_kernel(self, folder: str, orders: int, reports: int) -> None:
        os.setsid()
        _close_all_but({*self._libraries, orders, reports})
        _untouched_signals()
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
        from gpuqueue.run.sparekernel import end_orderly, finish_in_fork

        finish_in_fork(self._app, folder, orders, reports)
        end_orderly(self._app.user_ns, self._ahead)
        ctypes.CDLL(None).fflush(None)

    # -- orders ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Carry out orders until there are no more."""
        while line := self._next():
            words = json.loads(line)
            if words["do"] == "run":
                self._run(words["order"])
            elif words["imports"] is not None:
                self.tell("busy")
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._disarm()
                self._import(words["imports"], set(map(int, os.listdir("/proc/self/fd"))))
            elif self._armed is None:
                self.arm()

    def _next(self) -> bytes:
        while not select.select([self._orders], [], [], _LOOK)[0]:
            if free_memory() < self._limit:
                raise Unfit("memory is short")
        return self._read()

    def _run(self, order: Mapping[str, Any]) -> None:
        job = order["job"]
        try:
            self._preloaded.check()
            if not self._mark.fits(order["attempt_dir"]):
                raise Unfit("the job's directory has a long name")  # noqa: TRY301
        except Unfit:
            self.tell(f"refused {job}")
            raise
        line = json.dumps(order).encode() + b"\n"
        for _ in range(2):
            if self._armed is None:
                self.arm()
            armed, self._armed = self._armed, None
            assert armed is not None
            try:
                armed.sendall(line)
            except OSError:
                continue  # somebody has killed it
            finally:
                armed.close()
            return
        self.tell(f"refused {job}")

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.close()
            self._armed = None


def main() -> NoReturn:
    """Be a spare kernel."""
    die_with_parent()
    orders, tell = os.dup(0), 3
    os.set_inheritable(tell, False)  # noqa: FBT003
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    spare = Spare(orders, tell)

    def work() -> None:
        try:
            spare.begin(json.loads(spare._read()))  # noqa: SLF001
            spare.serve()
        except Unfit as error:
            spare.tell(f"unfit {error}")

    _in_child(work)
