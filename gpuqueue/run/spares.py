"""The launcher's end of spare kernels: whose there are, what they are given, when they go.

A spare kernel (``spare.py``) belongs to one notebook and is only a quicker start: an order that one
does not claim within a second is carried out by a fresh runner, and since an attempt can be claimed
only once, it does not matter which of the two comes first. One is started when a cell has ended,
not beside it. Linux only. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuqueue.model import ProcessId
from gpuqueue.run.environ import ROOM
from gpuqueue.run.files import read_json
from gpuqueue.run.inherit import unheld
from gpuqueue.run.memory import free_memory
from gpuqueue.run.process import alive

__all__ = ["Limits", "Spares"]

_HERE = os.path.dirname(os.path.abspath(__file__))
_PATIENCE = 1.0
_OF_THE_JOB = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES"})
"""Variables that may differ between a spare kernel and a cell that it serves."""

Order = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """How many spare kernels there may be, idle seconds and bytes of memory of each."""

    most: int = 0
    idle: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a notebook's spare kernel would be started from.

    ``fit`` is all that must be the same in each cell that it serves; ``imports`` is the content of
    the file of that name.
    """

    owner: ProcessId
    fit: tuple[Any, ...]
    imports: bytes
    file: str = field(compare=False)
    spec: Mapping[str, Any] = field(compare=False)
    env: Mapping[str, str] = field(compare=False)
    preload: str = field(compare=False)


def _wish(order: Order) -> _Wish | None:
    """What an order's spec asks for; None if it asks for nothing that can be given here."""
    spec = read_json(os.path.join(order["job_dir"], "spec.json"))
    if not spec or not isinstance(spec.get("spare"), list):
        return None
    bootstrap = os.path.join(_HERE, "bootstrap.py")
    if spec["argv"][1:] != ["-P", bootstrap, "cell"]:
        return None  # of another gpuqueue than this one
    env = {
        name: value
        for name, value in spec["env"].items()
        if name not in _OF_THE_JOB and not name.startswith("GPUQUEUE_")
    }
    path = ["" if entry == spec["cwd"] else entry for entry in spec["sys_path"]]
    # a cap on memory must be loaded as the process starts; it does nothing without a ledger
    preload = order.get("preload", "")
    fit = (spec["program"], env, path, spec.get("argv_of_kernel"), spec.get("umask"), preload)
    file = os.path.join(order["job_dir"], "imports")
    imports = b""
    with contextlib.suppress(OSError):
        imports = Path(file).read_bytes()
    return _Wish(ProcessId(*spec["spare"]), fit, imports, file, spec, order["env"], preload)


