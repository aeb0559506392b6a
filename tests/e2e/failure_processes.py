"""The processes of one home, by kind, for a killer that touches no others."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuqueue.model import ProcessId
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, identify, send_signal

__all__ = ["Host", "Killed", "Killer", "ours", "waiting_bytes"]

_PATIENCE = 0.2
_INSTEAD = ["runner", "payload", "client", "launcher", "spare", "server"]
"""Whom a kill meets where there is none of its kind; the lead not, or jobs would seldom begin."""


@dataclass(frozen=True, slots=True)
class Killed:
    """One kill: when (seconds since the epoch), what, and which process."""

    at: float
    kind: str
    process: ProcessId


def _words(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    stat = _words(pid, "stat")
    return int(stat[stat.rindex(b")") + 2 :].split()[1]) if stat else 0


def _kind(pid: int) -> str:
    command = _words(pid, "cmdline")
    if b"gpuqueue.control.headless" in command:
        return "lead"
    if b"gpuqueue_jupyter" in command:
        return "server"
    if b"gpuqueue.run.spare " in command:
        return "spare"
    if b"gpuqueue.run.launcher" in command:
        above = _words(_parent(pid), "cmdline")
        led = b"gpuqueue.control.headless" in above or b"gpuqueue_jupyter" in above
        return "launcher" if led else "runner"
    return ""


def ours(home: Home) -> dict[str, list[ProcessId]]:
    """Processes that were started for this home and live, by kind.

    They are known by the state directory, which is this test's own, in their environment. A job's
    program is a ``payload``, and so is what it has started.
    """
    mark = os.fsencode(f"GPUQUEUE_HOME={home.root}")
    job = os.fsencode(f"GPUQUEUE_ATTEMPT_DIR={home.root}/")
    me = os.getpid()
    found: dict[str, list[ProcessId]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        environment = _words(int(name), "environ").split(b"\0")
        inside = any(entry.startswith(job) for entry in environment)
        if not inside and mark not in environment:
            continue
        process = identify(int(name))
        kind = "payload" if inside and b"run.spare " not in _words(int(name), "cmdline") else ""
        kind = kind or _kind(int(name))
        if process is not None and alive(process) and kind:
            found.setdefault(kind, []).append(process)
    return found


def waiting_bytes(process: ProcessId) -> int:
    """How much a process has on its standard input and has not read; 0 of one that has gone."""
    try:
        handle = os.open(f"/proc/{process.pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        found = array.array("i", [0])
        fcntl.ioctl(handle, termios.FIONREAD, found)
        return found[0]
    finally:
        os.close(handle)


class Host:
    """A program of the test that reads orders as JSON lines and answers in the same way."""

    def __init__(self, code: str, on_answer: Callable[[dict[str, Any]], None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._on_answer = on_answer
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on_answer(json.loads(line))

    def order(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it, and wait for its clients, which hold the other end of its answers."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
        self._thread.join(30)


class Killer:
    """Kills one process of a kind, by pid and start time, and keeps a list."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.clients: list[ProcessId] = []
        self.kills: list[Killed] = []

    def kill(self, kind: str, which: float) -> bool:
        """Kill a process of ``kind``; one of another kind where none comes up in a while."""
        began = time.monotonic()
        kinds = [kind]
        while not self._kill_one_of(kinds, which):
            waited = time.monotonic() - began
            if waited > _PATIENCE:
                kinds = [kind, *_INSTEAD]
            if waited > 2 * _PATIENCE:
                return False
            time.sleep(0.005 if kind == "client" else 0.02)
        return True

    def _kill_one_of(self, kinds: list[str], which: float) -> bool:
        found = {"client": [process for process in self.clients if alive(process)]}
        if kinds != ["client"]:
            found |= ours(self._home)
        for kind in kinds:
            victims = sorted(found.get(kind, ()), key=lambda process: process.start)
            if victims and self.kill_this(victims[int(which * len(victims))], kind):
                return True
        return False

    def kill_this(self, victim: ProcessId, kind: str) -> bool:
        """Kill a process; whether it was there."""
        if sent := send_signal(victim, signal.SIGKILL):
            self.kills.append(Killed(time.time(), kind, victim))
        return sent

    def above(self, process: ProcessId) -> tuple[str, ProcessId] | None:
        """The kind of the process that has started this one, and which it is."""
        parent = identify(_parent(process.pid))
        return None if parent is None else (_kind(parent.pid), parent)
