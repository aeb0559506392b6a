"""A job's outputs, shown in the notebook as if the cell had made them itself."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpuqueue.client import LocalClient
from gpuqueue.magics.comms import Comms, is_shown
from gpuqueue.model import Job
from gpuqueue.run.files import OUTPUTS

__all__ = ["Cell", "Here", "OutputTail", "Place", "place_of"]

_CHUNK = 1 << 20


class Place(Protocol):
    """Where outputs are shown."""

    def show(self, output: Mapping[str, Any]) -> None:
        """Show one output of ``outputs.jsonl``."""

    def write(self, text: str, name: str = "stderr") -> None:
        """Show text."""

    def begin_again(self) -> None:
        """Take away what has been shown."""


class OutputTail:
    """Reads a job's outputs as they are written, each once."""

    def __init__(self, client: LocalClient, job_id: int) -> None:
        self._client = client
        self._job_id = job_id
        self._attempt = 0
        self._offset = 0

    def read(self, job: Job) -> Iterator[dict[str, Any]]:
        """Outputs that have come since the last call; of the job's latest attempt."""
        if job.attempt != self._attempt:
            self._attempt, self._offset = job.attempt, 0
        path = self._client.home.attempt(self._job_id, self._attempt) / OUTPUTS
        for line in self._lines(path):
            with contextlib.suppress(ValueError):  # a full disk can cut a line
                yield json.loads(line)

    def _lines(self, path: Path) -> Iterator[bytes]:
        try:
            file = open(path, "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is still being written
                self._offset += len(line)
                yield line


class Here:
    """The cell that runs now, through the shell's own means, so that ``%%capture`` sees it."""

    def __init__(self, shell: Any, *, again: bool = False) -> None:
        self._shell = shell
        self._kernel = _kernel_of(shell)
        self._comms = Comms(self._kernel, again=again)

    def write(self, text: str, name: str = "stderr") -> None:
        """Show text."""
        stream = sys.stdout if name == "stdout" else sys.stderr
        stream.write(text)
        stream.flush()

    def begin_again(self) -> None:
        """Take away what has been shown; in a terminal it stays."""
        if self._kernel is not None:
            self._comms.close(self._shell.displayhook.parent_header)
            self._shell.display_pub.clear_output(False)  # noqa: FBT003 - IPython's own signature

    def show(self, output: Mapping[str, Any]) -> None:
        """Show one output; an error that the cell has survived."""
        kind, publisher = output["output_type"], self._shell.display_pub
        if kind == "over":
            return
        if kind == "stream":
            self.write(output["text"], output["name"])
        elif kind == "clear_output":
            publisher.clear_output(output["wait"])
        elif kind == "error":
            self._error(output)
        elif kind == "comm":
            if self._kernel is not None:
                sys.stdout.flush()
                sys.stderr.flush()
                self._comms.send_on(output, self._shell.displayhook.parent_header)
        elif kind != "execute_result" or not self._result(output):
            publisher.publish(
                data=_shown(self._kernel, output["data"]),
                metadata=output["metadata"],
                transient=output.get("transient", {}),
                update=kind == "update_display_data",
            )

    def _error(self, output: Mapping[str, Any]) -> None:
        kernel = self._kernel
        if kernel is None:
            self.write("\n".join(output["traceback"]) + "\n")
            return
        sys.stdout.flush()
        sys.stderr.flush()
        content = {key: output[key] for key in ("ename", "evalue", "traceback")}
        hook = self._shell.displayhook
        kernel.session.send(
            kernel.iopub_socket, "error", content, parent=hook.parent_header, ident=b"error"
        )

    def _result(self, output: Mapping[str, Any]) -> bool:
        """Publish as a cell's result; False where only a display can be published."""
        hook = self._shell.displayhook
        session = getattr(hook, "session", None)
        own = getattr(self._shell, "display_pub_class", None)
        if session is None or own is None or not isinstance(self._shell.display_pub, own):
            if session is None:
                print(f"Out[{hook.prompt_count}]: {output['data'].get('text/plain', '')}")
                return True
            return False  # it is being captured
        sys.stdout.flush()
        sys.stderr.flush()
        content = {
            "execution_count": hook.prompt_count,
            "data": _shown(self._kernel, output["data"]),
            "metadata": output["metadata"],
        }
        session.send(
            hook.pub_socket, "execute_result", content, parent=hook.parent_header, ident=hook.topic
        )
        return True


class Cell:
    """A cell that has ended, by the request that ran it: messages sent later still belong to it."""

    def __init__(self, kernel: Any, parent: Any) -> None:
        self._kernel = kernel
        self._parent = parent
        self._comms = Comms(kernel)

    def _send(self, kind: str, content: Mapping[str, Any]) -> None:
        self._kernel.session.send(
            self._kernel.iopub_socket,
            kind,
            dict(content),
            parent=self._parent,
            ident=kind.encode(),
        )

    def write(self, text: str, name: str = "stderr") -> None:
        """Show text."""
        self._send("stream", {"name": name, "text": text})

    def begin_again(self) -> None:
        """Take away what has been shown."""
        self._comms.close(self._parent)
        self._send("clear_output", {"wait": False})

    def show(self, output: Mapping[str, Any]) -> None:
        """Show one output."""
        kind = output["output_type"]
        if kind == "over":
            return
        if kind == "comm":
            self._comms.send_on(output, self._parent)
            return
        content = {key: value for key, value in output.items() if key != "output_type"}
        if kind in ("display_data", "update_display_data"):
            content.setdefault("transient", {})
        self._send(kind, content)


def _kernel_of(shell: Any) -> Any:
    """The kernel with a front end; None in a terminal."""
    kernel = getattr(shell, "kernel", None)
    return kernel if hasattr(kernel, "iopub_socket") else None


def _shown(kernel: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """What the front end can show of a display."""
    return {kind: value for kind, value in data.items() if is_shown(kernel, {kind: value})}


def place_of(shell: Any) -> Place:
    """The running cell, as a place that lasts; where there is none, the terminal."""
    kernel = _kernel_of(shell)
    if kernel is None:
        return Here(shell)
    return Cell(kernel, shell.get_parent() if hasattr(shell, "get_parent") else shell.parent_header)
