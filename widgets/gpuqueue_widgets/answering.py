"""The queue's verbs, answered in the notebook's kernel as the server would answer them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpuqueue
from gpuqueue.api import ROUTES, Accepted, Asked, Clientless, Created, Raw, error_told

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient

__all__ = ["answer"]

log = logging.getLogger("gpuqueue")


def _about() -> dict[str, Any]:
    """What the kernel says of itself: it is the user's own, so it may do everything."""
    return {
        "version": gpuqueue.__version__,
        "folder": "",
        "leading": False,
        "problem": "",
        "may": {"write": True, "execute": True},
    }


def answer(
    client: LocalClient,
    method: str,
    path: str,
    arguments: Mapping[str, list[bytes]],
    body: Any,
) -> tuple[int, Any]:
    """Status and JSON of one question; ``path`` is that of ``openapi.yaml``."""
    for route in ROUTES:
        pattern = route.path.replace("{id}", "([^/]+)")
        found = re.fullmatch(pattern, path)
        if found is None or route.method != method:
            continue
        asked = Asked(
            id=found.group(1) if found.groups() else "",
            arguments=arguments,
            content=b"" if body is None else json.dumps(body).encode(),
            folder=Path.cwd(),
            about=_about,
            origin="notebook",
            browser=True,
        )
        try:
            question = route.read(asked)
            value = question.answer() if isinstance(question, Clientless) else question(client)
        except Exception as error:
            status, told = error_told(error)
            if status == HTTPStatus.INTERNAL_SERVER_ERROR:
                log.error("gpuqueue: %s %s failed", method, path, exc_info=error)
            return status, told
        if isinstance(value, Accepted):
            return HTTPStatus.OK if value.settled else HTTPStatus.ACCEPTED, value.value
        if isinstance(value, Created):
            return HTTPStatus.CREATED, value.job
        if isinstance(value, Raw):
            return HTTPStatus.OK, {"text": value.content.decode(errors="replace")}
        return HTTPStatus.OK, value
    return HTTPStatus.NOT_FOUND, {"message": f"there is no {method} {path}", "field": None}
