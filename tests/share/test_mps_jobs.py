"""Jobs of the queue under MPS, end to end: a real controller, MPS and a driver without a GPU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import until
from mps_stage import drivers, install
from share_cards import HERE, needs_compiler

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.holding import FACT
from gpuqueue.model import TERMINAL, JobState
from gpuqueue.paths import Home
from gpuqueue.share.mps.daemon import running
from gpuqueue.share.mps.place import place_of

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers"]

SMS = "n = c_int(); cu('cuDeviceGetAttribute', byref(n), 16, 0); say(n.value)"


class Machine:
    """A machine with one GPU of this test's own, and what MPS was told there."""

    def __init__(self, client: LocalClient, gpu: str, notes: Path) -> None:
        self.client = client
        self.place = place_of(gpu)
        self.notes = notes

    @property
    def log(self) -> str:
        return (self.notes / "log").read_text()


@pytest.fixture
def machine(
    home: Home, drivers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: LocalClient
) -> Iterator[Machine]:
    gpu = f"GPU-{uuid.uuid4()}"  # the daemon's place is this user's, whoever tests beside us
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", f"24G/uuid={gpu}")
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(tmp_path / "users"))
    for name, value in install(tmp_path, drivers).items():
        monkeypatch.setenv(name, value)
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    client.wake("hold")
    told = until(lambda: (client.store.fact(FACT) or {}).get("standings"), 120, "MPS is tried")
    assert told["compute"] == "capped", client.store.fact(FACT)
    made = Machine(client, gpu, tmp_path)
    yield made
    left = (made.place.note, made.place.pipe)
    until(lambda: not any(path.exists() for path in left), 120, "the daemon ends with the last job")
    assert running(made.place) is None
    shutil.rmtree(made.place.root, ignore_errors=True)  # its lock may be let go of just now


def program(code: str) -> list[str]:
    return [sys.executable, "-c", f"from cudalike import *\nuse()\n{code}"]


def test_a_job_has_its_share_and_no_more(machine: Machine) -> None:
    job = gpuqueue.submit(program(SMS), share=0.25, mem="1G", require="compute=hard")
    assert job.wait(120) == 0
    assert job.logs() == "33\n"
    assert job.hold is not None
    assert job.hold.compute == "capped"
    assert "MPS" in job.hold.by
    # a whole GPU is not under MPS
    whole = gpuqueue.submit(program(f"{SMS}\nsay('CUDA_MPS_PIPE_DIRECTORY' in os.environ)"))
    assert whole.wait(120) == 0
    assert whole.logs() == "132\nFalse\n"


def test_what_is_killed_is_let_go_of_first(machine: Machine, home: Home) -> None:
    home.config.write_text("grace = 0.3\n")
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"{stubborn}; say(os.getpid()); time.sleep(600)"
    job = gpuqueue.submit(program(code), share=0.25, mem="1G")
    until(lambda: job.logs().strip(), 120)
    pid = int(job.logs())
    assert "terminate_client" not in machine.log
    job.cancel()
    job.wait(120)
    assert job.state is JobState.CANCELLED
    assert job.record.returncode == -signal.SIGKILL
    terminate = next(line for line in machine.log.splitlines() if "terminate_client" in line)
    assert f' {pid}"' in terminate


def test_another_share_holds_from_the_next_start(machine: Machine, tmp_path: Path) -> None:
    code = f"import time\n{SMS}\nwhile not os.path.exists('go'): time.sleep(0.05)"
    job = gpuqueue.submit(program(code), share=0.25, mem="1G", cwd=tmp_path)
    until(lambda: "33" in job.logs(), 120)
    job.resize(share=0.5)  # on a busy machine it is done after the call has returned

    def told() -> list[object]:
        events = machine.client.store.events(job_id=job.id)
        return [event.data["applied"] for event in events if event.kind == "resized"]

    assert until(told, 120) == [{"compute": "at its next start"}]
    assert "set_default_active_thread_percentage 50" in machine.log
    (tmp_path / "go").touch()
    assert job.wait(120) == 0


def test_a_process_with_the_whole_gpu_is_told_of(machine: Machine, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        f'inner = "from cudalike import *; use(); {SMS}; say(os.getpid()); heard()"\n'
        "env = {**os.environ, 'CUDA_MPS_PIPE_DIRECTORY': '/nowhere'}\n"
        "subprocess.run([sys.executable, '-c', inner], env=env, stdin=open('line'))"
    )
    os.mkfifo(tmp_path / "line")
    job = gpuqueue.submit(program(code), share=0.25, mem="1G", cwd=tmp_path)
    with open(tmp_path / "line", "w") as line:
        until(lambda: job.logs().count("\n") == 2, 120)
        sms, pid = job.logs().split()
        assert sms == "132"
        (tmp_path / "users").write_text(f"{pid}:0:64\n")
        doubts = until(lambda: job.hold and job.hold.doubts, 120)
        assert doubts[0].startswith(f"Process {pid} uses {machine.place.gpu} and is not held to")
        line.write("\n")
    assert job.wait(120) == 0


def test_the_victims_of_a_fault_are_put_back(machine: Machine, tmp_path: Path) -> None:
    fails = (
        "import sys, time; open('ran', 'a').write('x')\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "os.remove('go'); sys.exit(7)"
    )
    once, again = tmp_path / "once", tmp_path / "again"
    once.mkdir()
    again.mkdir()
    plain = gpuqueue.submit(program(fails), share=0.25, mem="1G", cwd=once)
    victim = gpuqueue.submit(program(fails), share=0.25, mem="1G", cwd=again, restartable=True)
    until(lambda: (once / "ran").exists() and (again / "ran").exists(), 120)
    (tmp_path / "behaviour.json").write_text('{"fault": true}')
    (once / "go").touch()
    assert plain.wait(120) == 7
    assert plain.reason == (
        "exit code 7; MPS on its GPU was in fault: a program there had failed, this one or "
        "another, which ends all under MPS"
    )
    (again / "go").touch()
    until(lambda: (again / "ran").read_text() == "xx", 120)
    events = machine.client.store.events(job_id=victim.id)
    (put_back,) = [event for event in events if event.kind == "requeued"]
    assert "MPS on its GPU was in fault" in put_back.data["reason"]
    (tmp_path / "behaviour.json").write_text("{}")
    (again / "go").touch()
    assert victim.wait(120) == 7
    assert victim.reason == "exit code 7"


def test_a_process_that_attaches_is_held_by_what_cuda_reads_as_it_begins(machine: Machine) -> None:
    code = (
        "import gpuqueue, os\nheld = gpuqueue.attach(0.25)\n"
        f"from cudalike import *\nuse()\n{SMS}\nsay(held.job)\nheard()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as attached:
        assert attached.stdout is not None
        assert attached.stdout.readline() == "33\n"
        job = machine.client.job(int(attached.stdout.readline()))
        assert job.hold is not None
        assert (job.hold.compute, job.hold.memory) == ("capped", "advised")
        assert job.hold.by == ("MPS", "framework settings")
        attached.communicate("end")
    until(lambda: machine.client.job(job.id).state in TERMINAL)
