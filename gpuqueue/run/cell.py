"""The payload of a ``cell`` job: run a cell in an IPython kernel of its own and keep its outputs.

This process only looks after the kernel (``cellkernel.py``): it starts it, gives it its orders,
writes down what it reports, passes interrupts on and notices its death.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from gpuqueue.run.cellkernel import FRAME
from gpuqueue.run.celloutput import STREAM_LIMIT, Outputs
from gpuqueue.run.cellwork import VALUES
from gpuqueue.run.files import OUTPUTS, read_json, write_json
from gpuqueue.run.kernels import remove_when_told_to_end, short_folder

__all__ = ["CellKernel", "CellRun", "Process", "leave", "run", "start_fresh"]

_STOP_PATIENCE = 10.0
_PORTS = ("shell", "iopub", "stdin", "control", "hb")


class Process(Protocol):
    """What is needed of ``subprocess.Popen``."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for its end; its exit code."""

    def kill(self) -> None:
        """End it, if it still runs."""


Start = Callable[[str, int, int], Process]
"""Starts a kernel, given its folder and the descriptors for orders and reports."""


def start_fresh(folder: str, orders: int, reports: int) -> Process:
    """Start a kernel in an interpreter of its own."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cellkernel.py")
    return subprocess.Popen(
        [sys.executable, "-P", script, folder, str(orders), str(reports)],
        pass_fds=(orders, reports),
        env={**os.environ, "JPY_PARENT_PID": str(os.getpid())},
        # as a server starts kernels: an interrupt goes to the kernel and its children
        start_new_session=True,
    )


class CellKernel:
    """A kernel process and the two pipes to it.

    Attributes
    ----------
    process
        The kernel's process.
    """

    def __init__(self, start: Start = start_fresh) -> None:
        # paths of sockets are limited to about 100 bytes, so not in the job's directory
        self.folder = tempfile.mkdtemp(prefix="gq-", dir=short_folder())
        connection: dict[str, Any] = {
            f"{name}_port": number for number, name in enumerate(_PORTS, 1)
        }
        connection |= {
            "transport": "ipc",
            "ip": os.path.join(self.folder, "k"),
            "key": os.urandom(16).hex(),
            "signature_scheme": "hmac-sha256",
        }
        write_json(os.path.join(self.folder, "kernel.json"), connection, flush=False)
        orders, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        self._wake, self._gone = os.pipe()
        self.process = start(self.folder, orders, reports)
        os.close(orders)
        os.close(reports)
        os.set_blocking(self._reports, False)
        self._buffer = bytearray()
        self._closed = False
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        self.process.wait()
        os.write(self._gone, b".")

    def order(self, do: str, **words: Any) -> None:
        """Give an order; nothing happens if the kernel is gone."""
        with contextlib.suppress(OSError):
            os.write(self._orders, json.dumps({"do": do, **words}).encode() + b"\n")

    def interrupt(self) -> None:
        """As Ctrl-C would, to the kernel and the processes it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGINT)

    def reports(self, wakeup: int) -> list[dict[str, Any]] | None:
        """Wait for reports; an empty list after a signal, None once the kernel is gone."""
        while True:
            if found := self._frames():
                return found
            ready, _, _ = select.select([self._reports, self._wake, wakeup], [], [], 1.0)
            if self._reports in ready and self._fill():
                continue
            if wakeup in ready:
                os.read(wakeup, 4096)
                return []
            if self._wake in ready:
                return None  # and the pipe is empty: what the kernel wrote has been read

    def _fill(self) -> bool:
        try:
            data = os.read(self._reports, 1 << 20)
        except BlockingIOError:
            return False
        self._buffer += data
        self._closed = not data
        return bool(data)

    def _frames(self) -> list[dict[str, Any]]:
        found, buffer = [], self._buffer
        while len(buffer) >= 4 * FRAME:
            sizes = [int.from_bytes(buffer[i * 4 : i * 4 + 4], "little") for i in range(FRAME)]
            end = 4 * FRAME + sum(sizes)
            if len(buffer) < end:
                break
            parts, start = [], 4 * FRAME
            for size in sizes:
                # text that is none, such as half of a pair of surrogates, is written as it is
                text = buffer[start : start + size].decode(errors="replace")
                parts.append(json.loads(text or "{}"))
                start += size
            del buffer[:end]
            header, parent, metadata, content, buffers = parts
            found.append(
                {
                    "type": header["msg_type"],
                    "request": parent.get("msg_id", ""),
                    "metadata": metadata,
                    "content": content,
                    "buffers": buffers or [],
                }
            )
        return found

    def stop(self) -> None:
        """Ask it to end, then end it; its sockets are removed.

        One that was forked says, by closing its reports, that all that is left to do is to leave.
        The system then takes its memory apart beside this process's own; the runner waits for both.
        """
        self.order("stop")
        deadline = time.monotonic() + _STOP_PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            ready, _, _ = select.select([self._reports, self._wake], [], [], 0.2)
            if self._reports in ready:
                self._fill()
                self._buffer.clear()
            if self._closed or self._wake in ready:
                break
        if not self._closed and self.process.poll() is None:
            self.process.kill()
        self.remove()

    def remove(self) -> None:
        """Remove its sockets."""
        shutil.rmtree(self.folder, ignore_errors=True)


