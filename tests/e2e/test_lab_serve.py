"""``jupyter gpuqueue serve``: the extension in a server that is nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import lead_process, until
from lab_server import TOKEN, free_port, server

from gpuqueue.client import LocalClient
from gpuqueue.model import TERMINAL, JobState
from gpuqueue.paths import Home

SERVE = ["-m", "gpuqueue_jupyter", "--port={port}"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A start that is refused."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "gpuqueue_jupyter", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_serves_the_queue_and_nothing_else(home: Home, tmp_path: Path) -> None:
    with server(home, tmp_path / "work", *SERVE) as made:
        until(made.leads)
        assert made.api("GET", "status")["lead"]["kind"] == "serve"
        job = made.submit("echo served")
        until(lambda: made.api("GET", f"jobs/{job}/log")["text"] == "served\n")
        for path in ("api/kernels", "api/contents", "api/terminals", "api/sessions", "lab"):
            assert made.ask("GET", path)[0] == 404, path
        assert made.ask("POST", "api/kernels", {})[0] in (403, 404, 405)


def test_it_leads_at_its_address(home: Home, client: LocalClient, tmp_path: Path) -> None:
    with server(home, tmp_path / "work", *SERVE) as made:
        until(lambda: client.lead() is not None and client.lead()["url"] == made.url)


def test_another_port_than_it_meant_is_told(
    home: Home, client: LocalClient, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpuqueue_jupyter", f"--port={port}"],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")},
        )
        try:
            url = f"http://127.0.0.1:{port}/"
            until(lambda: client.lead() and client.lead()["url"] not in ("", url))
        finally:
            process.terminate()
            process.wait(30)


def test_sigterm_ends_it_and_leaves_the_jobs(
    home: Home, client: LocalClient, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with server(home, tmp_path / "work", *SERVE) as made:
        until(made.leads)
        job = made.submit(f"while ! test -e '{gate}'; do sleep 0.05; done; exit 4")
        until(lambda: client.job(job).state is JobState.RUNNING)
        assert made.end(signal.SIGTERM) == 0
        assert "Traceback" not in made.log.read_text()
    until(lambda: lead_process(home))
    gate.touch()
    until(lambda: client.job(job).state in TERMINAL)
    assert client.job(job).returncode == 4


def test_the_token_is_not_written_into_a_log(home: Home, tmp_path: Path) -> None:
    import json

    runtime, log = tmp_path / "runtime", tmp_path / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpuqueue_jupyter", f"--port={free_port()}"],
            stdout=output,
            stderr=output,
            env={k: v for k, v in os.environ.items() if k != "JUPYTER_TOKEN"}
            | {"JUPYTER_RUNTIME_DIR": str(runtime)},
        )
    try:
        file = until(lambda: next(runtime.glob("jpserver-*.json"), None), what="a server")
        until(lambda: "is served at" in log.read_text())
        # (there is a moment in which that file is empty)
        token = json.loads(until(file.read_text, what="the server's file is written"))["token"]
        assert len(token) > 20
        assert token not in log.read_text()
        assert not list(runtime.glob("*.html"))
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("ip", ["0.0.0.0", "", "*", "::", "192.0.2.1"])
def test_other_machines_are_refused_without_tls(home: Home, ip: str) -> None:
    refused = run(f"--ip={ip}", "--port=18238", JUPYTER_TOKEN=TOKEN)
    assert refused.returncode == 1
    assert "--certfile" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_no_token_is_refused(home: Home) -> None:
    for refused in (run("--IdentityProvider.token=", "--port=18239"),):
        assert refused.returncode == 1
        assert "token" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_pretend_gpus_by_an_option(home: Home, tmp_path: Path) -> None:
    with server(home, tmp_path / "work", *SERVE, "--fake=1xH100:80G") as made:
        until(made.leads)
        (gpu,) = made.api("GET", "gpus")["gpus"]
        assert (gpu["name"], gpu["memory"]) == ("H100", 80 * 2**30)
    assert "--fake: 'lots' is not a pretend GPU" in run("--fake=lots").stderr


def test_a_wrong_port_is_refused(home: Home) -> None:
    assert run("--port=99999").returncode == 1
    assert run("--port=x").returncode == 2


def test_with_port_0_nothing_listens(home: Home, client: LocalClient) -> None:
    home.config.write_text("ui_port = 0\n")
    process = subprocess.Popen([sys.executable, "-P", "-m", "gpuqueue_jupyter"])
    try:
        until(lambda: client.lead() is not None)
        assert client.lead()["kind"] == "headless"
        assert client.lead()["url"] == ""
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_a_state_that_cannot_be_used_is_one_sentence(home: Home, tmp_path: Path) -> None:
    no_home = tmp_path / "a file"
    no_home.write_text("")
    refused = run(GPUQUEUE_HOME=str(no_home))
    assert refused.returncode == 1
    assert str(no_home) in refused.stderr
    assert "Traceback" not in refused.stderr
