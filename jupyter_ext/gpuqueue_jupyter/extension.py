"""The server extension: it gives the host, the addresses and the notices their place."""

from __future__ import annotations

import re
import signal
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpuqueue_widgets.files import panel_folder
from jupyter_server.extension.application import ExtensionApp

from gpuqueue_jupyter.handlers import API, ROUTES
from gpuqueue_jupyter.host import Host
from gpuqueue_jupyter.page import FILES, PAGE, PageHandler, StaticHandler
from gpuqueue_jupyter.provisioning import (
    forget_failed_starts,
    offer_provisioner,
    withdraw_provisioner,
)

if TYPE_CHECKING:
    from gpuqueue.control.lead import Lead

__all__ = ["EVENT_SCHEMA", "GpuqueueExtension"]

EVENT_SCHEMA: dict[str, Any] = {
    "$id": "https://schemas.gpuqueue.org/queue/v1",
    "version": "1",
    "title": "A change in the GPU queue",
    "description": "Says that something changed, not what it is now; ask for the state then.",
    "personal-data": False,
    "type": "object",
    "properties": {
        "seq": {"type": "integer", "description": "Number of the (last) event; it only grows."},
        "job": {"type": ["integer", "null"], "description": "The job; null for several."},
        "kind": {"type": "string", "description": "What happened; many for several changes."},
        "state": {"type": ["string", "null"], "description": "The job's state, where it changed."},
        "count": {"type": "integer", "description": "How many changes this notice stands for."},
    },
    "required": ["seq", "job", "kind", "state", "count"],
    "additionalProperties": False,
}


class GpuqueueExtension(ExtensionApp):
    """gpuqueue as a part of a Jupyter server."""

    name = "gpuqueue"
    load_other_extensions = True
    early_lead: Lead | None = None
    """A lead that runs already, for a server that is nothing but gpuqueue."""
    host: Host | None = None
    _old_hangup: Any = None
    _provisioners: Any = None

    @property
    def _server(self) -> Any:
        """The server that this is a part of; linked before anything here is called."""
        assert self.serverapp is not None
        return self.serverapp

    def initialize_settings(self) -> None:
        """Prepare the host and make the notices known."""
        self.host = Host(
            self._server.log, self._emit, self.early_lead, lambda: str(self._server.connection_url)
        )
        logger = self._server.event_logger
        if EVENT_SCHEMA["$id"] not in logger.schemas:
            logger.register_event_schema(EVENT_SCHEMA)
        self._provisioners = offer_provisioner(self._server)

    def initialize_handlers(self) -> None:
        """Put the addresses under the server's base URL."""
        # Requests come with an escaped path, and the base URL may be written either way; it is
        # text, not a pattern.
        base = re.escape(quote(self._server.base_url, safe="/%:@!$&'()*+,;=~"))
        rules: list[tuple[str, Any, dict[str, Any]]] = [
            (f"{base}{API}{path.replace('{id}', '([^/]+)')}", handler, {"host": self.host})
            for path, handler in ROUTES
        ]
        rules += [
            (f"{base}{PAGE}", PageHandler, {}),
            (f"{base}{FILES}", StaticHandler, {"path": panel_folder()}),
        ]
        self._server.web_app.add_handlers(".*$", rules)

    def _emit(self, notices: list[dict[str, Any]]) -> None:
        for notice in notices:
            self._server.event_logger.emit(schema_id=EVENT_SCHEMA["$id"], data=notice)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:  # noqa: ARG002
        self._end_well_when_the_terminal_closes()
        if self.host is not None:
            await self.host.open()

    def _end_well_when_the_terminal_closes(self) -> None:
        # The server itself leaves SIGHUP alone and would end on the spot, and the queue with it.
        number = getattr(signal, "SIGHUP", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(number) is signal.SIG_DFL:
            self._old_hangup = signal.signal(number, lambda *_: self._server.stop(from_signal=True))

    async def stop_extension(self) -> None:
        """Leave the jobs that live to a controller in the background."""
        if self._old_hangup is not None:
            signal.signal(signal.SIGHUP, self._old_hangup)
            self._old_hangup = None
        forget_failed_starts(self._server.kernel_manager)
        if self._provisioners is not None:
            withdraw_provisioner(self._provisioners)
            self._provisioners = None
        if self.host is not None:
            await self.host.close()