class CellRun:
    """One run of one cell, from start to exit code.

    Parameters
    ----------
    spare
        A kernel that is ready, to take instead of a fresh one.
    words
        What to tell that one besides when it is to prepare for the cell.
    """

    def __init__(
        self,
        job_dir: str,
        attempt: str,
        spec: Mapping[str, Any],
        spare: CellKernel | None = None,
        words: Mapping[str, Any] | None = None,
    ) -> None:
        self.job_dir = job_dir
        self.attempt = attempt
        self.spec = spec
        self.interrupts = 0
        self.executing = False
        self._wakeup, self._wakeup_end = os.pipe()
        os.set_blocking(self._wakeup_end, False)
        signal.set_wakeup_fd(self._wakeup_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._words = words or {}
        self._ready = spare is not None and spare.process.poll() is None
        self.kernel = spare if spare is not None and self._ready else CellKernel()
        remove_when_told_to_end(self.kernel.folder)
        limit = spec.get("shown", STREAM_LIMIT)
        self.outputs = Outputs(os.path.join(attempt, OUTPUTS), limit=limit)

    def _on_interrupt(self, *_: Any) -> None:
        self.interrupts += 1
        if self.executing:
            self.kernel.interrupt()

    def run(self) -> int:
        """Do all of it; the exit code, negative for the signal that ended the kernel."""
        kernel = self.kernel
        if not self._ready and not self._await("gpuqueue_ready"):
            return self._dead_or_interrupted()
        words = self._words if self._ready else {}
        kernel.order("prepare", job_dir=self.job_dir, attempt=self.attempt, **words)
        prepared = self._await("gpuqueue_reply")
        kernel.remove()  # all that need its sockets are connected
        if not prepared:
            return self._dead_or_interrupted()
        if prepared["content"]["status"] != "ok":
            return self._not_prepared(prepared["content"])
        if self.interrupts:
            return self._dead_or_interrupted()
        self.executing = True
        kernel.order("execute", source=self.spec["source"])
        done = self._await("gpuqueue_reply")
        self.executing = False
        if not done:
            return self._dead()
        content = done["content"]
        self.outputs.flush()
        kernel.order("finish", attempt=self.attempt)
        finished = self._await("gpuqueue_reply", patient=True)
        self.outputs.close()
        reason = ""
        # an error while its value was shown is no exception of the cell; the kernel says "NoneType"
        if content["status"] != "ok" and content.get("ename") != "NoneType":
            reason = f"{content.get('ename')}: {content.get('evalue')}".rstrip(": ")
        if not finished:
            reason = reason or "its kernel ended while it saved what the cell made"
        elif finished["content"]["status"] != "ok":
            told = finished["content"]
            reason = reason or f"what it made could not be saved ({told.get('evalue')})"
        self._record(reason)
        kernel.stop()
        if not reason:
            return 0
        return 130 if content.get("ename") == "KeyboardInterrupt" else 1

    def _await(self, kind: str, *, patient: bool = False) -> dict[str, Any] | None:
        """Write down reports until one of that kind comes; None if the kernel is gone.

        An interrupt before the cell runs gives None too: there is nothing yet to interrupt.
        """
        reply: dict[str, Any] | None = None
        request = ""
        idle: set[str] = set()
        while True:
            reports = self.kernel.reports(self._wakeup)
            if reports is None:
                return None
            for report in reports:
                if report["type"] == "status":
                    if report["content"].get("execution_state") == "idle":
                        idle.add(report["request"])
                elif report["type"] == kind:
                    reply, request = report, report["content"].get("request", "")
                elif report["type"] == "execute_input":
                    if self.interrupts and self.executing:
                        self.kernel.interrupt()  # it came just before there was something to stop
                else:
                    self.outputs.take(report)
            # what the cell printed last comes before it is idle, and that may come after the reply
            if reply is not None and (not request or request in idle):
                return reply
            if self.interrupts and not self.executing and not patient:
                return None

    def _dead_or_interrupted(self) -> int:
        if self.interrupts and self.kernel.process.poll() is None:
            self.outputs.error(
                "KeyboardInterrupt",
                "",
                ["KeyboardInterrupt: the job was interrupted before the cell ran"],
            )
            self.outputs.close()
            self._record("KeyboardInterrupt")
            self.kernel.process.kill()
            self.kernel.remove()
            return 130
        return self._dead()

    def _not_prepared(self, content: Mapping[str, Any]) -> int:
        reason = f"what the cell needs could not be loaded in the job: {content.get('evalue')}"
        self.outputs.error(
            content.get("ename", "Error"), reason, [f"{content.get('ename')}: {reason}"]
        )
        self.outputs.close()
        self._record(reason)
        self.kernel.stop()
        return 1

    def _dead(self) -> int:
        code = self.kernel.process.wait()
        self.outputs.close()
        self.kernel.remove()
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            reason = f"its process was ended by {name} (signal {-code})"
            if -code == signal.SIGKILL:
                reason += "; most often the machine was out of memory and the system ended it"
            elif -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE):
                reason += "; a library written in C crashed"
            self._record(reason)
            return code
        self._record(f"its process ended with exit code {code} before the cell was over")
        return code or 1

    def _record(self, reason: str) -> None:
        told = read_json(os.path.join(self.attempt, VALUES)) or {}
        write_json(
            os.path.join(self.attempt, "outcome.json"),
            {
                "reason": reason[:2000],
                "names": told.get("names", []),
                "problems": told.get("problems", {}),
                "deleted": told.get("deleted", []),
                "where": told.get("where", {}),
                "sources": told.get("sources", {}),
                "unpatched": told.get("unpatched", []),
                "peak": told.get("peak"),
                "out_of_memory": told.get("out_of_memory", False),
                "flushed": told.get("flushed"),
            },
            flush=not self.spec.get("waited"),  # as the result that it is about
        )


def leave(code: int) -> NoReturn:
    """End this process as the kernel ended: with that exit code, or of that signal."""
    sys.stdout.flush()
    if code < 0:
        # end as the kernel did, so that the job's exit code tells; one core file is enough
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code
    sys.exit(code)


def run(job_dir: str, attempt: str, spec: Mapping[str, Any]) -> NoReturn:
    """Run the cell; exit 0 if it raised nothing, 1 if it did, 130 if it was interrupted."""
    leave(CellRun(job_dir, attempt, spec).run())
