"""REST: taking the GPUs back and giving them to the queue again."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tornado import web

from gpuqueue.errors import InvalidRequest
from gpuqueue_jupyter.handlers import (
    RESOURCE,
    Question,
    Reply,
    answers,
    authorized,
)
from gpuqueue_jupyter.handlers import _Handler as Handler

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient
    from gpuqueue.client.freeing import Answer

__all__ = ["ROUTES"]


class _Mode(Handler):
    @property
    def browser(self) -> bool:
        """Whether a browser asks: a person then does, even if an agent has started the server."""
        headers = self.request.headers
        return "Origin" in headers or "Cookie" in headers


def _reply(answer: Answer) -> Reply:
    return Reply(answer.to_dict(), HTTPStatus.OK if answer.settled else HTTPStatus.ACCEPTED)


class FreeHandler(_Mode):
    """``free``."""

    @web.authenticated
    @authorized("write", resource=RESOURCE)
    @answers
    def post(self) -> Question:
        """Take the GPUs back; with ``soft`` everything is frozen at once."""
        soft = self.body("soft").get("soft", False)
        if not isinstance(soft, bool):
            raise InvalidRequest("soft", "write true to freeze everything at once, or false")
        browser = self.browser

        def take(client: LocalClient) -> Any:
            from gpuqueue.client.freeing import free

            return _reply(free(client, soft=soft, browser=browser))

        return take


class ResumeHandler(_Mode):
    """``resume``."""

    @web.authenticated
    @authorized("write", resource=RESOURCE)
    @answers
    def post(self) -> Question:
        """Give the GPUs to the queue again."""
        self.body()
        browser = self.browser

        def give(client: LocalClient) -> Any:
            from gpuqueue.client.freeing import resume

            return _reply(resume(client, browser=browser))

        return give


ROUTES: tuple[tuple[str, type[Handler]], ...] = (
    ("/free", FreeHandler),
    ("/resume", ResumeHandler),
)
"""Addresses under ``API``, as in ``openapi.yaml``, and their handlers."""
