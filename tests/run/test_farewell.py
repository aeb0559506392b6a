"""Jobs under MPS are let go of before they are killed, by whoever supervises them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import until
from python_programs import python_program

from gpuqueue.control import outcome
from gpuqueue.control.launch import Launcher
from gpuqueue.control.outcome import sweep
from gpuqueue.paths import Home
from gpuqueue.run import farewell
from gpuqueue.run.files import MPS, SPEC, read_claim, read_exit, write_json
from gpuqueue.run.process import alive, identify, process_table, send_signal

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="MPS is on Linux")

# it ignores being asked, so it is killed
STUBBORN = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print(os.getpid(), flush=True)\n"
    "time.sleep(600)"
)

# whom MPS has is a file, as are the commands that it is given
CONTROL = """import os, sys, time
command = sys.stdin.readline().strip()
with open("{folder}/asked", "a") as file:
    state = os.path.exists("/proc/" + open("{folder}/client").read().strip())
    file.write(f"{{command}} {{state}}\\n")
if command.startswith("terminate_client") and os.path.exists("{folder}/hang"):
    time.sleep(3600)
if command == "get_server_list":
    print(1)
if command.startswith("get_client_list") and not os.path.exists("{folder}/gone"):
    print(open("{folder}/client").read().strip())
if command.startswith("terminate_client"):
    open("{folder}/gone", "w").close()
if command.startswith("get_server_status"):
    print("FAULT" if os.path.exists("{folder}/fault") else "ACTIVE")
if command == "get_default_active_thread_percentage":
    print(25.0)
"""


@pytest.fixture
def job(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A job's directory, its attempt's, and what runs it."""
    program = tmp_path / "nvidia-cuda-mps-control"
    python_program(program, CONTROL.format(folder=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    launcher = Launcher(home, succeed=False)
    yield launcher
    launcher.close()


def start(launcher: Launcher, folder: Path, pipe: Path | None) -> tuple[Path, int]:
    """Run the stubborn program; the attempt's directory and the program's pid."""
    attempt = begin(launcher, folder, pipe, STUBBORN)
    until(lambda: (attempt / "log").exists() and (attempt / "log").read_text().strip())
    pid = int((attempt / "log").read_text())
    (folder / "client").write_text(str(pid))
    return attempt, pid


def begin(launcher: Launcher, folder: Path, pipe: Path | None, program: str) -> Path:
    """Run a program; the attempt's directory."""
    job = folder / "job"
    attempt = job / "1"
    attempt.mkdir(parents=True)
    argv = [sys.executable, "-I", "-S", "-c", program]
    write_json(job / SPEC, {"program": argv[0], "argv": argv, "cwd": str(folder), "env": {}})
    if pipe is not None:
        pipe.mkdir(parents=True)
        write_json(attempt / MPS, {"gpu": "GPU-1", "pipe": str(pipe)})
    launcher.order(
        {
            "job": 0, "job_dir": str(job), "attempt_dir": str(attempt), "env": {},
            "wake": str(job / "nobody"), "grace": 0.2, "save": 0.2, "log_limit": 4096,
        }
    )  # fmt: skip
    return attempt


def cancel(attempt: Path) -> dict:
    send_signal(read_claim(attempt), signal.SIGTERM)
    return until(lambda: read_exit(attempt))


def test_mps_lets_go_before_the_kill(job: Launcher, tmp_path: Path):
    attempt, pid = start(job, tmp_path, tmp_path / "place" / "pipe")
    assert cancel(attempt)["returncode"] == -signal.SIGKILL
    asked = (tmp_path / "asked").read_text().splitlines()
    assert f"terminate_client 1 {pid} True" in asked  # it was there still
    assert (attempt / "log").read_text() == f"{pid}\n"


def test_where_mps_hangs_it_is_killed_all_the_same(
    job: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hang").touch()
    attempt, pid = start(job, tmp_path, tmp_path / "place" / "pipe")
    assert cancel(attempt)["returncode"] == -signal.SIGKILL
    assert f"terminate_client 1 {pid} True" in (tmp_path / "asked").read_text()


def test_a_job_that_is_not_under_mps_is_just_killed(job: Launcher, tmp_path: Path):
    attempt, _ = start(job, tmp_path, None)
    assert cancel(attempt)["returncode"] == -signal.SIGKILL
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(("fault", "code"), [(True, 3), (False, 3), (True, 0)])
def test_a_fault_is_told_of_a_job_that_failed(
    job: Launcher, tmp_path: Path, fault: bool, code: int
):
    pipe = tmp_path / "place" / "pipe"
    daemon = subprocess.Popen(["sleep", "600"], env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)})
    try:
        waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
        attempt = begin(job, tmp_path, pipe, f"{waits}\nraise SystemExit({code})")
        (pipe / "nvidia-cuda-mps-control.pid").write_text(str(daemon.pid))
        (tmp_path / "client").write_text("1")
        if fault:
            (tmp_path / "fault").touch()
        (tmp_path / "go").touch()
        record = until(lambda: read_exit(attempt))
    finally:
        daemon.kill()
        daemon.wait()
    assert record["returncode"] == code
    told = record.get("fault", "")
    assert told.startswith("MPS on its GPU was in fault: ") is (fault and code != 0)


def test_where_nothing_can_be_started_it_is_killed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(*_: object, **__: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    (tmp_path / MPS).write_text(json.dumps({"gpu": "GPU-1", "pipe": "/nowhere"}))
    monkeypatch.setattr(farewell.os, "posix_spawn", refused)
    assert farewell.Farewell(str(tmp_path)).said([os.getpid()])


def zombies() -> set[int]:
    """Ended children of this process that nobody has waited for."""
    found = process_table().items()
    return {pid for pid, seen in found if seen.parent == os.getpid() and seen.state == "Z"}


def test_what_a_lost_runner_left_is_let_go_of_as_well(job: Launcher, tmp_path: Path):
    before = zombies()  # what earlier tests have left to this process
    pipe = tmp_path / "place" / "pipe"
    pipe.mkdir(parents=True)
    attempt = tmp_path / "1"
    attempt.mkdir()
    write_json(attempt / MPS, {"gpu": "GPU-1", "pipe": str(pipe)})
    words = [sys.executable, "-I", "-S", "-c", STUBBORN]
    environment = {**os.environ, "GPUQUEUE_ATTEMPT_DIR": str(attempt)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / "client").write_text(str(process.pid))
        until(lambda: sweep(attempt))
    assert process.returncode == -signal.SIGKILL
    assert f"terminate_client 1 {process.pid} True" in (tmp_path / "asked").read_text()
    assert outcome._farewells == {}
    until(lambda: zombies() <= before)


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / MPS).write_text(json.dumps({"gpu": "GPU-1", "pipe": "/nowhere"}))
    words = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(farewell, "_program", lambda _: words)
    one = farewell.Farewell(str(tmp_path))
    assert not one.said([1])
    assert one._process is not None
    try:
        assert not one.said([1])
        monkeypatch.setattr(farewell.time, "monotonic", lambda: time.perf_counter() + 1e9)
        assert one.said([1])
        assert alive(one._process)
    finally:
        send_signal(one._process, signal.SIGKILL)
        os.waitpid(one._process.pid, 0)
    assert identify(one._process.pid) is None
