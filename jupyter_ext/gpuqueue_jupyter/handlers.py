"""REST under ``<base>/gpuqueue/api/v1/``. ``openapi.yaml`` beside this file describes it.

Every verb reads its question from the request and returns a function of the client, which
``answers`` runs off the event loop and whose result it sends as JSON.
"""

from __future__ import annotations

import errno
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_server.base.handlers import APIHandler
from tornado import web

from gpuqueue.errors import (
    GpuqueueError,
    InvalidRequest,
    NoSpace,
    NotAllowedNow,
    NotYours,
    UnknownJob,
)
from gpuqueue.model import IntentKind, Origin
from gpuqueue_jupyter import told
from gpuqueue_jupyter.asked import Query, body_of, integer, job_number, submission_of

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient
    from gpuqueue_jupyter.host import Host

    Verb = TypeVar("Verb", bound=Callable[..., Any])

    def authorized(action: str, *, resource: str) -> Callable[[Verb], Verb]: ...
else:
    from jupyter_server.auth.decorator import authorized  # which loses the types of its verbs

__all__ = ["API", "RESOURCE", "ROUTES", "Reply"]

API = "gpuqueue/api/v1"
"""Where all of it is, under the server's base URL."""
RESOURCE = "gpuqueue"
"""What an authorizer is asked about. Running something is ``execute``, other changes ``write``."""

_MOST = 2**53 - 1
_MOST_PRIORITY = 2**31
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is more than JSON with status 200."""

    value: Any
    status: int = HTTPStatus.OK
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


Question = Callable[[Any], Any]
"""What a verb asks of a ``LocalClient``."""


def answers(read: Callable[..., Question]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Let a verb that reads a question answer it, and turn errors into what REST says for them."""

    @functools.wraps(read)
    async def verb(self: _Handler, *arguments: str) -> None:
        try:
            question = read(self, *arguments)
            reply = await self.asking(lambda client: _render(question(client)))
        except Exception as error:  # noqa: BLE001 - all of them are told, unexpected ones logged
            self.refuse(error)
            return
        self.set_status(reply.status)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        await self.finish(reply.value, set_content_type=reply.content_type)

    return verb


def _render(value: Any) -> Reply:
    reply = value if isinstance(value, Reply) else Reply(value)
    if isinstance(reply.value, bytes):
        return reply
    content = json.dumps(reply.value).encode()
    return Reply(content, reply.status, reply.content_type, reply.headers)


