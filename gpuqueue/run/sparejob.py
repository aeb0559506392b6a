"""The processes of a job that comes to a spare kernel: runner, payload and kernel, all forked.

They are forked ahead, in a chain, and wait for a job: the kernel has started, its payload looks
after it, the runner waits for an order. What each is started with in a job without a spare kernel
(environment, working directory, descriptors, the mark that names the attempt) each takes on when
the order comes. If none comes they end with the process that has forked them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gpuqueue.model import ProcessId
from gpuqueue.run.cell import CellKernel, CellRun, leave
from gpuqueue.run.environ import Mark
from gpuqueue.run.files import read_json
from gpuqueue.run.logfile import LogFile
from gpuqueue.run.process import die_with_parent, identify
from gpuqueue.run.runner import DEFAULTED, Runner
from gpuqueue.run.sparekernel import become, end_orderly, finish_in_fork

__all__ = ["Image", "in_child", "lines_of", "start_runner", "try_kernel"]

_PATIENCE = 15.0
_LEAVING = 0.1
"""Seconds within which a kernel is gone, as a rule, after its payload."""
_HELD_BACK = {signal.SIGTERM, signal.SIGINT}


@dataclass(slots=True)
class Image:
    """What all forks have in common.

    Attributes
    ----------
    app
        The kernel's application, as ``kernel_ahead`` has made it.
    mark
        Room for the name of the attempt.
    tell
        Descriptor of the launcher's pipe.
    files
        Descriptors that libraries have opened.
    modules
        Names of all modules that were imported ahead.
    """

    app: Any
    mark: Mark
    tell: int
    files: set[int]
    modules: set[str]


# -- forks ------------------------------------------------------------------------------------


def in_child(work: Callable[[], int | None]) -> NoReturn:
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


def lines_of(handle: int) -> Callable[[], bytes]:
    """A reader of lines from a descriptor; it gives nothing at the end."""
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


def _rehearse() -> None:
    """Use what a job will: in a fork each page of memory is copied when it is first written to."""
    words = json.loads(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()}))
    become(words["env"], words["cwd"], None)
    identify(os.getpid())


# -- runner -----------------------------------------------------------------------------------


class _Runner(Runner):
    """A runner whose payload waits already."""

    def __init__(
        self, order: Mapping[str, Any], tell: int, payload: int, channel: socket.socket
    ) -> None:
        super().__init__(order)
        self._tell = tell
        self._waiting = payload
        self._channel = channel
        self._leave_by = 0.0

    def claim(self, me: ProcessId | None = None) -> bool:
        """Take the attempt, and say so."""
        mine = False
        try:
            mine = super().claim(me)
        finally:
            job = self.order["job"]
            word = f"claimed {job} {os.getpid()}" if mine else f"refused {job}"
            with contextlib.suppress(OSError):
                os.write(self._tell, f"{word}\n".encode())
            os.close(self._tell)
        return mine

    def _patience(self, log: LogFile) -> float | None:
        patience = super()._patience(log)
        if self.status is None or self._told or patience is None:
            return patience
        return min(patience, _LEAVING * 1000)

    def _press(self) -> None:
        """Ask what is left to end, but not the kernel, which is on its way out."""
        if self.status is not None and not self._told:
            self._leave_by = self._leave_by or time.monotonic() + _LEAVING
            if time.monotonic() < self._leave_by:
                return
        super()._press()

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


def start_runner(image: Image) -> socket.socket:
    """Fork the runner of the next job; where to send it its order. It ends if that is closed."""
    here, there = socket.socketpair()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)  # until the runner has its handlers
    if not os.fork():
        in_child(lambda: _be_runner(image, there))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
    there.close()
    return here


def _be_runner(image: Image, channel: socket.socket) -> None:
    die_with_parent()
    _close_all_but({*image.files, channel.fileno(), image.tell})
    here, there = socket.socketpair()
    payload = os.fork()
    if not payload:
        in_child(lambda: _be_payload(image, there))
    there.close()
    _rehearse()
    line = lines_of(channel.fileno())()
    channel.close()
    die_with_parent(on=False)  # a job outlives the spare kernel
    if line:
        _Runner(json.loads(line), image.tell, payload, here).run()


# -- payload ----------------------------------------------------------------------------------


def _be_payload(image: Image, channel: socket.socket) -> int:
    die_with_parent()
    os.setsid()
    _close_all_but({*image.files, channel.fileno()})
    _untouched_signals()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    kernel = _ready_kernel(image)
    first, handles, _, _ = socket.recv_fds(channel, 1, 1)
    line = lines_of(channel.fileno())() if first else b""
    channel.close()
    if not line:  # no job came
        if kernel is not None:
            kernel.process.kill()
        return 0
    die_with_parent(on=False)
    words = json.loads(line)
    for number in (1, 2):
        os.dup2(handles[0], number)
    os.close(handles[0])
    become(**words)
    attempt = words["env"]["GPUQUEUE_ATTEMPT_DIR"]
    image.mark.set(attempt)
    job_dir = os.path.dirname(attempt)
    spec = read_json(os.path.join(job_dir, "spec.json"))
    words["module"] = "gpuqueue.run.sparekernel"
    code = CellRun(job_dir, attempt, spec, kernel, words).run()
    return leave(code)


def _ready_kernel(image: Image) -> CellKernel | None:
    """Fork a kernel and wait until it is ready; None if it fails, or takes far too long."""

    def fork(folder: str, orders: int, reports: int) -> _Child:
        pid = os.fork()
        if not pid:
            in_child(lambda: _be_kernel(image, folder, orders, reports))
        return _Child(pid)

    kernel = CellKernel(fork)
    late, end = os.pipe()
    timer = threading.Timer(_PATIENCE, os.write, (end, b"."))
    timer.daemon = True
    timer.start()
    try:
        if _told(kernel, late, "gpuqueue_ready"):
            kernel.order("warm", module="gpuqueue.run.sparekernel")
            if _told(kernel, late, "gpuqueue_reply"):
                return kernel
        kernel.process.kill()
        return None
    finally:
        timer.cancel()
        timer.join()
        os.close(late)
        os.close(end)
        kernel.remove()  # all that need its sockets are connected


def _told(kernel: CellKernel, late: int, kind: str) -> bool:
    """Wait for a report of that kind; False if it was not done, or something is at ``late``."""
    while reports := kernel.reports(late):
        for report in reports:
            if report["type"] == kind:
                return bool(report["content"].get("status", "ok") == "ok")
    return False


def try_kernel(image: Image) -> int:
    """Start a kernel as for a cell; the exit code for this process, 0 if it has started."""
    die_with_parent()
    kernel = _ready_kernel(image)
    if kernel is None:
        return 1
    kernel.process.kill()
    return 0


def _be_kernel(image: Image, folder: str, orders: int, reports: int) -> None:
    # before there is a job nothing else sees to its end
    die_with_parent()
    os.setsid()
    _close_all_but({*image.files, orders, reports})
    _untouched_signals()
    finish_in_fork(image.app, image.mark, folder, orders, reports)
    end_orderly(image.app.user_ns, image.modules)
    ctypes.CDLL(None).fflush(None)
    # nothing is left but to leave; by another's place, for a thread may still write to this one
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, reports, inheritable=False)
