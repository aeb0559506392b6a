"""A kernel that has started without a share, and the share that it gets at its first use of a GPU.

The server gets it and looks after it, as after any kernel's, so a restart keeps it and an end gives
it back. The questions come in a thread of their own (``run/door.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import NoShare
from gpuqueue.run.door import LATE, Asked, Changes, Door, doors_work
from gpuqueue.run.kernelshare import with_share

if TYPE_CHECKING:
    from gpuqueue.client.shares import Lease
    from gpuqueue.model import ProcessId

__all__ = ["LateShare"]

_PRELOAD = "LD_PRELOAD"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLACK = 5.0
"""Seconds beyond the wait for a controller that who asks is patient."""
_ENDING = "this kernel is ending"

Get = Callable[[Any, threading.Event], "Lease"]


class LateShare:
    """What one start of a kernel may get later.

    Parameters
    ----------
    get
        Gets the share, for a wish or for None; raises ``NoShare``.
    lives
        Whether a share that was got is still held.
    library
        What catches CUDA in the kernel and what it starts; empty where only Python's hook does.
    gpus
        How many GPUs the kernel is likely to get.
    wait
        Seconds that the share takes at most.
    """

    def __init__(
        self, get: Get, lives: Callable[[Lease], bool], *, library: str, gpus: int, wait: float
    ) -> None:
        self._get = get
        self._lives = lives
        self._library = library
        self._gpus = gpus
        self._env: dict[str, str] = {}
        self._kernel: ProcessId | None = None
        self._lease: Lease | None = None
        self._given_up = threading.Event()
        self._fields = threading.Lock()
        self._door = Door(self._answer, wait + _SLACK) if doors_work() else None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What the kernel starts with, over its own environment.

        Where only Python's hook notices, no GPU is hidden: what it does not know, and programs
        that the kernel starts, would find none.
        """
        told: dict[str, Any] = {"late": True}
        changes: dict[str, str] = {}
        if self._door is not None:
            told["ask"] = self._door.name
            if self._library:
                changes = self._caught(env, self._door.name)
        self._env = with_share(env, changes, told)
        return self._env

    def _caught(self, env: Mapping[str, str], door: str) -> dict[str, str]:
        """It sees as many GPUs as it will get, as far as libraries count them without CUDA.

        Which these are is settled as CUDA begins. What its user has chosen stays until then.
        """
        others = env.get(_PRELOAD, "").replace(":", " ").split()
        visible = env.get(_VISIBLE) or ",".join(map(str, range(self._gpus)))
        return {_PRELOAD: ":".join([self._library, *others]), LATE: door, _VISIBLE: visible}

    def named(self, kernel: ProcessId) -> None:
        """Say which process the kernel is."""
        with self._fields:
            self._kernel = kernel
            if self._lease is not None:
                self._lease.name(kernel)

    @property
    def lease(self) -> Lease | None:
        """The share, once there is one."""
        return self._lease

    def close(self) -> Lease | None:
        """Give no share any more, and hand over the one that there is. It waits for nobody."""
        self._given_up.set()
        if self._door is not None:
            self._door.close()
        with self._fields:
            lease, self._lease = self._lease, None
        return lease

    def _answer(self, asked: Asked) -> Changes:
        """What who asks takes on; the door has one question at a time."""
        lease = self._lease
        if lease is not None and not self._lives(lease):
            lease.release()
            lease = None
        if lease is None:
            if self._given_up.is_set():
                raise NoShare(_ENDING)
            lease = self._get(asked.wish, self._given_up)
            lease.late = True
            with self._fields:
                if self._given_up.is_set():
                    lease.release()
                    raise NoShare(_ENDING)
                self._lease = lease
                if self._kernel is not None:
                    lease.name(self._kernel)
        elif asked.wish is not None:
            raise NoShare("This notebook has a share already; %gpu share changes it.")
        assert self._door is not None
        wanted = lease.environment(self._env, ask=self._door.name)
        gone = dict.fromkeys(name for name in self._env if name not in wanted)
        new = {name: value for name, value in wanted.items() if self._env.get(name) != value}
        return {**gone, **new}
