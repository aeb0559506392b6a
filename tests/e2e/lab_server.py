"""Real Jupyter servers for tests, each with folders of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conftest import until

from gpuqueue.paths import Home

if TYPE_CHECKING:
    import jupyter_client

TOKEN = "for-tests-only"


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server in a process of its own, in a session of its own."""

    def __init__(
        self,
        home: Home,
        folder: Path,
        *command: str,
        base: str = "/",
        env: Mapping[str, str] | None = None,
        authority: Path | None = None,
        python: str = sys.executable,
    ) -> None:
        self.home, self.folder, self.base = home, folder, base
        self.tls = None if authority is None else ssl.create_default_context(cafile=authority)
        self.port = free_port()
        self.log = folder / f"server-{self.port}.log"
        folder.mkdir(exist_ok=True)
        words = [word.replace("{port}", str(self.port)) for word in command]
        names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        places = {name: str(folder / name.lower()) for name in names}
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                [python, "-P", *words],
                cwd=folder,
                env={
                    **os.environ,
                    **places,
                    "GPUQUEUE_HOME": str(home.root),
                    "JUPYTER_TOKEN": TOKEN,
                    "JUPYTER_PREFER_ENV_PATH": "1",
                    **(env or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(self._up, what=f"a server at {self.url}")

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{self.base}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def _up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        try:
            return self.ask("GET", "api/status")[0] == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an address below the base URL."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.tls) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            content = error.read()
            with contextlib.suppress(ValueError):
                return error.code, json.loads(content)
            return error.code, content.decode(errors="replace")

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """JSON of an address of gpuqueue's; anything but success fails."""
        status, answer = self.ask(method, f"gpuqueue/api/v1/{path}", body)
        assert status in (200, 201), (status, answer)
        return answer

    def submit(self, command: Any, **options: Any) -> int:
        """A job's number."""
        return int(self.api("POST", "jobs", {"command": command, "options": options})["id"])

    def leads(self) -> bool:
        return bool(self.api("GET", "status")["server"]["leading"])

    @contextlib.contextmanager
    def kernel(self) -> Iterator[jupyter_client.BlockingKernelClient]:
        """A new kernel of this server, ready."""
        import jupyter_client

        _, kernel = self.ask("POST", "api/kernels", {})
        runtime = self.folder / "jupyter_runtime_dir"
        file = until(lambda: next(runtime.glob(f"kernel-{kernel['id']}*.json"), None))
        talk = jupyter_client.BlockingKernelClient(connection_file=str(file))
        talk.load_connection_file()
        talk.start_channels()
        try:
            until(lambda: _ready(talk), what="a kernel answers")
            yield talk
        finally:
            talk.stop_channels()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait until it has ended; its exit code."""
        if self.process.poll() is None:
            os.kill(self.pid, number)
        return self.process.wait(60)


def _ready(kernel: jupyter_client.BlockingKernelClient) -> bool:
    try:
        kernel.wait_for_ready(60)
    except RuntimeError:
        return False  # on a busy machine a kernel that is slow to start passes for dead
    return True


def said(kernel: jupyter_client.BlockingKernelClient, code: str) -> str:
    """What a kernel prints when it runs code, which must succeed."""
    words: list[str] = []
    reply = kernel.execute_interactive(
        code,
        timeout=60,
        output_hook=lambda message: words.append(message["content"].get("text", "")),
    )
    assert reply["content"]["status"] == "ok", reply
    return "".join(words).strip()


def jupyter(kind: str = "server", *options: str, base: str = "/") -> list[str]:
    """The command of a Jupyter server with the extension as it is installed."""
    return [
        "-m", "jupyter", kind, "--allow-root", "--no-browser", "--port={port}",
        f"--ServerApp.base_url={base}", "--ServerApp.port_retries=0", *options,
    ]  # fmt: skip


@contextlib.contextmanager
def server(
    home: Home, folder: Path, *command: str, base: str = "/", **how: Any
) -> Iterator[Server]:
    """A server that is there for a while."""
    made = Server(home, folder, *(command or jupyter(base=base)), base=base, **how)
    try:
        yield made
    finally:
        made.end()
