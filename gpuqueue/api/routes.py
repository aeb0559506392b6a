"""The table of verbs, and what a verb may answer besides plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuqueue.api.asked import Asked
    from gpuqueue.client import LocalClient

__all__ = ["ROUTES", "Accepted", "Clientless", "Created", "Question", "Raw", "Route"]

Question = Callable[["LocalClient"], Any]
"""What a verb asks of a client. It may be slow: it runs where that disturbs nobody."""


@dataclass(frozen=True, slots=True)
class Clientless:
    """A question that is answered without a client, which may be what is missing."""

    answer: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Raw:
    """An answer that is not JSON."""

    content: bytes
    kind: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accepted:
    """An answer to a wish that may still be on its way; ``settled`` says that it is not."""

    value: dict[str, Any]
    settled: bool


@dataclass(frozen=True, slots=True)
class Created:
    """A job that was asked for, with its address as seen from the request's own.

    Relative (RFC 9110, section 10.2.2), because a proxy may have taken off the front of the path:
    only whoever asked knows the whole of it. ``new`` is false for a job that was there already.
    """

    job: dict[str, Any]
    address: str
    new: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """One verb: where it is, what it needs, and what makes a question of a request.

    ``action`` is what an authorizer is asked for: ``read``, ``write``, or ``execute`` for what
    runs something. ``read`` checks the request before anything is done.
    """

    method: str
    path: str
    action: str
    read: Callable[[Asked], Question | Clientless]


def _routes() -> tuple[Route, ...]:
    from gpuqueue.api import changing, freeing, looking, sharing

    return (
        Route("GET", "/status", "read", looking.status),
        Route("GET", "/counts", "read", looking.counts),
        Route("GET", "/queue", "read", looking.queue),
        Route("GET", "/timeline", "read", looking.timeline),
        Route("GET", "/gpus", "read", looking.gpus),
        Route("GET", "/usage", "read", looking.usage),
        Route("GET", "/jobs", "read", looking.jobs),
        Route("POST", "/jobs", "execute", changing.submit),
        Route("GET", "/jobs/{id}", "read", looking.job),
        Route("GET", "/jobs/{id}/log", "read", looking.log),
        Route("GET", "/jobs/{id}/outputs", "read", looking.outputs),
        Route("GET", "/jobs/{id}/events", "read", looking.events),
        Route("GET", "/jobs/{id}/progress", "read", looking.progress),
        Route("POST", "/preview", "execute", changing.preview),
        Route("POST", "/jobs/{id}/cancel", "write", changing.cancel),
        Route("POST", "/jobs/{id}/interrupt", "write", changing.interrupt),
        Route("POST", "/jobs/{id}/priority", "write", changing.priority),
        Route("POST", "/jobs/{id}/move", "write", changing.move),
        Route("POST", "/jobs/{id}/resize", "write", changing.resize),
        Route("POST", "/jobs/{id}/release", "write", changing.release),
        Route("POST", "/jobs/{id}/retry", "execute", changing.retry),
        Route("POST", "/swap", "write", changing.swap),
        Route("POST", "/free", "write", freeing.free),
        Route("POST", "/resume", "write", freeing.resume),
        Route("GET", "/share", "read", sharing.share),
        Route("POST", "/share", "write", sharing.choose_share),
        Route("GET", "/settings", "read", looking.settings),
        Route("GET", "/doctor", "read", looking.doctor),
    )


ROUTES = _routes()
"""Every verb; addresses are below the interface's own, and ``{id}`` is a job's number."""
