"""The process in which a cell runs: a real IPython kernel, driven over two pipes.

Run by path: ``cellkernel.py FOLDER ORDERS REPORTS``, where ORDERS and REPORTS are inherited file
descriptors. What a kernel would publish goes down the REPORTS pipe instead of a socket, because a
pipe keeps what was written when the writer is killed, loses nothing when the reader is slow and
needs no connecting. Orders are JSON lines; a thread turns each into a request to the kernel's own
shell channel, so that everything a cell can do works as in a notebook.

=====================  =====================================================================
order                  what it does
=====================  =====================================================================
``{"do": "prepare"}``  make the namespace and surroundings what the ``spec`` at ``job_dir`` says
``{"do": "execute"}``  run ``source`` as a cell
``{"do": "finish"}``   save what the cell made, in ``attempt``
``{"do": "stop"}``     end the kernel
=====================  =====================================================================

Each order but the last ends with a report of type ``gpuqueue_reply``.
"""

from __future__ import annotations

import binascii
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["FRAME", "OPTIONS", "app_class", "main", "read_orders", "start"]

FRAME = 5
"""Parts of a report: header, parent header, metadata, content, buffers (in base 64); each JSON."""

OPTIONS = ("--HistoryManager.enabled=False",)
"""Of the kernel's command line."""

_NO_KEYBOARD = "a job has no keyboard: pass values as variables"


def read_orders(handle: int) -> Iterator[dict[str, Any]]:
    """Orders from a pipe until it closes."""
    with os.fdopen(handle, "rb") as file:
        for line in file:
            yield json.loads(line)


class ReportPipe:
    """Takes the place of the kernel's iopub socket; used by the kernel's iopub thread alone."""

    def __init__(self, socket: Any, handle: int) -> None:
        self._socket = socket
        self._handle = handle

    def send_multipart(self, parts: list[Any], *_: Any, **__: Any) -> None:
        """Write one message as a frame: the lengths of its parts, then the parts."""
        frames = [bytes(part) for part in parts]
        # topic, delimiter, signature, the four that matter, buffers
        at = frames.index(b"<IDS|MSG>") + 2
        end = at + FRAME - 1
        buffers = [binascii.b2a_base64(part, newline=False).decode() for part in frames[end:]]
        kept = [*frames[at:end], json.dumps(buffers).encode() if buffers else b""]
        data = b"".join(len(part).to_bytes(4, "little") for part in kept) + b"".join(kept)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._handle, view) :]
        except OSError:
            return  # nobody listens any more; this process is about to be ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class Driver:
    """Turns orders into requests to the kernel of this process. Runs in a thread of its own."""

    def __init__(self, app: Any, orders: int) -> None:
        self.app = app
        self._orders = orders
        self.order: Mapping[str, Any] = {}

    def run(self) -> None:
        """Carry out orders until there are no more, then end the kernel."""
        import zmq
        from jupyter_client.session import Session

        app = self.app
        # sockets and sessions belong to one thread
        session: Any = Session(key=app.session.key, signature_scheme=app.session.signature_scheme)
        shell: Any = zmq.Context.instance().socket(zmq.DEALER)
        shell.linger = 0
        shell.connect(f"ipc://{app.ip}-{app.shell_port}")
        for order in read_orders(self._orders):
            if order["do"] == "stop":
                break
            content = self._content(order)
            request = session.send(shell, "execute_request", content)
            while True:
                _, reply = session.recv(shell, mode=0)
                if reply and reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                    break
            app.session.send(
                app.iopub_socket,
                "gpuqueue_reply",
                {"do": order["do"], "request": request["header"]["msg_id"], **_brief(reply)},
            )
        app.io_loop.add_callback(app.io_loop.stop)

    def _content(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if order["do"] == "execute":
            code, silent = order["source"], False
        else:
            self.order = order
            module = order.get("module", "gpuqueue.run.cellwork")
            code = f"__import__({module!r}, fromlist=['_']).{order['do']}()"
            silent = True
        return {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }


def _brief(reply: Mapping[str, Any]) -> dict[str, Any]:
    content = reply["content"]
    return {key: content[key] for key in ("status", "ename", "evalue") if key in content}


def _refuse(*_: Any, **__: Any) -> Any:
    from IPython.core.error import StdinNotImplementedError

    raise StdinNotImplementedError(_NO_KEYBOARD)


def _send_at_once(iopub: Any) -> None:
    """Have what the iopub thread itself sends written before it goes on.

    It would put it at the end of its own list of things to do, so that a process that flushes its
    output and is killed at once would still lose it.
    """
    import threading

    later = iopub.send_multipart

    def send_multipart(*args: Any, **words: Any) -> None:
        if threading.current_thread() is iopub.thread:
            iopub._really_send(*args, **words)  # noqa: SLF001
        else:
            later(*args, **words)

    iopub.send_multipart = send_multipart


def app_class() -> Any:
    """The application; its ``reports`` is the descriptor that reports are written to."""
    from ipykernel.kernelapp import IPKernelApp

    class CellKernelApp(IPKernelApp):
        """A kernel whose iopub channel is a pipe."""

        reports = -1

        def init_iopub(self, context: Any) -> None:
            super().init_iopub(context)  # type: ignore[no-untyped-call]
            self.iopub_thread.socket = ReportPipe(self.iopub_thread.socket, self.reports)
            _send_at_once(self.iopub_thread)

    return CellKernelApp


def main() -> None:
    """Be the kernel of one cell."""
    folder, orders, reports = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if root not in sys.path:
        sys.path.append(root)
    for handle in (orders, reports):
        os.set_inheritable(handle, False)  # noqa: FBT003
    start(app_class().instance(), folder, orders, reports)


def start(app: Any, folder: str, orders: int, reports: int) -> None:
    """Make the application a kernel that carries out orders, until there are no more."""
    import atexit
    import threading

    # nobody can attach a debugger here; to look for one costs time and prints warnings
    debugger = sys.modules.pop("debugpy", None)
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    app.reports = reports
    app.initialize(["-f", os.path.join(folder, "kernel.json"), *OPTIONS])
    del sys.modules["debugpy"]
    if debugger is not None:
        sys.modules["debugpy"] = debugger
    # it waits for threads that may wait for it; nothing here needs an orderly end but the user's
    # own exit handlers
    atexit.unregister(app.close)
    kernel = app.kernel
    kernel.raw_input = kernel.getpass = sys.breakpointhook = _refuse
    from gpuqueue.run import cellwork

    driver = Driver(app, orders)
    cellwork.setup(kernel.shell, driver)
    app.session.send(app.iopub_socket, "gpuqueue_ready", {"pid": os.getpid()})
    threading.Thread(target=driver.run, name="gpuqueue", daemon=True).start()
    app.start()


if __name__ == "__main__":
    main()
