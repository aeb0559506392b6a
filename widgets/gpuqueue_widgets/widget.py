"""The widget: a view in the browser, and answers from the kernel where there is no server."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import anywidget
import traitlets

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue_widgets.answering import answer
from gpuqueue_widgets.files import as_one_module, stylesheet

__all__ = ["PanelWidget"]


class PanelWidget(anywidget.AnyWidget):
    """What ``gpuqueue.panel()`` shows; ``job`` is the number of one job, or 0 for the queue."""

    _esm = as_one_module("widget")
    _css = stylesheet()
    job = traitlets.Int(0).tag(sync=True)
    home = traitlets.Unicode("").tag(sync=True)
    version = traitlets.Unicode(gpuqueue.__version__).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self.client = default_client()
        super().__init__(home=str(self.client.home.root), **traits)
        self.on_msg(self._heard)

    def _heard(self, _widget: Any, content: Any, _buffers: Any) -> None:
        # ipykernel answers a comm from the thread that last published on it: the first answer
        # goes out from the thread that is free while a cell runs, and with it all that follow
        if not isinstance(content, dict) or not isinstance(content.get("id"), str):
            return
        address = urlsplit(str(content.get("path", "")))
        arguments = {
            name: [value.encode() for value in values]
            for name, values in parse_qs(address.query, keep_blank_values=True).items()
        }
        status, body = answer(
            self.client,
            str(content.get("method", "GET")),
            address.path,
            arguments,
            content.get("body"),
        )
        self.send({"id": content["id"], "status": status, "body": body})

    def __repr__(self) -> str:
        what = f"job {self.job}" if self.job else "the queue"
        return f"<gpuqueue panel of {what}; `%gpu status` shows it as text>"
