"""The controller's end of the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any, BinaryIO

from gpuqueue.about import ROOT
from gpuqueue.paths import Home
from gpuqueue.run.kernelshare import without_share
from gpuqueue.run.launcher import LIMITS, PLAIN, SUCCESSOR
from gpuqueue.settings import Settings

__all__ = ["Launcher", "python_command"]


def python_command(module: str, *flags: str) -> list[str]:
    """A command that runs a module of this very gpuqueue, however it came to be importable."""
    code = f"import sys; sys.path.insert(0, {ROOT!r}); from {module} import main; main()"
    return [sys.executable, *(flags or ("-P",)), "-c", code]


# on Linux it needs the standard library only, and what it does not import no fork copies
_BARE = ("-I", "-S") if sys.platform == "linux" else ()


class Launcher:
    """A pre-started process that forks one runner per order; started again if it dies.

    With ``succeed``, it also starts a controller in the background if this one is killed.
    """

    def __init__(self, home: Home, *, succeed: bool = True) -> None:
        self._home = home
        self._succeed = succeed
        self._process: subprocess.Popen[bytes] | None = None
        self._limits: list[float] = [0, 0, 0]

    def start(self) -> None:
        """Start the process ahead of the first order."""
        log: BinaryIO | int
        try:
            handle = os.open(self._home.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            log = os.fdopen(handle, "ab")
        except OSError:
            log = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                python_command("gpuqueue.run.launcher", *_BARE),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**without_share(os.environ), "GPUQUEUE_HOME": str(self._home.root)},
                cwd="/" if os.name == "posix" else None,
                start_new_session=True,
            )
        finally:
            if not isinstance(log, int):
                log.close()
        if self._succeed:
            # after a moment, so that a server that stands by comes first
            self._send({SUCCESSOR: [*python_command("gpuqueue.control.headless"), "--stand-in"]})

        self._send({LIMITS: self._limits})

    def keep_spares(self, settings: Settings) -> None:
        """Keep as many spare kernels from now on as these settings allow."""
        limits = [settings.spare_kernels, settings.spare_idle, settings.spare_memory_bytes]
        if limits == self._limits:
            return
        self._limits = limits
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):  # the next order finds out
                self._send({LIMITS: limits})

    def _send(self, line: dict[str, Any], mark: bytes = b"") -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(mark + json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()

    def order(self, order: dict[str, Any]) -> None:
        """Have a runner forked. A repeated order is harmless: an attempt is claimed once.

        Raises
        ------
        OSError
            No launcher could be started.
        """
        for _ in range(2):
            try:
                if self._process is None or self._process.poll() is not None:
                    self.start()
                self._send(order, b"" if order.get("cell") else PLAIN)
            except BrokenPipeError:
                self.close()
                continue
            return
        raise OSError("the launcher ended twice in a row")

    def close(self) -> None:
        """Let the launcher end; its runners go on."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(json.dumps({SUCCESSOR: []}).encode() + b"\n")
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
