"""The kernel provisioner: it starts a notebook's kernel with its share of a GPU.

It is a ``LocalProvisioner`` in all else, and leaves alone what asks for no share. It relies on the
order of calls as observed with jupyter_client 8.10: ``cleanup(restart=...)`` is the one call that
tells a restart from an end; a kernel whose automatic restarts are used up gets none, and neither
does one whose start fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Any as AnyValue

from gpuqueue.errors import InvalidRequest

if TYPE_CHECKING:
    from gpuqueue.client.shares import Lease
    from gpuqueue_jupyter.lateshare import LateShare

__all__ = ["GpuqueueProvisioner"]


class GpuqueueProvisioner(LocalProvisioner):
    """Starts kernels in their share of a GPU, those that want one."""

    share = AnyValue(None, allow_none=True, help="Part of each GPU's compute, such as 0.25.")
    mem = AnyValue(None, allow_none=True, help="Memory of each GPU, such as 20G.")
    gpus = AnyValue(None, allow_none=True, help="Number of GPUs.")

    _lease: Lease | None = None
    _late: LateShare | None = None
    _hook = False
    _told_of_death = False
    _begun = False

    def __init__(self, **words: Any) -> None:
        # what is unknown traitlets takes with a warning, and will refuse without naming it
        known = {name: value for name, value in words.items() if self.has_trait(name)}
        self._unknown = sorted(set(words) - set(known))
        super().__init__(**known)

    # -- starting ----------------------------------------------------------------------------

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Get the share, or keep the one that there is, and put it into the environment.

        Raises
        ------
        NoShare
            There is none; the message is what JupyterLab shows.
        """
        try:
            env = dict(kwargs.get("env") or os.environ)
            ready = await self._prepare(env)
            kwargs = await super().pre_launch(**kwargs)
            if ready is not None:
                kwargs["env"] = ready(kwargs["env"])
                if self._hook:
                    kwargs["cmd"] = [*kwargs["cmd"], _LOAD]
        except BaseException:
            self._fail()
            raise
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start the kernel's process, and say which it is."""
        try:
            info = await super().launch_kernel(cmd, **kwargs)
            self._name()
        except BaseException:
            with contextlib.suppress(Exception):
                await super().kill()
            self._fail()
            raise
        return info

    async def post_launch(self, **kwargs: Any) -> None:
        """The kernel has started."""
        try:
            await super().post_launch(**kwargs)
        except BaseException:
            self._fail()
            raise
        self._begun = True

    async def _prepare(self, env: Mapping[str, str]) -> Any:
        """Get what this start needs; a function that puts it over an environment, or None."""
        from gpuqueue_jupyter.admission import Admission

        self._take_late()
        given_up = threading.Event()
        admission = Admission(self.kernel_spec, str(self.kernel_id), self._config(), env)
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(None, admission.prepare, self._lease, given_up)
        try:
            found = await asyncio.shield(working)
        except asyncio.CancelledError:
            given_up.set()
            working.add_done_callback(_let_go)
            raise
        self._lease, self._late, self._hook = found.lease, found.late, found.hook
        return found.environment

    def _take_late(self) -> None:
        """Let the kernel that was get no share any more; what it has got is this one's."""
        late, self._late = self._late, None
        if late is not None:
            self._lease = late.close() or self._lease

    @property
    def _held(self) -> Lease | None:
        """The share that the kernel has now."""
        return self._lease or (self._late.lease if self._late is not None else None)

    def _config(self) -> dict[str, Any]:
        """What the kernelspec's provisioner stanza asks for; a typing error is not ignored."""
        for name in self._unknown:
            where = f"kernel_provisioner.config.{name}"
            raise InvalidRequest(where, f"there is no such entry, but {', '.join(_CONFIG)}")
        return {name: getattr(self, name) for name in _CONFIG if getattr(self, name) is not None}

    def _name(self) -> None:
        from gpuqueue.run.process import identify

        kernel = None if self.process is None else identify(self.process.pid)
        if kernel is None:
            return
        if self._lease is not None:
            self._lease.name(kernel)
        if self._late is not None:
            self._late.named(kernel)

    def _fail(self) -> None:
        """A start has failed, and nobody will call ``cleanup`` for it."""
        self._release(died=True)
        kernels = getattr(self.parent, "parent", None)
        pending = getattr(kernels, "_pending_kernels", None)
        if isinstance(pending, dict):
            # else the server that has it in its list cannot be stopped while another kernel lives
            pending.pop(self.kernel_id, None)
        if self._begun:
            self._tell_of_death()

    def _tell_of_death(self) -> None:
        """A kernel that could not start again is dead; nobody else would notice.

        What restarts kernels has stopped looking after this one for as long as it restarts it.
        """
        restarter: Any = getattr(self.parent, "_restarter", None)
        with contextlib.suppress(AttributeError):
            restarter.stop()
            restarter._fire_callbacks("dead")  # noqa: SLF001 - what it does itself in the end

    # -- ending ------------------------------------------------------------------------------

    async def kill(self, restart: bool = False) -> None:
        """Kill the kernel, and have MPS let go of it before, where it is under MPS."""
        held = self._held
        if held is not None and self.process is not None and self.process.poll() is None:
            from gpuqueue.run.farewell import Farewell
            from gpuqueue.run.process import session_of

            farewell = Farewell(str(held.folder))
            # a kernel leads a session of its own, whose processes are those that the kill is for
            pids = sorted({self.process.pid, *session_of(self.process.pid)})
            while not farewell.said(pids):
                await asyncio.sleep(_PAUSE)
        await super().kill(restart=restart)

    async def cleanup(self, restart: bool = False) -> None:
        """Give the share back, unless the kernel is to start again."""
        await super().cleanup(restart=restart)
        self._take_late()
        if not restart:
            self._release()
        elif self._lease is not None and not self._told_of_death:
            self._told_of_death = True
            manager: Any = self.parent
            # when all automatic restarts are used up, this is the only word of it
            with contextlib.suppress(AttributeError, KeyError):
                manager.add_restart_callback(lambda: self._release(died=True), "dead")

    def _release(self, *, died: bool = False) -> None:
        self._take_late()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release(died=died)


_PAUSE = 0.02
_CONFIG = ("share", "mem", "gpus")
_LOAD = "--IPKernelApp.extra_extensions=gpuqueue"


def _let_go(working: asyncio.Future[Any]) -> None:
    """Nobody waits for a start any more: what it may have got is given back."""
    if working.cancelled() or working.exception() is not None:
        return
    found = working.result()
    late = found.late.close() if found.late is not None else None
    for lease in (found.lease, late):
        if lease is not None:
            lease.release()
