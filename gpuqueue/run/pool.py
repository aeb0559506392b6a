"""Runners that go on to the next job, and the launcher's end of them. Standard library only.

A forked Python process takes some milliseconds of processor time to come to itself, most of them
for copying memory that it touches. So a runner whose job was over before anybody was told of it
stays for a moment and takes the next one. One that has been named as its job's process ends with
that job: what is meant for a process never reaches another job.

A launcher and a runner share a socket. Orders go one way, a line each; the runner answers with a
byte when it is free again. The launcher looks for these bytes when it has an order to give, so a
job that ends does not wake it.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuqueue.run.runner import Post, Runner

__all__ = ["Pool", "serve"]

Order = Mapping[str, Any]

_KEPT = 0.2
"""Seconds for which a runner is kept in mind, with a job or without: the next order comes sooner
in a burst, and a job that lasts longer keeps its runner for itself."""
_MOST = 500
"""Jobs of one runner at most, since it collects no garbage."""
_FREE, _OVER = b".", b"-"


# -- the runner's end -------------------------------------------------------------------------


def serve(order: Order, channel: socket.socket) -> None:
    """Look after one attempt, and then others as long as they come and end quickly."""
    post = Post()
    buffer = b""

    def tell(what: bytes = _FREE) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, or has let go of this end
            channel.send(what)

    for _ in range(_MOST):
        if not Runner(order).run(post, tell):
            tell(_OVER)
            return
        while b"\n" not in buffer:
            try:
                chunk = channel.recv(1 << 20)
            except ConnectionResetError:  # the launcher is gone, and had not read all
                return
            if not chunk:
                return
            buffer += chunk
        line, _, buffer = buffer.partition(b"\n")
        order = json.loads(line)


# -- the launcher's end -----------------------------------------------------------------------


@dataclass(slots=True)
class _Kept:
    """A runner, seen from the launcher.

    Attributes
    ----------
    since
        When it was given its order, or has been found free.
    order
        What it was given after its first job and has not answered.
    """

    channel: socket.socket
    since: float
    order: bytes = b""


class Pool:
    """The runners of one launcher that may take another job.

    Parameters
    ----------
    start
        Forks a runner for an order, a line of JSON, with its end of a socket; whether it could.
    """

    def __init__(self, start: Callable[[bytes, socket.socket], bool]) -> None:
        self._start = start
        self._kept: dict[int, _Kept] = {}
        self._free: list[int] = []
        self._poller = select.poll()

    def give(self, order: bytes) -> None:
        """Have an order carried out, by a runner that is free or by a fresh one."""
        self._listen()
        while self._free:
            handle = self._free.pop()
            runner = self._kept[handle]
            try:
                sent = runner.channel.send(order + b"\n")
            except OSError:  # it is gone, or has stopped
                sent = 0
            if sent == len(order) + 1:
                runner.order, runner.since = order, time.monotonic()
                return
            self._drop(handle)
        self._fresh(order)

    def _fresh(self, order: bytes) -> None:
        here, there = socket.socketpair()
        with there:
            here.settimeout(0)
            # before the fork, so that the runner forgets this end with those of the others
            self._kept[here.fileno()] = _Kept(here, time.monotonic())
            self._poller.register(here, select.POLLIN)
            if not self._start(order, there):
                self._drop(here.fileno())

    def _listen(self) -> None:
        """Find out who is free and who is gone."""
        for handle, _ in self._poller.poll(0) if self._kept else ():
            runner = self._kept[handle]
            said = b""
            with contextlib.suppress(OSError):
                said = runner.channel.recv(16)
            if said == _FREE:
                runner.order, runner.since = b"", time.monotonic()
                self._free.append(handle)
                continue
            self._drop(handle)
            if not said and runner.order:
                # killed, perhaps before it had read its order: an attempt can be claimed only
                # once, so a second order does no harm
                self._fresh(runner.order)

    def tidy(self) -> None:
        """Let runners go that have been free for long, or have a job that takes long."""
        self._listen()
        late = time.monotonic() - _KEPT
        for handle, runner in list(self._kept.items()):
            if runner.since < late:
                self._drop(handle)

    @property
    def patience(self) -> float | None:
        """Seconds after which to tidy; None if there is nothing to."""
        return _KEPT if self._kept else None

    def _drop(self, handle: int) -> None:
        self._poller.unregister(handle)
        self._kept.pop(handle).channel.close()
        if handle in self._free:
            self._free.remove(handle)

    def forget(self) -> None:
        """Let go of all descriptors, in a process forked from this one."""
        for runner in self._kept.values():
            runner.channel.close()
        self._kept.clear()
        self._free.clear()
