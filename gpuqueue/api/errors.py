"""What an error is called outside: a status as HTTP has them, a sentence, and the field."""

from __future__ import annotations

import errno
from http import HTTPStatus

from gpuqueue.errors import (
    GpuqueueError,
    InvalidRequest,
    NoSpace,
    NotAllowedNow,
    NotYours,
    UnknownJob,
)

__all__ = ["LONGEST", "error_told"]

LONGEST = 2000
"""The most of an error's words that is told, in characters."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def status_of(error: Exception) -> int:
    """The HTTP status that says what kind of error it is."""
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


def error_told(error: Exception) -> tuple[int, dict[str, str | None]]:
    """Status and body of an answer that is an error: what happened, and the field it is about.

    An unexpected error is told by its type alone; its words may hold anything.
    """
    status = status_of(error)
    message, name = str(error), None
    if isinstance(error, InvalidRequest):
        name = error.field
    elif isinstance(error, NoSpace) and error.strerror:
        message = error.strerror
    elif status == HTTPStatus.INTERNAL_SERVER_ERROR:
        message = f"an unexpected {type(error).__name__}; the server's log has the details"
    if len(message) > LONGEST:
        message = f"{message[:LONGEST]}..."
    return status, {"message": message, "field": name}
