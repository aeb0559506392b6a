"""The verbs about a notebook's own share of a GPU, by the notebook's path."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpuqueue.api.routes import Question
from gpuqueue.errors import InvalidRequest, NotAllowedNow

if TYPE_CHECKING:
    from gpuqueue.api.asked import Asked
    from gpuqueue.client import LocalClient
    from gpuqueue.model import Job

__all__ = ["choose_share", "share"]


def share(asked: Asked) -> Question:
    """What was chosen for a notebook, and what its kernel holds."""
    path = _path(asked, asked.query("path").text("path"))
    return lambda client: _told(client, path)


def choose_share(asked: Asked) -> Question:
    """Choose what a notebook's kernels get; what runs is given it at once where that can be."""
    from gpuqueue.client.wishes import wish_from

    body = asked.body("path", "share", "mem", "gpus")
    path = _path(asked, body.pop("path", None))
    wish = wish_from(body, "")

    def choose(client: LocalClient) -> dict[str, Any]:
        from gpuqueue.client.wishes import change_size, remember

        remember(client, path, wish)
        held, message = _held(client, path), ""
        if wish is not None and held is not None:
            try:
                message = change_size(client, held, wish)
            except NotAllowedNow as error:
                message = f"not now, but at its kernel's next start: {error}"
        return _told(client, path) | {"message": message}

    return choose


def _path(asked: Asked, path: Any) -> str:
    """The path as Jupyter tells it to the kernel: absolute."""
    if not isinstance(path, str) or not path.strip() or "\0" in path or len(path) > 4096:
        raise InvalidRequest("path", "write the path of a notebook")
    return os.path.normpath(asked.folder / path)


def _held(client: LocalClient, path: str) -> Job | None:
    from gpuqueue.model import JobKind, JobState

    running = [
        job
        for job in client.store.live()
        if job.kind is JobKind.KERNEL and job.state is JobState.RUNNING and job.origin.path == path
    ]
    return running[-1] if running else None


def _told(client: LocalClient, path: str) -> dict[str, Any]:
    from gpuqueue.client.wishes import remembered

    wish, held = remembered(client, path), _held(client, path)
    chosen = None
    if wish is not None:
        chosen = {"share": wish.share, "memory": wish.memory, "gpus": wish.gpus}
    return {"path": path, "chosen": chosen, "job": None if held is None else held.id}
