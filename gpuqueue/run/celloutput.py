"""A cell's outputs, written down as they come: for the notebook and as plain text for the log."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from gpuqueue.run.commtraffic import CommTraffic

__all__ = ["OVER", "STREAM_LIMIT", "Outputs", "collapse", "without_escapes"]

OVER = "gpuqueue_over"
"""The type of the report that says that a cell's code has ended."""

STREAM_LIMIT = 4 << 20
"""Characters of text that are kept for the notebook, unless a setting says otherwise."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def without_escapes(text: str) -> str:
    """Text without terminal colours and other escape sequences."""
    return _ESCAPE.sub("", text)


def collapse(text: str) -> str:
    """Text without the states of a line that a later carriage return has overwritten.

    What shows is the same, in a terminal and in a notebook.
    """
    if "\r" not in text:
        return text
    return "\n".join(_collapse_line(line) for line in text.split("\n"))


def _collapse_line(line: str) -> str:
    if line.count("\r") < 2:
        return line
    ending = "\r" if line.endswith("\r") else ""
    body = line[: -len(ending)] if ending else line
    first, *states = body.split("\r")
    if not states:
        return line
    shown = ""
    for state in states:
        plain = _COLOUR.sub("", state)
        if "\x1b" in plain:
            return line  # it moves the cursor: leave it to who shows it
        if len(plain) >= len(_COLOUR.sub("", shown)):
            shown = state
        elif "\x1b" in shown + state:
            return line
        else:
            shown = state + shown[len(state) :]
    if len(_COLOUR.sub("", states[-1])) < len(_COLOUR.sub("", shown)) and not ending:
        ending = f"\r{states[-1]}"  # what follows goes on where the last state ends
    # the first part belongs to what was there before, of which this text knows nothing
    return f"{first}\r{shown}{ending}"


_END = 2000
"""Characters of what is not shown that are shown all the same: its end."""


class Outputs:
    """Writes ``outputs.jsonl`` (nbformat output dictionaries, a line each) and the log.

    Four kinds are not nbformat's own: ``update_display_data``, ``clear_output``, ``comm``, which is
    what a widget says to the front end, and ``over``: an error just before it is the cell's own,
    and what follows comes after the cell's code, such as figures. Outputs that can be updated have
    ``transient`` with their ``display_id``.

    Parameters
    ----------
    limit
        Characters of text that are written for the notebook; all of it goes to the log.
    """

    def __init__(self, path: str, log: Any = None, *, limit: int = STREAM_LIMIT) -> None:
        self._file = os.open(
            path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._log = log or sys.stdout.buffer
        self._room = limit
        self._kept_back = 0
        self._last: tuple[str, str] = ("stdout", "")
        self._midline = False
        self._comms = CommTraffic(self._write)

    def take(self, report: Mapping[str, Any]) -> None:
        """Write down what a kernel published, as far as a front end would show it."""
        kind, content = report["type"], report["content"]
        if kind == "stream":
            self._stream(content["name"], content["text"])
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self._display(kind, content)
        elif kind == "clear_output":
            self._write({"output_type": kind, "wait": bool(content.get("wait"))})
        elif kind == "error":
            self.error(content["ename"], content["evalue"], content["traceback"])
        elif kind in ("comm_open", "comm_msg", "comm_close"):
            self._comms.take(report)
        elif kind == OVER:
            self._write({"output_type": "over"})

    def _stream(self, name: str, text: str) -> None:
        text = collapse(text)
        self._tell(text)
        shown, kept = text[: self._room], text[self._room :]
        self._room -= len(shown)
        if shown:
            self._write({"output_type": "stream", "name": name, "text": shown})
        if kept:
            self._kept_back += len(kept)
            self._last = (name, (self._last[1] + kept)[-_END:])

    def _display(self, kind: str, content: Mapping[str, Any]) -> None:
        self.flush()
        data = content["data"]
        output: dict[str, Any] = {
            "output_type": kind,
            "data": data,
            "metadata": content.get("metadata", {}),
        }
        if kind == "execute_result":
            output["execution_count"] = content.get("execution_count")
        if display_id := content.get("transient", {}).get("display_id"):
            output["transient"] = {"display_id": display_id}
        self._write(output)
        if kind != "update_display_data" and isinstance(text := data.get("text/plain"), str):
            self._tell_line(text)

    def error(self, ename: str, evalue: str, traceback: list[str]) -> None:
        """Write down an exception."""
        self.flush()
        self._write(
            {"output_type": "error", "ename": ename, "evalue": evalue, "traceback": traceback}
        )
        self._tell_line("\n".join(traceback))

    def flush(self) -> None:
        """If text was kept from the notebook, say so and show its end."""
        if not self._kept_back:
            return
        name, end = self._last
        words = (
            f"\n[gpuqueue: {self._kept_back} characters of text are not shown here; "
            f"they are in the job's log]\n...{end}"
        )
        self._kept_back = 0
        self._last = (name, "")
        self._write({"output_type": "stream", "name": name, "text": words})

    def close(self) -> None:
        """Write what is left."""
        self.flush()
        self._comms.flush()
        self._log.flush()

    def _write(self, output: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(output).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            return  # a full disk costs output, never the job

    def _tell_line(self, text: str) -> None:
        self._tell(("\n" if self._midline else "") + text.rstrip("\n") + "\n")

    def _tell(self, text: str) -> None:
        if text:
            self._midline = not text.endswith("\n")
            self._log.write(without_escapes(text).encode(errors="replace"))
            self._log.flush()
