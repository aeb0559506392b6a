"""The verbs that take the GPUs back and give them to the queue again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.api.routes import Accepted, Question
from gpuqueue.errors import InvalidRequest

if TYPE_CHECKING:
    from gpuqueue.api.asked import Asked
    from gpuqueue.client import LocalClient

__all__ = ["free", "resume"]


def free(asked: Asked) -> Question:
    """Take the GPUs back; with ``soft`` everything is frozen at once."""
    soft = asked.body("soft").get("soft", False)
    if not isinstance(soft, bool):
        raise InvalidRequest("soft", "write true to freeze everything at once, or false")

    def take(client: LocalClient) -> Accepted:
        from gpuqueue.client import freeing

        answer = freeing.free(client, soft=soft, browser=asked.browser)
        return Accepted(answer.to_dict(), answer.settled)

    return take


def resume(asked: Asked) -> Question:
    """Give the GPUs to the queue again."""
    asked.body()

    def give(client: LocalClient) -> Accepted:
        from gpuqueue.client import freeing

        answer = freeing.resume(client, browser=asked.browser)
        return Accepted(answer.to_dict(), answer.settled)

    return give