class _Spare:
    """One spare kernel, seen from the launcher."""

    def __init__(self, wish: _Wish, limit: int) -> None:
        self.wish = wish
        self.ready = False
        self.used = time.monotonic()
        self.pending: dict[int, tuple[float, Order]] = {}
        """Orders that it has been given and has not answered, by job, each with its time."""
        self.buffer = b""
        orders, self.orders = os.pipe()
        self.told, tell = os.pipe()
        try:
            self.owner = os.pidfd_open(wish.owner.pid)
            try:
                if not alive(wish.owner):
                    raise ProcessLookupError(wish.owner.pid)
                self._start(orders, tell)
            except OSError:
                os.close(self.owner)
                raise
        except OSError:
            os.close(self.orders)
            os.close(self.told)
            raise
        finally:
            os.close(orders)
            os.close(tell)
        os.set_blocking(self.orders, False)
        os.set_blocking(self.told, False)
        spec = wish.spec
        self.send(
            {
                "do": "begin", "cwd": spec["cwd"], "umask": spec.get("umask", 0o022),
                "sys_path": spec["sys_path"], "argv": spec.get("argv_of_kernel"),
                "imports": wish.file, "limit": limit,
            }
        )  # fmt: skip

    def _start(self, orders: int, tell: int) -> None:
        spec, given = self.wish.spec, self.wish.env
        attempt = given["GPUQUEUE_ATTEMPT_DIR"]
        env = unheld({**spec["env"], **given, "PWD": spec["cwd"]})
        if self.wish.preload:
            own = env.get("LD_PRELOAD", "")
            env["LD_PRELOAD"] = f"{self.wish.preload}:{own}".rstrip(":")
        env["GPUQUEUE_ATTEMPT_DIR"] = "-" * (len(os.fsencode(attempt)) + ROOM)
        # in this order: orders may be 3
        actions = [
            (os.POSIX_SPAWN_DUP2, orders, 0), (os.POSIX_SPAWN_DUP2, tell, 3),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]  # fmt: skip
        root = os.path.dirname(os.path.dirname(_HERE))
        code = f"import sys; sys.path.append({root!r}); from gpuqueue.run.spare import main; main()"
        pid = os.posix_spawn(
            spec["program"], [spec["program"], "-P", "-c", code], env,
            file_actions=actions, setsid=True, setsigmask=[],
            setsigdef=[signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
        )  # fmt: skip
        self.process = os.pidfd_open(pid)

    def send(self, words: Mapping[str, Any]) -> bool:
        """Give it a line; whether it has taken it."""
        data = json.dumps(words).encode() + b"\n"
        try:
            return os.write(self.orders, data) == len(data)
        except OSError:  # it is gone, or has not read for long
            return False

    def close(self) -> None:
        """Let go of it."""
        for handle in (self.orders, self.told, self.owner, self.process):
            os.close(handle)


class Spares:
    """All spare kernels of a launcher.

    Parameters
    ----------
    start
        Carries out an order that a spare kernel was given and has not claimed.
    """

    def __init__(self, start: Callable[[Order], object]) -> None:
        self._start = start
        self._limits = Limits()
        self._kept: dict[ProcessId, _Spare] = {}
        self._ends: dict[int, _Wish] = {}
        """Process descriptors of runners of cells, each with what to do when it has ended."""
        self._unfit: dict[ProcessId, _Wish] = {}
        self._last: tuple[str, _Wish | None] = ("", None)

    def limit(self, limits: Limits) -> None:
        """Keep to these from now on."""
        self._limits = limits
        while len(self._kept) > limits.most:
            self._drop_oldest()

    # -- orders ------------------------------------------------------------------------------

    def _wish_of(self, order: Order) -> _Wish | None:
        """What a cell's spec asks for; None if it asks for nothing that can be given here."""
        if not self._limits.most or not order.get("cell"):
            return None
        if self._last[0] != order["attempt_dir"]:
            self._last = order["attempt_dir"], _wish(order)
        return self._last[1]

    def take(self, order: Order) -> bool:
        """Give an order to the spare kernel of its notebook; whether there was one that fits."""
        wish = self._wish_of(order)
        if wish is None:
            return False
        spare = self._kept.get(wish.owner)
        if spare is None or not spare.ready or spare.wish.fit != wish.fit:
            return False
        if not spare.send({"do": "run", "order": order}):
            self._drop(spare)
            return False
        spare.used = time.monotonic()
        spare.pending[order["job"]] = (spare.used, order)
        return True

    def started(self, order: Order, pid: int) -> None:
        """Look after the end of a runner that carries out an order."""
        wish = self._wish_of(order)
        if wish is not None:
            with contextlib.suppress(OSError):
                self._ends[os.pidfd_open(pid)] = wish

    # -- looking after them ------------------------------------------------------------------

    def handles(self) -> list[int]:
        """Descriptors to wait at."""
        found = list(self._ends)
        for spare in self._kept.values():
            found += [spare.told, spare.owner]
        return found

    def patience(self) -> float | None:
        """Seconds until ``heed`` has something to do without any of ``handles``."""
        now = time.monotonic()
        due = [spare.used + self._limits.idle for spare in self._kept.values()]
        due += [at + _PATIENCE for spare in self._kept.values() for at, _ in spare.pending.values()]
        return max(0.0, min(due) - now) if due else None

    def heed(self, ready: list[int]) -> None:
        """Take in what the descriptors in ``ready`` have to tell, and what is due."""
        ended = [(handle, self._ends.pop(handle)) for handle in ready if handle in self._ends]
        now = time.monotonic()
        for spare in list(self._kept.values()):
            if spare.told in ready:
                self._listen(spare)
            if self._kept.get(spare.wish.owner) is not spare:
                continue
            late = [job for job, (at, _) in spare.pending.items() if now >= at + _PATIENCE]
            for job in late:
                self._start(spare.pending.pop(job)[1])
            if spare.owner in ready or now >= spare.used + self._limits.idle:
                self._drop(spare)
        # last, for it opens descriptors, and one that was closed above may have the same number
        for handle, wish in ended:
            os.close(handle)
            self._ended(wish)

    def _listen(self, spare: _Spare) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(spare.told, 1 << 16)
            if not data:
                if not spare.ready:
                    self._unfit[spare.wish.owner] = spare.wish
                self._drop(spare)
                return
        *lines, spare.buffer = (spare.buffer + data).split(b"\n")
        for line in lines:
            word, *rest = line.decode(errors="replace").split(" ")
            if word in ("ready", "busy"):
                spare.ready = word == "ready"
            elif word == "claimed":
                _, order = spare.pending.pop(int(rest[0]), (0.0, None))
                if order is not None:
                    self.started(order, int(rest[1]))
            elif word == "refused":
                _, order = spare.pending.pop(int(rest[0]), (0.0, None))
                if order is not None:
                    self._start(order)
            elif word == "unfit":
                print(
                    f"gpuqueue: the spare kernel of process {spare.wish.owner.pid} ends: "
                    f"{' '.join(rest)}", file=sys.stderr, flush=True,
                )  # fmt: skip

    def _ended(self, wish: _Wish) -> None:
        """A cell has ended: its notebook's next one is to find a spare kernel that fits."""
        spare = self._kept.get(wish.owner)
        if spare is not None and spare.wish.fit == wish.fit:
            spare.used = time.monotonic()
            new = wish.imports != spare.wish.imports
            if new:
                spare.wish = wish
                spare.ready = False
            if not spare.send({"do": "rest", "imports": wish.file if new else None}):
                self._drop(spare)
            return
        if spare is not None:
            self._drop(spare)
        if not self._limits.most or not alive(wish.owner):
            return
        if wish == self._unfit.get(wish.owner) or free_memory() < 2 * self._limits.memory:
            return
        self._unfit = {owner: one for owner, one in self._unfit.items() if alive(owner)}
        while len(self._kept) >= self._limits.most:
            self._drop_oldest()
        with contextlib.suppress(OSError):
            self._kept[wish.owner] = _Spare(wish, self._limits.memory)

    def _drop_oldest(self) -> None:
        self._drop(min(self._kept.values(), key=lambda spare: spare.used))

    def _drop(self, spare: _Spare) -> None:
        """End a spare kernel; what it was given and has not claimed starts afresh."""
        if self._kept.get(spare.wish.owner) is spare:
            del self._kept[spare.wish.owner]
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(spare.process, signal.SIGKILL)
        spare.close()
        for _, order in spare.pending.values():
            self._start(order)
        spare.pending.clear()

    def forget(self) -> None:
        """Let go of all descriptors, in a process forked from this one."""
        for spare in self._kept.values():
            spare.close()
        for handle in self._ends:
            os.close(handle)
        self._kept.clear()
        self._ends.clear()
