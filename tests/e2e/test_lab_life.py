"""What becomes of the queue when a Jupyter server comes and goes, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import lead_process, leads_of, until
from lab_server import Server, said, server

from gpuqueue.client import LocalClient
from gpuqueue.model import TERMINAL, JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, marked

if os.name != "posix":
    pytest.skip("signals and /proc", allow_module_level=True)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that lets the job of ``held`` end."""
    return tmp_path / "gate"


def held(gate: Path, code: int) -> str:
    """A shell line that runs until its gate opens, and then ends with a code."""
    return f"echo begun; while ! test -e '{gate}'; do sleep 0.05; done; echo done; exit {code}"


def state(client: LocalClient, job: int) -> JobState:
    return client.job(job).state


def ours(home: Home) -> dict[int, str]:
    """Processes that serve this state directory: pid to command line, zombies included."""
    found = {}
    for pid in marked("GPUQUEUE_HOME", str(home.root)):
        if pid == os.getpid():
            continue
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def zombies_of(pid: int) -> list[str]:
    lines = subprocess.run(
        ["ps", "-o", "stat=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return [line for line in lines if line.startswith("Z")]


def stop_by(how: str, made: Server) -> None:
    """End a server in one of the ways that people do."""
    if how == "jupyter server stop":
        places = {"JUPYTER_RUNTIME_DIR": str(made.folder / "jupyter_runtime_dir")}
        command = [sys.executable, "-m", "jupyter", "server", "stop", str(made.port)]
        stopping = subprocess.Popen(command, env={**os.environ, **places})
        made.process.wait(60)  # which also lets that command see that it has ended
        assert stopping.wait(60) == 0
    else:
        made.end(getattr(signal, how))


@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "jupyter server stop"])
def test_jobs_survive_the_stop_of_the_server(
    how: str, home: Home, client: LocalClient, tmp_path: Path, gate: Path
) -> None:
    with server(home, tmp_path / "work") as made:
        until(made.leads)
        running = made.submit(held(gate, 7), preset="exclusive")
        waiting = made.submit("exit 3", preset="exclusive")
        _, kernel = made.ask("POST", "api/kernels", {})
        assert kernel["id"]
        until(lambda: state(client, running) is JobState.RUNNING)
        stop_by(how, made)
    until(lambda: lead_process(home), what="a lead in the background")
    assert len(leads_of(home)) == 1
    job = client.job(running)
    assert job.state is JobState.RUNNING
    assert alive(job.process)
    # the kernel and the server's own helpers are gone: what is left serves the job or leads
    until(
        lambda: all(
            "gpuqueue.control.headless" in words
            or "gpuqueue.run.launcher" in words
            or words.startswith(("/usr/bin/sh", "/bin/sh", "sleep"))
            for words in ours(home).values()
        ),
        what="helpers end",
    )
    assert not [line for lead in leads_of(home) for line in zombies_of(lead)]
    gate.touch()
    until(lambda: client.job(waiting).state in TERMINAL)
    assert client.job(running).returncode == 7
    assert client.job(waiting).returncode == 3
    assert client.log_path(client.job(running)).read_text() == "begun\ndone\n"


def test_a_server_that_starts_again_finds_its_jobs(
    home: Home, client: LocalClient, tmp_path: Path, gate: Path
) -> None:
    with server(home, tmp_path / "one") as made:
        until(made.leads)
        job = made.submit(held(gate, 0))
        until(lambda: state(client, job) is JobState.RUNNING)
        made.end()
    with server(home, tmp_path / "two") as made:
        assert made.api("GET", f"jobs/{job}")["state"] == "running"
        assert made.api("GET", "status")["lead"]["kind"] == "headless"
        gate.touch()
        until(lambda: made.api("GET", f"jobs/{job}")["returncode"] == 0)
        log = made.api("GET", f"jobs/{job}/log")
        assert log["text"] == "begun\ndone\n"


def test_two_servers_have_one_lead_and_the_other_takes_over(
    home: Home, client: LocalClient, tmp_path: Path, gate: Path
) -> None:
    with server(home, tmp_path / "one") as one, server(home, tmp_path / "two") as two:
        until(lambda: one.leads() or two.leads())
        lead, other = (one, two) if one.leads() else (two, one)
        assert not other.leads()
        assert other.api("GET", "status")["lead"]["pid"] == lead.pid
        running = other.submit(held(gate, 7))
        until(lambda: state(client, running) is JobState.RUNNING)
        process = client.job(running).process

        lead.end(signal.SIGKILL)
        began = time.monotonic()
        until(other.leads, timeout=10)
        assert time.monotonic() - began < 10
        assert client.job(running).process == process
        assert alive(process)
        gate.touch()
        until(lambda: client.job(running).state in TERMINAL)
        assert client.job(running).returncode == 7
        assert other.submit("true")
        until(lambda: not leads_of(home), what="the stand-in gives way")
        assert other.leads()


def test_an_exit_while_nobody_leads_is_found_later(
    home: Home, client: LocalClient, tmp_path: Path, gate: Path
) -> None:
    with server(home, tmp_path / "one") as made:
        until(made.leads)
        job = made.submit(held(gate, 7))
        until(lambda: state(client, job) is JobState.RUNNING)
        made.end(signal.SIGKILL)
    process = client.job(job).process
    gate.touch()
    until(lambda: not alive(process))
    with server(home, tmp_path / "two") as made:
        until(lambda: made.api("GET", f"jobs/{job}")["returncode"] == 7)


def test_a_cell_of_the_servers_kernels_finds_the_same_queue(
    home: Home, client: LocalClient, tmp_path: Path
) -> None:
    with server(home, tmp_path / "work") as made:
        until(made.leads)
        with made.kernel() as kernel:
            code = "import gpuqueue; print(gpuqueue.submit(['true']).wait())"
            assert said(kernel, code) == "0"
        assert len(made.api("GET", "jobs")["jobs"]) == 1
        assert leads_of(home) == []


def test_the_extension_is_enabled_by_installing_it() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter", "server", "extension", "list"],
        capture_output=True,
        text=True,
        check=True,
    )
    words = listed.stdout + listed.stderr
    assert "gpuqueue_jupyter" in words
    line = next(line for line in words.splitlines() if "gpuqueue_jupyter" in line)
    assert "enabled" in line
    assert any("gpuqueue_jupyter" in line and "OK" in line for line in words.splitlines())


def test_the_extension_is_imported_quickly() -> None:
    code = (
        "import jupyter_server.serverapp, sys, time; began = time.process_time();"
        "import gpuqueue_jupyter; gpuqueue_jupyter._jupyter_server_extension_points();"
        "took = time.process_time() - began; assert took < 0.25, took;"
        "slow = {'pynvml', 'gpuqueue.client', 'gpuqueue.store', 'gpuqueue.control'};"
        "assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_state_that_cannot_be_used_does_not_keep_a_server_from_starting(
    home: Home, tmp_path: Path
) -> None:
    no_home = tmp_path / "a file"
    no_home.write_text("")
    with server(home, tmp_path / "work", env={"GPUQUEUE_HOME": str(no_home)}) as made:
        status, answer = made.ask("GET", "gpuqueue/api/v1/status")
        assert status == 503
        assert str(no_home) in answer["message"]
        log = made.log.read_text()
    assert log.count("cannot be created") == 1