def _status_of(error: Exception) -> int:
    if isinstance(error, InvalidRequest):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, UnknownJob):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, NotYours):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, NotAllowedNow):
        return HTTPStatus.CONFLICT
    if isinstance(error, NoSpace) or (isinstance(error, OSError) and error.errno in _FULL):
        return HTTPStatus.INSUFFICIENT_STORAGE
    if isinstance(error, GpuqueueError | OSError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.INTERNAL_SERVER_ERROR


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

    def asking(self, question: Question) -> Awaitable[Any]:
        """Run a question off the event loop."""
        return self.host.ask(question)

    def query(self, *names: str) -> Query:
        """The address's parameters, of which there may be only these."""
        return Query(self.request.query_arguments, *names)

    def body(self, *names: str) -> dict[str, Any]:
        """The JSON object that was sent, of which there may be only these members."""
        return body_of(self.request.body, *names)

    @property
    def owner(self) -> str | None:
        """Who asks; None where the server does not know people apart and so it is its own user."""
        user = self.current_user
        # with one token for all, each browser is given a random name
        if len(user.username) == 32 and user.name.startswith("Anonymous "):
            return None
        return str(user.username)[:200] or None

    # -- what is told ------------------------------------------------------------------------

    def created(self, client: LocalClient, job_id: int, address: str, *, new: bool = True) -> Reply:
        """A job, with its address as seen from the request's own.

        Relative (RFC 9110, section 10.2.2), because a proxy may have taken off the front of the
        path: only whoever asked knows the whole of it.
        """
        job = client.job(job_id)
        status = HTTPStatus.CREATED if new else HTTPStatus.OK
        return Reply(told.job_told(client, job), status, headers={"Location": address})

    def refuse(self, error: Exception) -> None:
        """Answer with an error: what happened, and the field that it is about."""
        status = _status_of(error)
        message, name = str(error), None
        if isinstance(error, InvalidRequest):
            name = error.field
        elif isinstance(error, NoSpace) and error.strerror:
            message = error.strerror
        elif status == HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log.error("gpuqueue: %s failed", self.request.path, exc_info=error)
            message = f"an unexpected {type(error).__name__}; the server's log has the details"
        if len(message) > 2000:
            message = f"{message[:2000]}..."
        self.set_status(status)
        self.finish(json.dumps({"message": message, "field": name}))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """The server's own errors (403, 405, ...) in the same shape."""
        error = kwargs.get("exc_info", (None, None))[1]
        message = getattr(error, "log_message", None) or HTTPStatus(status_code).phrase
        self.finish(json.dumps({"message": message, "field": None}))


class StatusHandler(_Handler):
    """``status``: GPUs, queue and recent jobs at a glance."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self) -> Question:
        """Everything, with the first ``limit`` of running and of waiting jobs."""
        limit = self.query("limit").integer("limit", 200, 0, 1000)
        return lambda client: told.status_told(self.host, client, limit)


class JobsHandler(_Handler):
    """``jobs``: all of them, and new ones."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self) -> Question:
        """One page of jobs, newest first."""
        query = self.query("state", "owner", "before", "limit")
        states, owner = query.states("state"), query.text("owner")
        before = query.integer("before", 0, 1, _MOST) or None
        limit = query.integer("limit", 100, 1, 1000)
        return lambda client: told.jobs_told(client, states, owner, before, limit)

    @web.authenticated
    @authorized("execute", resource=RESOURCE)
    @answers
    def post(self) -> Question:
        """Queue a program, a line for the shell, a script or a notebook."""
        asked, owner = submission_of(self.request.body), self.owner
        folder = Path(self.settings.get("server_root_dir") or ".").expanduser()

        def submit(client: LocalClient) -> Reply:
            import time

            from gpuqueue.client import options_from, payload_from

            options = options_from(asked.options)
            payload = payload_from(
                asked.command,
                kwargs=asked.parameters,
                cwd=folder / (asked.cwd or ""),
                env=asked.env,
            )
            began = time.time()
            try:
                job = client.submit([(payload, options)], origin=Origin("rest"), owner=owner)[0]
            except UnknownJob as error:
                raise InvalidRequest("after", str(error).removeprefix("after: ")) from None
            # with a key that is known, the first job of that key is the answer
            new = job.submitted >= began
            return self.created(client, job.id, f"jobs/{job.id}", new=new)

        return submit


class JobHandler(_Handler):
    """``jobs/{id}``: one job."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self, job: str) -> Question:
        """The job; where it waits, also why and until when."""
        self.query()
        number = job_number(job)
        return lambda client: told.job_told(client, client.job(number))


class LogHandler(_Handler):
    """``jobs/{id}/log``: what a job wrote."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self, job: str) -> Question:
        """A part from a byte on, or the last lines; as JSON, or as it is with ``format=text``."""
        number = job_number(job)
        query = self.query("offset", "limit", "lines", "attempt", "format")
        attempt = query.integer("attempt", 0, 1, 10**6) or None
        offset = query.integer("offset", 0, 0, _MOST)
        limit = query.integer("limit", 1 << 16, 1, told.MOST_LOG)
        form = query.text("format") or "json"
        if form not in ("json", "text"):
            raise InvalidRequest("format", "write json or text")
        if query.text("lines") is not None:
            if query.text("offset") is not None or query.text("limit") is not None:
                raise InvalidRequest("lines", "goes with neither offset nor limit")
            lines = query.integer("lines", 0, 0, 10**6)
            return lambda client: self._form(told.log_tail(client, number, attempt, lines), form)
        if form == "text":
            return lambda client: self._plain(
                *told.log_bytes(client, number, attempt, offset, limit)
            )
        return lambda client: told.log_told(client, number, attempt, offset, limit)

    def _form(self, answer: dict[str, Any], form: str) -> Any:
        if form == "json":
            return answer
        return self._plain(answer["text"].encode(errors="replace"), answer["next"])

    def _plain(self, content: bytes, after: int) -> Reply:
        headers = {"X-Gpuqueue-Next": str(after)}
        return Reply(content, content_type="text/plain; charset=UTF-8", headers=headers)


class OutputsHandler(_Handler):
    """``jobs/{id}/outputs``: what a cell showed."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self, job: str) -> Question:
        """Outputs as nbformat has them, from a byte of their file on."""
        number = job_number(job)
        query = self.query("offset", "attempt")
        offset = query.integer("offset", 0, 0, _MOST)
        attempt = query.integer("attempt", 0, 1, 10**6) or None
        return lambda client: told.outputs_told(client, number, attempt, offset)


class EventsHandler(_Handler):
    """``jobs/{id}/events``: what happened to a job."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self, job: str) -> Question:
        """Its events after number ``since``, oldest first."""
        number = job_number(job)
        query = self.query("since", "limit")
        since = query.integer("since", 0, 0, _MOST)
        limit = query.integer("limit", 1000, 1, 1000)
        return lambda client: told.events_told(client, number, since, limit)


class _Wish(_Handler):
    """A wish about one job, and the job as it then is."""

    def wish(self, job: str, kind: IntentKind, value: int | None = None) -> Question:
        """Ask the controller for it."""
        number = job_number(job)

        def ask(client: LocalClient) -> Any:
            client.intend(kind, number, value)
            return told.job_told(client, client.job(number))

        return ask


class CancelHandler(_Wish):
    """``jobs/{id}/cancel``."""

    @web.authenticated
    @authorized("write", resource=RESOURCE)
    @answers
    def post(self, job: str) -> Question:
        """Take it out of the queue; one that runs is asked to end, and then ended."""
        self.body()
        return self.wish(job, IntentKind.CANCEL)


class InterruptHandler(_Wish):
    """``jobs/{id}/interrupt``."""

    @web.authenticated
    @authorized("write", resource=RESOURCE)
    @answers
    def post(self, job: str) -> Question:
        """Interrupt it as Ctrl-C would."""
        self.body()
        return self.wish(job, IntentKind.INTERRUPT)


class PriorityHandler(_Wish):
    """``jobs/{id}/priority``."""

    @web.authenticated
    @authorized("write", resource=RESOURCE)
    @answers
    def post(self, job: str) -> Question:
        """Give a waiting job a priority, or move it to the front."""
        value = self.body("value").get("value")
        if value is not None:
            value = integer(value, "value", -_MOST_PRIORITY, _MOST_PRIORITY)
        return self.wish(job, IntentKind.PRIORITY, value)


class SwapHandler(_Wish):
    """``swap``."""

    @web.authenticated
    @authorized("write", resource=RESOURCE)
    @answers
    def post(self) -> Question:
        """Let two waiting jobs change places."""
        pair = self.body("jobs").get("jobs")
        if not isinstance(pair, list) or len(pair) != 2:
            raise InvalidRequest("jobs", "write the numbers of two jobs, such as [3, 5]")
        one, other = (integer(value, "jobs", 1, _MOST) for value in pair)
        if one == other:
            raise InvalidRequest("jobs", "write two different jobs")

        def ask(client: LocalClient) -> Any:
            client.intend(IntentKind.SWAP, one, other)
            return {"jobs": [told.job_told(client, client.job(job)) for job in (one, other)]}

        return ask


class RetryHandler(_Handler):
    """``jobs/{id}/retry``."""

    @web.authenticated
    @authorized("execute", resource=RESOURCE)
    @answers
    def post(self, job: str) -> Question:
        """Queue the same work again, as a new job."""
        number = job_number(job)
        front = self.body("priority").get("priority", False)
        if not isinstance(front, bool):
            raise InvalidRequest("priority", "write true for the front of the queue, or false")

        def again(client: LocalClient) -> Reply:
            from gpuqueue.client.resubmit import resubmit

            job = resubmit(client, client.job(number), priority=front)
            return self.created(client, job.id, f"../{job.id}")

        return again


class GpusHandler(_Handler):
    """``gpus``."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self) -> Question:
        """The GPUs, what is promised on them and what they say of themselves."""
        self.query()
        return told.gpus_told


class SettingsHandler(_Handler):
    """``settings``."""

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self) -> Question:
        """The settings in force and what each is for."""
        self.query()
        return told.settings_told


class DoctorHandler(_Handler):
    """``doctor``: what is in order and what is not, also where the state cannot be used."""

    def asking(self, question: Question) -> Awaitable[Any]:
        """Ask without a client, which may be what is missing."""
        return self.host.run(lambda: question(None))

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self) -> Question:
        """All findings, each with its remedy."""
        self.query()
        return lambda _client: told.doctor_told()


class OpenApiHandler(_Handler):
    """``openapi.yaml``."""

    def asking(self, question: Question) -> Awaitable[Any]:
        """Ask without a client; the description is always there."""
        return self.host.run(lambda: question(None))

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    @answers
    def get(self) -> Question:
        """The description of all this, for programs."""
        self.query()
        return lambda _client: Reply(
            Path(__file__).with_name("openapi.yaml").read_bytes(), content_type="application/yaml"
        )


ROUTES: tuple[tuple[str, type[_Handler]], ...] = (
    ("/status", StatusHandler),
    ("/jobs", JobsHandler),
    ("/jobs/{id}", JobHandler),
    ("/jobs/{id}/log", LogHandler),
    ("/jobs/{id}/outputs", OutputsHandler),
    ("/jobs/{id}/events", EventsHandler),
    ("/jobs/{id}/cancel", CancelHandler),
    ("/jobs/{id}/interrupt", InterruptHandler),
    ("/jobs/{id}/retry", RetryHandler),
    ("/jobs/{id}/priority", PriorityHandler),
    ("/swap", SwapHandler),
    ("/gpus", GpusHandler),
    ("/settings", SettingsHandler),
    ("/doctor", DoctorHandler),
    ("/openapi.yaml", OpenApiHandler),
)
"""Addresses under ``API``, as in ``openapi.yaml``, and their handlers."""
