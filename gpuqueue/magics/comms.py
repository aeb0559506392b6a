"""Comms of a cell's job in the notebook: the front end talks to this kernel, and to no other.

What the job's widgets say is sent on under the same ids. Whoever answers for a comm afterwards is
the widget itself, once it has come back (``run/comms.py``), and until then, or if it cannot come,
a picture of its last state.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from gpuqueue.run.comms import live_widgets, open_comm

__all__ = ["Comms", "is_shown"]

_WIDGET = "application/vnd.jupyter.widget-view+json"


class _Picture:
    """Answers for a comm with what has been said through it: the state that it is in."""

    stands_in = True

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._state: dict[str, Any] = {}
        self._buffers: dict[str, tuple[list[Any], bytes]] = {}

    def note(self, data: Mapping[str, Any], buffers: list[bytes]) -> None:
        """Take in a state, or a part of it."""
        self._state.update(data.get("state") or {})
        for path, buffer in zip(data.get("buffer_paths") or (), buffers, strict=False):
            self._buffers[str(path)] = path, buffer

    def __call__(self, message: Mapping[str, Any]) -> None:
        """A message of the front end."""
        data = message["content"].get("data", {})
        if data.get("method") == "update":
            self.note(data, [bytes(one) for one in message.get("buffers") or ()])
        elif data.get("method") == "request_state":
            paths = [path for path, _ in self._buffers.values()]
            self._channel.send(
                {"method": "update", "state": self._state, "buffer_paths": paths},
                buffers=[buffer for _, buffer in self._buffers.values()],
            )


class Comms:
    """Sends on what the comms of one job say.

    Parameters
    ----------
    kernel
        This notebook's.
    again
        The job's outputs are shown once more: comms that are there already have been told.
    """

    def __init__(self, kernel: Any, *, again: bool = False) -> None:
        self._kernel = kernel
        self._again = again
        self._told: set[str] = set()
        """Comms that this job has opened."""

    def send_on(self, output: Mapping[str, Any], parent: Any) -> None:
        """One ``comm`` output, as a message that belongs to a request, or to its header."""
        kind, content = output["kind"], dict(output["content"])
        comm_id = content["comm_id"]
        if self._again and self._is_old(kind, comm_id):
            return
        if kind == "comm_open":
            self._told.add(comm_id)
        data = dict(content.get("data") or {})
        buffers = [base64.b64decode(one) for one in output.get("buffers", ())]
        state = data.get("state")
        if isinstance(state, dict) and state.get("msg_id") == output["request"]:
            # an Output widget catches what belongs to a request; in the notebook it is this one
            data["state"] = {**state, "msg_id": parent.get("header", parent)["msg_id"]}
        content["data"] = data
        self._take_part(kind, comm_id, content, buffers)
        self._kernel.session.send(
            self._kernel.iopub_socket,
            kind,
            content,
            metadata=dict(output.get("metadata") or {}),
            parent=parent,
            ident=f"comm-{comm_id}".encode(),
            buffers=buffers,
        )

    def close(self, parent: Any) -> None:
        """Close what the job has opened: it begins again, and opens others."""
        for comm_id in sorted(self._told):
            if comm_id in self._kernel.comm_manager.comms:
                content = {"comm_id": comm_id, "data": {}}
                self.send_on({"kind": "comm_close", "content": content, "request": ""}, parent)
        self._told.clear()

    def _is_old(self, kind: str, comm_id: str) -> bool:
        if kind == "comm_open" and comm_id not in self._kernel.comm_manager.comms:
            self._told.add(comm_id)
        return comm_id not in self._told

    def _take_part(
        self, kind: str, comm_id: str, content: Mapping[str, Any], buffers: list[bytes]
    ) -> None:
        """Have this kernel know the comm too."""
        comms = self._kernel.comm_manager.comms
        if kind == "comm_open" and comm_id not in comms:
            channel = open_comm(content["target_name"], comm_id, content.get("target_module"))
            self._kernel.comm_manager.register_comm(channel)
            channel.on_msg(_Picture(channel))
        elif kind == "comm_close":
            live_widgets().pop(comm_id, None)
            if channel := comms.pop(comm_id, None):
                channel._closed = True  # noqa: SLF001 - it has been said already
            return
        picture = getattr(comms.get(comm_id), "_msg_callback", None)
        if isinstance(picture, _Picture):
            picture.note(content["data"], buffers)


def is_shown(kernel: Any, data: Mapping[str, Any]) -> bool:
    """Whether the front end can show what a display refers to; all but widgets it can."""
    view = data.get(_WIDGET)
    return view is None or (
        kernel is not None and view.get("model_id") in kernel.comm_manager.comms
    )
