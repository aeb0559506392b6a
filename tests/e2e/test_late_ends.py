"""How shares end that kernels got at their first use of a GPU, in a real Jupyter server."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import until
from lab_server import jupyter, server
from test_notebook_shares import notebook, pid, running, shares, started

from gpuqueue.client import LocalClient
from gpuqueue.control.holding import FACT
from gpuqueue.model import TERMINAL, JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, environment_of

sys.path.insert(0, str(Path(__file__).parents[1] / "share"))

from share_cards import ONE, drivers, needs_compiler

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers"]

BEGIN = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"
KERNEL = (
    "-m",
    "ipykernel_launcher",
    "-f",
    "{connection_file}",
    f"--IPKernelApp.exec_lines={BEGIN}",
)


@pytest.fixture(autouse=True)
def machine(
    home: Home, drivers: Path, monkeypatch: pytest.MonkeyPatch, client: LocalClient
) -> None:
    """One GPU that has a driver, on which what holds shares was tried; all settings as they are."""
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", f"2G/uuid={ONE}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(drivers))
    client.wake("hold")
    until(lambda: (client.store.fact(FACT) or {}).get("library"), 120, "the cap is tried")


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., str]:
    """Add a kernelspec of this Python with these words; its name."""

    def add(*words: str) -> str:
        folder = tmp_path / "work" / "jupyter_data_dir" / "kernels" / "uses"
        folder.mkdir(parents=True)
        made = {"argv": [sys.executable, *words], "display_name": "Uses", "language": "python"}
        (folder / "kernel.json").write_text(json.dumps(made))
        return folder.name

    return add


def test_a_death_keeps_it_and_five_give_it_back(
    home: Home, client: LocalClient, tmp_path: Path, spec: Callable[..., str]
) -> None:
    name = spec("-c", BEGIN, "{connection_file}")  # it ends whenever it has begun
    quick = "--KernelRestarter.time_to_dead=0.1"
    with server(home, tmp_path / "work", *jupyter("server", quick)) as made:
        kernel = started(made, notebook(made, "n0.ipynb"), name)
        until(lambda: made.ask("GET", f"api/kernels/{kernel}")[0] == 404, what="it is dropped")
        until(lambda: client.store.jobs(), what="it had a share")
        until(lambda: not client.store.live(), what="its share is free")
        (job,) = client.store.jobs()
        assert (job.state, job.reason) == (JobState.FAILED, "its kernel died")


def test_jupyter_starts_one_that_has_died_again_in_its_share(
    home: Home, client: LocalClient, tmp_path: Path, spec: Callable[..., str]
) -> None:
    name = spec(*KERNEL)
    with server(home, tmp_path / "work") as made:
        started(made, notebook(made, "n0.ipynb"), name)
        before = running(client, "n0.ipynb")
        os.kill(pid(before), signal.SIGKILL)
        until(lambda: pid(running(client, "n0.ipynb")) != pid(before), what="its new process")
        again = running(client, "n0.ipynb")
        assert again.id == before.id
        assert environment_of(pid(again))["GPUQUEUE_COMPUTE"] == "0.25"
        assert made.end() == 0
        until(lambda: client.job(again.id).state is JobState.SUCCEEDED)


def test_a_server_that_is_killed_leaves_none(
    home: Home, client: LocalClient, tmp_path: Path, spec: Callable[..., str]
) -> None:
    name = spec(*KERNEL)
    with server(home, tmp_path / "work") as made:
        started(made, notebook(made, "n0.ipynb"), name)
        job = running(client, "n0.ipynb")
        made.end(signal.SIGKILL)
        until(lambda: not alive(job.process), what="its kernel ends with it")
        until(lambda: client.job(job.id).state in TERMINAL, what="the books are right")


def test_culling_gives_it_back(
    home: Home, client: LocalClient, tmp_path: Path, spec: Callable[..., str]
) -> None:
    name = spec(*KERNEL)
    cull = ["--MappingKernelManager.cull_idle_timeout=1", "--MappingKernelManager.cull_interval=1"]
    with server(home, tmp_path / "work", *jupyter("server", *cull)) as made:
        started(made, notebook(made, "n0.ipynb"), name)
        until(lambda: client.store.jobs(), what="it has a share")
        until(lambda: not client.store.live(), what="it is culled, and its share is free")
        assert shares(client) == {}
