"""gpuqueue inside one server process: its client, its lead and its watcher.

Everything slow (imports, disk, SQLite, NVML) happens in threads of this module's own, so that the
server's event loop never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from gpuqueue.errors import GpuqueueError, StateDirectoryError

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient
    from gpuqueue.control.lead import Lead
    from gpuqueue_jupyter.notices import Notices

__all__ = ["Host"]

T = TypeVar("T")

_THREADS = 8
_OPENING = 10.0
_AGAIN = 5.0
_PATIENCE = 10.0


class Host:
    """What the handlers of one server share.

    Parameters
    ----------
    emit
        Called in the event loop with each batch of notices.
    lead
        A lead that was started before the server was; otherwise one is started here.
    url
        Where people reach this server; without a token.
    """

    def __init__(
        self,
        log: logging.Logger | logging.LoggerAdapter[Any],
        emit: Callable[[list[dict[str, Any]]], None],
        lead: Lead | None = None,
        url: Callable[[], str] = str,
    ) -> None:
        self._log = log
        self._emit = emit
        self._url = url
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="gpuqueue-rest")
        self._opening: asyncio.Task[None] | None = None
        self._tried = 0.0
        self._closed = False
        self._set_home = False
        self.client: LocalClient | None = None
        self.lead = lead
        self.notices: Notices | None = None
        self.problem = ""

    # -- opening -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the state, stand by for leading and watch. Tries again where it failed before."""
        if self._closed or self.client is not None:
            return
        if self._opening is None or self._opening.done():
            if self.problem and time.monotonic() - self._tried < _AGAIN:
                return
            self._opening = asyncio.get_running_loop().create_task(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._tried = time.monotonic()
        try:
            await loop.run_in_executor(self._pool, self._open_here, loop)
        except (GpuqueueError, OSError) as error:
            words = str(error)
            if words != self.problem:
                self._log.error("gpuqueue: %s", words)
            self.problem = words
        else:
            self.problem = ""

    def _open_here(self, loop: asyncio.AbstractEventLoop) -> None:
        from gpuqueue.client import LocalClient
        from gpuqueue.control.lead import Lead
        from gpuqueue.paths import find_home
        from gpuqueue_jupyter.notices import Notices

        home = find_home()
        client = LocalClient(home)
        # a browser does not wait a minute for somebody else's lock
        client.store.patience = _PATIENCE
        if "GPUQUEUE_HOME" not in os.environ:
            os.environ["GPUQUEUE_HOME"] = str(home.root)  # for the kernels of this server
            self._set_home = True
        url = self._url()
        if self.lead is None:
            self.lead = Lead(home, kind="jupyter", url=url)
            self.lead.start()
        elif self.lead.url != url:
            self._correct_url(client, self.lead, url)
        self.notices = Notices(home, client.store, loop, self._emit)
        self.notices.start()
        self.client = client

    def _correct_url(self, client: LocalClient, lead: Lead, url: str) -> None:
        """A lead that began before the server knew its port told where it meant to listen."""
        from gpuqueue.control.leading import LEAD

        lead.url = url
        fact = client.store.fact(LEAD)
        if fact and fact["pid"] == os.getpid():
            client.store.set_fact(LEAD, {**fact, "url": url})

    # -- asking ------------------------------------------------------------------------------

    async def ask(self, question: Callable[[LocalClient], T]) -> T:
        """Run ``question`` with the client, off the event loop.

        Raises
        ------
        StateDirectoryError
            The state cannot be used; says why.
        """
        if self.client is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.open(), _OPENING)
        client = self.client
        if client is None:
            raise StateDirectoryError(self.problem or "the state is still being opened; try again")
        return await self.run(lambda: question(client))

    async def run(self, action: Callable[[], T]) -> T:
        """Run something off the event loop.

        Raises
        ------
        StateDirectoryError
            The server is stopping.
        """
        if self._closed:
            raise StateDirectoryError("this server is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._pool, action)

    # -- closing -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop watching and leading; jobs that live are left to a controller in the background."""
        if self._closed:
            return
        self._closed = True
        if self._opening is not None and not self._opening.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._opening), _OPENING)
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._close_here)
        except (GpuqueueError, OSError) as error:
            self._log.warning("gpuqueue: %s", error)
        self._pool.shutdown(wait=False)

    def _close_here(self) -> None:
        if self.notices is not None:
            self.notices.ask_to_stop()
        if self._set_home:
            os.environ.pop("GPUQUEUE_HOME", None)
        try:
            if self.lead is not None:
                self.lead.stop(leave_behind=True)
        finally:
            if self.notices is not None:
                self.notices.join(2.0)
            if self.client is not None:
                self.client.close()
