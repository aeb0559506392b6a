"""Programs that are run for so long and no longer."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import until

from gpuqueue.run import limited
from gpuqueue.run.limited import run_limited
from gpuqueue.run.process import alive, identify

_PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.PIPE}


@pytest.fixture
def immortal(monkeypatch):
    """Programs that no signal reaches, as inside a driver; they end with the test."""
    monkeypatch.setattr(limited, "_LAST", 0.01)
    kill, made = subprocess.Popen.kill, []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: made.append(process))
    yield made
    for process in made:
        kill(process)


def test_what_it_says_and_how_it_ends():
    code = "import sys; print(sys.stdin.read()); sys.exit(3)"
    done = run_limited([sys.executable, "-c", code], 60, said="abc", text=True, **_PIPES)
    assert (done.returncode, done.stdout, done.stderr) == (3, "abc\n", "")
    with pytest.raises(FileNotFoundError):
        run_limited(["/no/such/program"], 60)


def test_one_that_takes_too_long_is_killed():
    words = [
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(600)",
    ]
    with pytest.raises(subprocess.TimeoutExpired) as found:
        run_limited(words, 5, **_PIPES)
    pid = int(found.value.stdout or 0)
    assert pid
    assert identify(pid) is None


def test_one_that_cannot_be_killed_is_left_behind_and_collected(immortal):
    with pytest.raises(subprocess.TimeoutExpired):
        run_limited(["sleep", "600"], 0.1, **_PIPES)
    (process,) = immortal
    living = identify(process.pid)
    assert living is not None
    assert alive(living)
    process.send_signal(9)
    until(lambda: identify(process.pid) != living)  # no zombie stays
