"""Talking with the MPS daemon of one GPU: one at a time, each command with a limit.

The control program reads one command from its standard input and prints the daemon's answer. The
daemon serves one connection at a time and turns away the next, so talks are serialised by a lock on
a file. A command may never be answered, and an answer may be empty where it should not be: neither
is taken for success (NVIDIA, Multi-Process Service, appendix "Tools and Interface Reference").
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuqueue.errors import MpsError, MpsSilent
from gpuqueue.run.limited import run_limited
from gpuqueue.share.mps.place import Place

__all__ = ["PERCENTAGE", "PIPE", "PROGRAM", "Control", "Limits", "Session", "bare"]

PROGRAM = "nvidia-cuda-mps-control"
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

_HEALTH = "get_default_active_thread_percentage"
_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait, in seconds.

    For an answer, for a daemon to start, for one to end, for a client to be let go of, and for the
    lock.
    """

    answer: float = 5.0
    start: float = 10.0
    end: float = 5.0
    client: float = 10.0
    lock: float = 15.0


def bare(base: Mapping[str, str]) -> dict[str, str]:
    """An environment without what belongs to a job or to another daemon."""
    return {
        name: value
        for name, value in base.items()
        if not name.startswith(("CUDA_", "GPUQUEUE_", "LD_PRELOAD"))
    }


@dataclass(frozen=True, slots=True)
class Control:
    """The way to one GPU's daemon.

    Attributes
    ----------
    place
        Where its files are.
    program
        The control program: a name on the ``PATH`` of ``base``, or a path.
    base
        The environment to start it from; this process's unless told otherwise.
    """

    place: Place
    program: str = PROGRAM
    base: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    limits: Limits = field(default_factory=Limits)

    @property
    def environment(self) -> dict[str, str]:
        """What the control program and the daemon are started with."""
        return bare(self.base) | {
            PIPE: str(self.place.pipe),
            LOGS: str(self.place.log),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": self.place.gpu,
        }

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Have the daemon to oneself for a while.

        Raises
        ------
        MpsError
            Somebody else has it for too long.
        """
        import fcntl

        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        try:
            handle = os.open(self.place.lock, flags, 0o600)
        except OSError as error:
            raise MpsError(f"{self.place.lock} cannot be opened ({error}).") from error
        try:
            deadline = time.monotonic() + self.limits.lock
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise MpsSilent(
                            f"Another process has talked with the MPS daemon of {self.place.gpu} "
                            f"for more than {self.limits.lock:g} s."
                        ) from None
                    time.sleep(_PAUSE)
            yield Session(self)
        finally:
            os.close(handle)


class Session:
    """A talk with a daemon, by whoever holds the lock."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.place = control.place
        self.limits = control.limits
        self._default: float | None = None
        self._servers: tuple[int, ...] | None = None

    def run(self, words: str = "", *options: str, limit: float = 0.0) -> str:
        """Start the control program; what it prints.

        Its output goes through a file, for a daemon that it leaves behind would keep a pipe open.

        Raises
        ------
        MpsSilent
            It has not ended in time; it is killed, and left behind where that does nothing.
        MpsError
            It cannot be started, or there is nothing that it can talk with.
        """
        limit = limit or self.limits.answer
        said = f"`{words or ' '.join(options)}`"
        answer = self.place.root / "answer"
        try:
            with open(os.open(answer, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600), "rb") as file:
                done = run_limited(
                    [self.control.program, *options],
                    limit,
                    said=f"{words}\n".encode() if words else None,
                    env=self.control.environment,
                    stdin=subprocess.PIPE if words else subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    start_new_session=True,
                )
                file.seek(0)
                text = file.read(1 << 20).decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            raise MpsSilent(
                f"The MPS daemon of {self.place.gpu} has not answered {said} in {limit:g} s."
            ) from None
        except OSError as error:
            raise MpsError(f"{self.control.program} cannot be started ({error}).") from error
        if done.returncode != 0 or "MPS control daemon process" in text:
            told = text[:300] or f"exit code {done.returncode}"
            raise MpsError(f"MPS on {self.place.gpu} refused {said}: {told}")
        return text

    def ask(self, command: str, *, limit: float = 0.0) -> str:
        """The answer to one command; it may be empty. See `run` for what is raised."""
        return self.run(command, limit=limit)

    def number(self, command: str) -> float:
        """The answer to a command that is answered with a number.

        Raises
        ------
        MpsSilent
            It is none.
        """
        text = self.ask(command)
        with contextlib.suppress(ValueError, IndexError):
            value = float(text.splitlines()[-1])
            if math.isfinite(value):
                return value
        raise MpsSilent(
            f"The MPS daemon of {self.place.gpu} answered `{command}` with {text[:100]!r}, where a "
            "number was due."
        )

    def check(self) -> None:
        """See that the daemon answers; raises as `number` does."""
        self._default = self.number(_HEALTH)

    def pids(self, command: str) -> tuple[int, ...]:
        """The answer to a command that is answered with pids, one a line, or with nothing.

        Nothing is believed only of a daemon that answers another question right after.
        """
        text = self.ask(command)
        if not text:
            self.check()
            return ()
        try:
            return tuple(int(line) for line in text.splitlines())
        except ValueError:
            raise MpsSilent(
                f"The MPS daemon of {self.place.gpu} answered `{command}` with {text[:100]!r}, "
                "where pids were due."
            ) from None

    def servers(self) -> tuple[int, ...]:
        """Pids of the daemon's servers: none before its first client, then one."""
        self._servers = self.pids("get_server_list")
        return self._servers

    def clients(self, server: int) -> tuple[int, ...]:
        """Pids of the processes that a server has."""
        return self.pids(f"get_client_list {server}")

    def all_clients(self) -> tuple[int, ...]:
        """Pids of the processes that use the GPU through this daemon."""
        return tuple(pid for server in self.servers() for pid in self.clients(server))

    def faulty(self, server: int) -> bool:
        """Whether a server is in fault: it takes no new clients until those it has have ended."""
        return "FAULT" in self.ask(f"get_server_status {server}").upper()

    def hold_to(self, percent: int) -> None:
        """Let no process that starts from now have more of the GPU than this; read back.

        Raises
        ------
        MpsError
            The daemon says something else afterwards.
        """
        said = f"The MPS daemon of {self.place.gpu} was told {percent} per cent and says"
        if self._default is None:
            self.check()
        if self._default != percent:
            self._servers = None  # one that starts meanwhile has the old default
            self.ask(f"set_default_active_thread_percentage {percent}")  # of the next server
            self.check()
            if self._default != percent:
                raise MpsError(f"{said} {self._default:g}.")
        for server in self.servers() if self._servers is None else self._servers:
            if self.number(f"get_active_thread_percentage {server}") == percent:
                continue
            self.ask(f"set_active_thread_percentage {server} {percent}")
            if (told := self.number(f"get_active_thread_percentage {server}")) != percent:
                raise MpsError(f"{said} {told:g} of its server {server}.")


def readable(path: Path) -> str:
    """The end of a daemon's log, for a sentence; empty where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return text.splitlines()[-1][-200:] if text else ""
