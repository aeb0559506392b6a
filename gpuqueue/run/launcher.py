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
import signal
import sys
import time

from gpuqueue.run.files import ExitFile
from gpuqueue.run.process import prepare
from gpuqueue.run.runner import Runner
from gpuqueue.run.wake import ring

__all__ = ["SUCCESSOR", "main"]

SUCCESSOR = "successor"
"""Key of the line that says what to start if the input closes without a word; empty: nothing."""


def _give_up(order: dict[str, object], error: OSError) -> None:
    """End an attempt that no runner has claimed, for want of a process."""
    runner = Runner(order)
    with contextlib.suppress(OSError):
        if runner.claim():
            now = time.time()
            reason = f"no process could be started for it: {error}"
            record = {"returncode": None, "started": now, "ended": now, "reason": reason}
            ExitFile(runner.folder).end(record, patient=False)
            ring(str(order["wake"]), f"exit {order['job']}")


def _fork(order: dict[str, object]) -> None:
    try:
        child = os.fork()
    except OSError as error:
        _give_up(order, error)
        return
    if child:
        return
    try:
        Runner(order).run()
    except BaseException as error:  # noqa: BLE001 - the fork must never return into the loop
        os.write(2, f"gpuqueue runner of job {order.get('job')}: {error!r}\n".encode())
    finally:
        os._exit(0)


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
    buffer = b""
    successor: list[str] = []
    while chunk := os.read(0, 1 << 20):
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if SUCCESSOR in order:
                successor = order[SUCCESSOR]
            else:
                _fork(order)
    if successor:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        _succeed(successor)
    sys.exit(0)


if __name__ == "__main__":
    main()
