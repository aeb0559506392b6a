"""A tiny process, started ahead of time, that forks one runner per job.

Starting a Python interpreter takes tens of milliseconds and forking a small one about one, so the
controller keeps this process beside it. It reads one JSON line per start from its standard input,
imports nothing more once it runs, and ends when that input closes. The runners outlive it.

A controller names its successor first, and takes that back when it ends well. One that was killed
cannot; the launcher then starts the successor, so that the queue has a controller again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from gpuqueue.run.files import ExitFile
from gpuqueue.run.pool import Pool, serve
from gpuqueue.run.process import prepare
from gpuqueue.run.runner import Runner
from gpuqueue.run.spares import Limits, Spares
from gpuqueue.run.wake import ring

__all__ = ["LIMITS", "PLAIN", "SUCCESSOR", "main"]

LIMITS = "spares"
"""Key of the line that says how many spare kernels there may be: number, idle seconds, bytes."""

SUCCESSOR = "successor"
"""Key of the line that says what to start if the input closes without a word; empty: nothing."""

PLAIN = b"+"
"""Begins the line of an order that any runner can carry out; it is handed on unread."""


def _give_up(order: Mapping[str, Any], error: OSError) -> None:
    """End an attempt that no runner has claimed, for want of a process."""
    runner = Runner(order)
    with contextlib.suppress(OSError):
        if runner.claim():
            now = time.time()
            reason = f"no process could be started for it: {error}"
            record = {"returncode": None, "started": now, "ended": now, "reason": reason}
            ExitFile(runner.folder).end(record, patient=False)
            ring(str(order["wake"]), f"exit {order['job']}")
        runner.let_go()


def _in_fork(work: Callable[[], object]) -> NoReturn:
    """Do a runner's work and end; the fork must never return into the loop."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001
        os.write(2, f"gpuqueue runner {os.getpid()}: {error!r}\n".encode())
    finally:
        os._exit(0)


class _Launcher:
    """Has a runner look after each order: a spare kernel's, one that is free, or a fresh one."""

    def __init__(self) -> None:
        self.successor: list[str] = []
        self.spares = Spares(self.alone)
        self.pool = Pool(self.in_pool)

    def alone(self, order: Mapping[str, Any]) -> None:
        """Start a fresh runner for a cell's order."""
        try:
            if child := self._fork():
                self.spares.started(order, child)
                return
        except OSError as error:
            _give_up(order, error)
            return
        _in_fork(lambda: Runner(order).run())

    def in_pool(self, line: bytes, channel: socket.socket) -> bool:
        """Start a fresh runner that may take other orders after this one; whether it started."""
        try:
            if self._fork():
                return True
        except OSError as error:
            _give_up(json.loads(line), error)
            return False
        _in_fork(lambda: serve(json.loads(line), channel))

    def _fork(self) -> int:
        """Fork; in the child 0, and nothing of what only the launcher may hold."""
        child = os.fork()
        if not child:
            # a spare kernel ends with the launcher's end of its pipe, and with that alone
            self.spares.forget()
            self.pool.forget()
        return child

    def carry_out(self, line: bytes) -> None:
        """Do what one line says."""
        if line.startswith(PLAIN):
            self.pool.give(line[len(PLAIN) :])
            return
        order = json.loads(line)
        if SUCCESSOR in order:
            self.successor = order[SUCCESSOR]
        elif LIMITS in order:
            self.spares.limit(Limits(*order[LIMITS]))
        elif not self.spares.take(order):
            self.alone(order)  # a spare kernel is made when the process of its runner has ended

    def run(self) -> None:
        """Carry out lines of standard input until it closes."""
        buffer = b""
        while True:
            handles = self.spares.handles()
            patience = (self.spares.patience(), self.pool.patience)
            waits = [wait for wait in patience if wait is not None]
            if handles or waits:
                poller = select.poll()
                for handle in (0, *handles):
                    poller.register(handle, select.POLLIN)
                found = poller.poll(min(waits) * 1000 + 1 if waits else None)
                ready = [handle for handle, _ in found]
                self.spares.heed([handle for handle in ready if handle])
                if 0 not in ready:
                    self.pool.tidy()
                    continue
            chunk = os.read(0, 1 << 20)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                self.carry_out(line)


def _succeed(command: list[str]) -> None:
    """Start another controller in the background: the one that this process served was killed."""
    import subprocess

    subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, close_fds=True
    )


def main() -> None:
    """Fork a runner for each order on standard input until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended runners are not kept as zombies
    prepare()
    gc.freeze()  # a fork then copies fewer pages when it touches them
    gc.disable()
    # signals wait until the runner has its own handlers
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    launcher = _Launcher()
    launcher.run()
    if launcher.successor:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        _succeed(launcher.successor)
    sys.exit(0)


if __name__ == "__main__":
    main()
