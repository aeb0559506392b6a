"""Real kernels of a real server lend the compute of a pretend GPU, and have it back for a cell."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from gpuqueue_jupyter.extension import GpuqueueExtension
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from server_fixtures import *  # noqa: F403

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.model import ACTIVE, Job, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import descendants

if sys.platform != "linux":
    pytest.skip("/proc", allow_module_level=True)

NAMES = ("a", "b", "c", "d")


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")
    home.config.write_text("lend_after = 1\nlend_again = 0.2\n")
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


class Notebook:
    """A kernel of the server's, and a front end of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, manager: Any, path: Path) -> None:
        self._loop = loop
        self._manager = manager
        env = {**os.environ, "JPY_SESSION_NAME": str(path)}
        self.id = self.wait(manager.start_kernel(kernel_name="quarter", env=env))
        self._front = manager.get_kernel(self.id).client()
        self._front.start_channels()
        self.wait(self._front.wait_for_ready(timeout=120))

    def wait(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def begin(self, source: str) -> None:
        """Run a cell, and do not wait for it."""
        self._front.execute(source)

    def run(self, source: str) -> None:
        answer = self.wait(self._front.execute_interactive(source, timeout=120))
        assert answer["content"]["status"] == "ok", answer["content"]

    def shut_down(self) -> None:
        self._front.stop_channels()
        if self.id in self._manager:
            self.wait(self._manager.shutdown_kernel(self.id, now=True))


@pytest.fixture
def notebooks(
    extension: GpuqueueExtension,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
    jp_data_dir: Path,
    tmp_path: Path,
) -> Iterator[Callable[[str], Notebook]]:
    """Open a notebook whose kernel has a quarter of the GPU and 10G of its memory."""
    folder = jp_data_dir / "kernels" / "quarter"
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "A quarter", "language": "python",
        "metadata": {"gpuqueue": {"share": "0.25", "mem": "10G"}},
    }  # fmt: skip
    (folder / "kernel.json").write_text(json.dumps(spec))
    assert extension.serverapp is not None
    made: list[Notebook] = []

    def open_(name: str) -> Notebook:
        path = tmp_path / f"{name}.ipynb"
        path.write_text(json.dumps({"metadata": {}, "cells": []}))
        made.append(Notebook(jp_asyncio_loop, extension.serverapp.kernel_manager, path))  # type: ignore[union-attr]
        return made[-1]

    yield open_
    for each in made:
        each.shut_down()


def states_below(job: Job) -> list[str]:
    """The states of a job's processes, as the kernel tells them."""
    assert job.process is not None
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in sorted(descendants(job.process.pid))]
    return [text.rpartition(")")[2].split()[0] for text in stats]


def test_a_job_borrows_from_idle_notebooks_until_a_cell_runs(
    notebooks: Callable[[str], Notebook], client: LocalClient, tmp_path: Path
) -> None:
    books = [notebooks(name) for name in NAMES]
    job = gpuqueue.submit(["sh", "-c", "sleep 600 & sleep 600; wait"], share=0.9, mem="30G")
    until(lambda: client.job(job.id).state is JobState.RUNNING, what="the job runs")
    until(lambda: len(states_below(client.job(job.id))) >= 3)
    assert client.job(job.id).borrows
    assert "notebooks a.ipynb, b.ipynb, c.ipynb and d.ipynb lend" in client.job(job.id).reason
    kernels = [j for j in client.store.live() if j.kind is JobKind.KERNEL and j.state in ACTIVE]
    assert sum(part for j in kernels if j.loan for _, part in j.loan.away) == 900

    note, go = tmp_path / "began", tmp_path / "go"
    books[0].begin(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(note)!r}).write_text(str(time.time()))\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    until(lambda: client.job(job.id).state is JobState.FROZEN, what="it stands still")
    assert set(states_below(client.job(job.id))) == {"T"}
    assert client.job(job.id).reason == "paused: notebook a.ipynb computes on GPU 0"
    (event,) = [e for e in client.store.events(job_id=job.id) if e.kind == "paused"]
    until(note.exists)
    # told before the cell's first line: within the second that a look takes at the most
    assert event.at - float(until(note.read_text)) < 1.0

    go.touch()
    until(lambda: client.job(job.id).state is JobState.RUNNING, what="it goes on")
    until(lambda: "T" not in states_below(client.job(job.id)))
    job.cancel()
    assert job.wait(60) != 0


def test_a_notebook_that_is_shut_down_leaves_its_borrower_as_the_owner(
    notebooks: Callable[[str], Notebook], client: LocalClient
) -> None:
    books = [notebooks(name) for name in NAMES]
    job = gpuqueue.submit(["sleep", "600"], share=0.25, mem="30G")
    until(lambda: client.job(job.id).state is JobState.RUNNING, what="the job runs")
    assert client.job(job.id).borrows
    books[3].shut_down()
    until(lambda: client.job(job.id).loan is None, what="its compute is its own")
    books[0].run("1 + 1")
    assert client.job(job.id).state is JobState.RUNNING
    job.cancel()
