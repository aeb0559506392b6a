"""REST under ``<base>/gpuqueue/api/v1/``. ``openapi.yaml`` beside this file describes it.

The verbs are those of ``gpuqueue.api``. Here each gets a handler that sees who asks, answers off
the event loop and tells errors.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_server.base.handlers import APIHandler
from tornado import web

import gpuqueue
from gpuqueue.api import ROUTES as VERBS
from gpuqueue.api import Accepted, Asked, Clientless, Created, Raw, Route, error_told

if TYPE_CHECKING:
    from gpuqueue_jupyter.host import Host

    Verb = TypeVar("Verb", bound=Callable[..., Any])

    def authorized(action: str, *, resource: str) -> Callable[[Verb], Verb]: ...
else:
    from jupyter_server.auth.decorator import authorized  # which loses the types of its verbs

__all__ = ["API", "RESOURCE", "ROUTES"]

API = "gpuqueue/api/v1"
"""Where all of it is, under the server's base URL."""
RESOURCE = "gpuqueue"
"""What an authorizer is asked about. Running something is ``execute``, other changes ``write``."""


class _Handler(APIHandler):
    """What the handlers share. ``GET`` is what panels poll: it does not count as activity."""

    auth_resource = RESOURCE
    _track_activity = False
    host: Host

    def initialize(self, host: Host) -> None:
        """Take what the route gives."""
        self.host = host

    async def prepare(self) -> None:  # type: ignore[override] # as the server's own does
        """Note what a person did, so that a server in use is not culled."""
        self._track_activity = self.request.method == "POST"
        await super().prepare()

    def set_default_headers(self) -> None:
        """Keep answers out of caches on the way: they change, and they are one person's."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    # -- what is asked -----------------------------------------------------------------------

    @property
    def owner(self) -> str | None:
        """Who asks; None where the server does not know people apart and so it is its own user."""
        user = self.current_user
        # with one token for all, each browser is given a random name
        if len(user.username) == 32 and user.name.startswith("Anonymous "):
            return None
        return str(user.username)[:200] or None

    @property
    def folder(self) -> Path:
        """What this server shows the files of."""
        return Path(self.settings.get("server_root_dir") or ".").expanduser()

    async def may(self) -> dict[str, bool]:
        """What the one who asks may do besides looking, so that nothing else is offered."""
        found = {}
        for action in ("write", "execute"):
            allowed = self.authorizer.is_authorized(self, self.current_user, action, RESOURCE)
            found[action] = bool(await allowed if isawaitable(allowed) else allowed)
        return found

    def asked(self, job: str, may: dict[str, bool]) -> Asked:
        """The request in the words of ``gpuqueue.api``."""
        return Asked(
            id=job,
            arguments=self.request.query_arguments,
            content=self.request.body,
            owner=self.owner,
            folder=self.folder,
            browser="Origin" in self.request.headers or "Cookie" in self.request.headers,
            about=lambda: self.about() | {"may": may},
        )

    def about(self) -> dict[str, Any]:
        """What ``status`` tells of this server."""
        lead = self.host.lead
        return {
            "version": gpuqueue.__version__,
            "folder": str(self.folder),
            "leading": lead is not None and lead.leading,
            "problem": "" if lead is None else lead.problem,
        }

    # -- what is told ------------------------------------------------------------------------

    async def answer(self, route: Route, job: str) -> None:
        """Ask what the route's verb asks, off the event loop, and send what comes back."""
        try:
            may = await self.may() if route.path == "/status" else {}
            question = route.read(self.asked(job, may))
            if isinstance(question, Clientless):
                found = await self.host.run(lambda: _encoded(question.answer()))
            else:
                found = await self.host.ask(lambda client: _encoded(question(client)))
        except Exception as error:  # noqa: BLE001 - all of them are told, unexpected ones logged
            self.refuse(error)
            return
        status, content, kind, headers = found
        self.set_status(status)
        for name, value in headers.items():
            self.set_header(name, value)
        await self.finish(content, set_content_type=kind)

    def refuse(self, error: Exception) -> None:
        """Answer with an error."""
        status, body = error_told(error)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log.error("gpuqueue: %s failed", self.request.path, exc_info=error)
        self.set_status(status)
        self.finish(json.dumps(body))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """The server's own errors (403, 405, ...) in the same shape."""
        error = kwargs.get("exc_info", (None, None))[1]
        message = getattr(error, "log_message", None) or HTTPStatus(status_code).phrase
        self.finish(json.dumps({"message": message, "field": None}))


def _encoded(value: Any) -> tuple[int, bytes, str, dict[str, str]]:
    """Status, content, its kind and headers; large answers take a while, so not in the loop."""
    if isinstance(value, Raw):
        return HTTPStatus.OK, value.content, value.kind, value.headers
    status, headers = HTTPStatus.OK, {}
    if isinstance(value, Accepted):
        status = HTTPStatus.OK if value.settled else HTTPStatus.ACCEPTED
        value = value.value
    if isinstance(value, Created):
        status = HTTPStatus.CREATED if value.new else HTTPStatus.OK
        value, headers = value.job, {"Location": value.address}
    return status, json.dumps(value).encode(), "application/json", headers


def _verb(route: Route) -> Callable[..., Awaitable[None] | None]:
    @web.authenticated
    @authorized(route.action, resource=RESOURCE)
    async def verb(self: _Handler, job: str = "") -> None:
        await self.answer(route, job)

    verb.__doc__ = route.read.__doc__
    return verb


def _openapi(_asked: Asked) -> Clientless:
    """Describe all this, for programs."""
    file = Path(__file__).with_name("openapi.yaml")
    return Clientless(lambda: Raw(file.read_bytes(), "application/yaml"))


def _handlers() -> tuple[tuple[str, type[_Handler]], ...]:
    routes = (*VERBS, Route("GET", "/openapi.yaml", "read", _openapi))
    verbs: dict[str, dict[str, Any]] = {}
    for route in routes:
        verbs.setdefault(route.path, {})[route.method.lower()] = _verb(route)
    return tuple(
        (path, type(f"Handler of {path}", (_Handler,), methods)) for path, methods in verbs.items()
    )


ROUTES = _handlers()
"""Addresses under ``API``, as in ``openapi.yaml``, and their handlers."""
