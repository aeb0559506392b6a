"""Real servers in other places than a port at ``/``: below a prefix, on a socket, behind TLS."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates
from conftest import leads_of, until
from lab_server import TOKEN, jupyter, said, server

from gpuqueue.client import LocalClient
from gpuqueue.paths import Home

BASE = "/user/ann%40lab/x%20y/"
SERVE = ["-m", "gpuqueue_jupyter", "--port={port}"]
SUBMIT = """
import gpuqueue
job = gpuqueue.submit("echo run >> '{runs}'", preset="exclusive")
print(job.id)
"""


def hub(name: str = "ann@lab") -> dict[str, str]:
    """What JupyterHub tells a user's server and its kernels, as far as it could matter here."""
    return {
        "JUPYTERHUB_USER": name,
        "JUPYTERHUB_SERVICE_PREFIX": BASE,
        "JUPYTERHUB_BASE_URL": "/",
        "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
        "JUPYTERHUB_API_TOKEN": "not-a-token",
    }


def test_a_person_on_a_hub_is_one_owner(home: Home, tmp_path: Path) -> None:
    command = jupyter(base=BASE)
    with server(home, tmp_path / "work", *command, base=BASE, env=hub()) as made:
        until(made.leads)
        by_rest = made.submit("true")
        with made.kernel() as kernel:
            code = "import gpuqueue; job = gpuqueue.submit(['true']); job.wait(); print(job.id)"
            by_kernel = int(said(kernel, code))
            cell = "%%gpu --cpu\nprint('in the cell')"
            assert "in the cell" in said(kernel, cell)
        jobs = made.api("GET", "jobs")["jobs"]
    assert {by_rest, by_kernel} < {job["id"] for job in jobs}
    assert {job["owner"] for job in jobs} == {"ann@lab"}


def test_servers_at_two_addresses_share_one_queue(
    home: Home, client: LocalClient, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    code = SUBMIT.format(runs=runs)
    with (
        server(home, tmp_path / "one", *jupyter(base=BASE), base=BASE, env=hub()) as one,
        server(home, tmp_path / "two", *jupyter(base="/two/"), base="/two/", env=hub()) as two,
        one.kernel() as first,
        two.kernel() as second,
    ):
        until(lambda: one.leads() or two.leads())
        jobs = []
        for _ in range(3):
            jobs += [int(said(kernel, code)) for kernel in (first, second)]
            jobs += [
                made.submit(f"echo run >> '{runs}'", preset="exclusive") for made in (one, two)
            ]
            assert one.leads() != two.leads()
        until(lambda: all(client.job(job).returncode == 0 for job in jobs))
        listed = [made.api("GET", "jobs")["jobs"] for made in (one, two)]
        assert leads_of(home) == []
    assert listed[0] == listed[1]
    assert len(set(jobs)) == 12
    assert {client.job(job).attempt for job in jobs} == {1}
    assert runs.read_text() == "run\n" * 12


class _OnSocket(http.client.HTTPConnection):
    """HTTP to a UNIX socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def _status(path: str) -> Any:
    connection = _OnSocket(path)
    try:
        headers = {"Authorization": f"token {TOKEN}"}
        connection.request("GET", "/gpuqueue/api/v1/status", headers=headers)
        return json.loads(connection.getresponse().read())
    except OSError:
        return None
    finally:
        connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no UNIX sockets")
def test_the_queue_alone_on_a_unix_socket(home: Home, client: LocalClient, tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "queue")  # the whole path may be too long for a socket
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuqueue_jupyter", f"--sock={path}"],
        env={**os.environ, "JUPYTER_TOKEN": TOKEN, "JUPYTER_RUNTIME_DIR": str(tmp_path / "run")},
    )
    try:
        status = until(lambda: _status(path), what="a server on the socket")
        assert len(status["gpus"]) == 2
        until(lambda: (client.lead() or {}).get("url", "").startswith("http+unix://"))
        assert not os.stat(path).st_mode & 0o077
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_a_socket_is_instead_of_a_port(home: Home) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "gpuqueue_jupyter", "--sock=queue", "--port=18240"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert "leave out --port" in refused.stderr


def test_the_queue_alone_with_a_certificate_of_ones_own(
    home: Home, client: LocalClient, tmp_path: Path, certificates: Certificates
) -> None:
    command = [
        *SERVE, "--ip=0.0.0.0", f"--certfile={certificates.certificate}",
        f"--keyfile={certificates.key}", f"--ServerApp.base_url={BASE}",
    ]  # fmt: skip
    authority = certificates.authority
    with server(home, tmp_path / "work", *command, base=BASE, authority=authority) as made:
        until(made.leads)
        job = made.submit("echo safe")
        until(lambda: made.api("GET", f"jobs/{job}/log")["text"] == "safe\n")
        until(lambda: (client.lead() or {}).get("url", "").startswith("https://"))
