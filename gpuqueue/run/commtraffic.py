"""What widgets say to the front end, written down; of a flood only where it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["COMM_LIMIT", "CommTraffic"]

COMM_LIMIT = 32 << 20
"""Characters of messages that are written one by one; then only states, each when it is final."""


class CommTraffic:
    """The messages of a job's comms on their way into ``outputs.jsonl``.

    Parameters
    ----------
    write
        Writes one output.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        self._write = write
        self._room = COMM_LIMIT
        self._states: dict[str, dict[str, Any]] = {}
        """By comm: an output with the state that has not been written yet."""

    def take(self, report: Mapping[str, Any]) -> None:
        """Write a message, or keep the state that it tells for later."""
        output = {
            "output_type": "comm",
            "kind": report["type"],
            "content": report["content"],
            "metadata": report["metadata"],
            "buffers": report["buffers"],
            "request": report["request"],
        }
        data = report["content"].get("data") or {}
        comm_id = report["content"]["comm_id"]
        plain = report["type"] == "comm_msg" and data.get("method") == "update"
        if plain and self._room <= 0 and "msg_id" not in data.get("state", {}):
            self._keep(comm_id, output, data)
            return
        self._flush(comm_id)
        # a rough measure will do, and making the text twice would not
        self._room -= len(str(data)) + sum(map(len, report["buffers"]))
        self._write(output)

    def _keep(self, comm_id: str, output: dict[str, Any], data: Mapping[str, Any]) -> None:
        before = self._states.get(comm_id)
        if before is None:
            self._states[comm_id] = output
            return
        old = before["content"]["data"]
        parts = {str(path): (path, one) for path, one in zip(
            [*old.get("buffer_paths", ()), *data.get("buffer_paths", ())],
            [*before["buffers"], *output["buffers"]],
            strict=False,
        )}  # fmt: skip
        output["content"] = {
            **output["content"],
            "data": {
                **data,
                "state": {**old.get("state", {}), **data.get("state", {})},
                "buffer_paths": [path for path, _ in parts.values()],
            },
        }
        output["buffers"] = [one for _, one in parts.values()]
        self._states[comm_id] = output

    def _flush(self, comm_id: str) -> None:
        if output := self._states.pop(comm_id, None):
            self._write(output)

    def flush(self) -> None:
        """Write the states that have been kept."""
        for comm_id in list(self._states):
            self._flush(comm_id)
