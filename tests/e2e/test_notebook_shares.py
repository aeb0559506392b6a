"""Notebooks' shares of a GPU in a real Jupyter server: restart, kill, culling, and its own end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from lab_server import Server, jupyter, server

from gpuqueue.client import LocalClient
from gpuqueue.model import ACTIVE, TERMINAL, Job, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, environment_of

if os.name != "posix":
    pytest.skip("signals and /proc", allow_module_level=True)

BASE = "/user/ann%40lab/x%20y/"
QUARTER = {"share": "0.25"}


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")


@pytest.fixture
def made(home: Home, tmp_path: Path) -> Iterator[Server]:
    with server(home, tmp_path / "work", *jupyter(base=BASE), base=BASE) as found:
        yield found


def notebook(made: Server, name: str, asked: dict[str, Any] | None = None) -> str:
    """A notebook that asks for a share, as a file of the server's."""
    metadata: dict[str, Any] = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    if asked:
        metadata["gpuqueue"] = asked
    text = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": []})
    (made.folder / name).write_text(text)
    return name


def opened(made: Server, name: str, kernel: str = "python3") -> tuple[int, Any]:
    """Open a notebook as JupyterLab does; status and answer."""
    body = {"path": name, "name": name, "type": "notebook", "kernel": {"name": kernel}}
    return made.ask("POST", "api/sessions", body)


def started(made: Server, name: str, kernel: str = "python3") -> str:
    """Open one that gets its kernel; the kernel's id."""
    status, answer = opened(made, name, kernel)
    assert status == 201, answer
    return str(answer["kernel"]["id"])


def shares(client: LocalClient) -> dict[str, Job]:
    """The kernels that hold a share, by notebook."""
    return {
        job.tag: job
        for job in client.store.live()
        if job.kind is JobKind.KERNEL and job.state in ACTIVE
    }


def running(client: LocalClient, name: str) -> Job:
    """A notebook's share, once its kernel runs."""
    until(
        lambda: (job := shares(client).get(name)) and job.state is JobState.RUNNING,
        what=f"{name} holds a share",
    )
    return shares(client)[name]


def pid(job: Job) -> int:
    assert job.process is not None
    return job.process.pid


def test_four_notebooks_and_what_becomes_of_them(made: Server, client: LocalClient) -> None:
    names = [notebook(made, f"n{i}.ipynb", QUARTER) for i in range(5)]
    ids = {name: started(made, name) for name in names[:4]}
    assert set(shares(client)) == set(names[:4])
    env = environment_of(pid(running(client, "n0.ipynb")))
    assert (env["CUDA_VISIBLE_DEVICES"], env["GPUQUEUE_COMPUTE"]) == ("0", "0.25")
    status, answer = opened(made, "n4.ipynb")
    assert status == 500
    words = answer["message"]
    assert words.startswith("There is no room now for a share of 0.25 of a GPU.\nGPU 0 has nothing")
    assert "notebook n3.ipynb" in words
    assert "Traceback" not in words

    # restarted: the same share, another process
    before = running(client, "n0.ipynb")
    assert made.ask("POST", f"api/kernels/{ids['n0.ipynb']}/restart", {})[0] == 200
    until(lambda: pid(running(client, "n0.ipynb")) != pid(before), what="its new process")
    assert running(client, "n0.ipynb").id == before.id
    assert environment_of(pid(running(client, "n0.ipynb")))["GPUQUEUE_COMPUTE"] == "0.25"

    # killed: Jupyter starts it again, in the same share
    before = running(client, "n1.ipynb")
    os.kill(pid(before), signal.SIGKILL)
    until(lambda: pid(running(client, "n1.ipynb")) != pid(before), what="its new process")
    assert running(client, "n1.ipynb").id == before.id
    assert opened(made, "n4.ipynb")[0] == 500

    # shut down: another one fits
    assert made.ask("DELETE", f"api/kernels/{ids['n2.ipynb']}")[0] == 204
    until(lambda: "n2.ipynb" not in shares(client), what="its share is free")
    started(made, "n4.ipynb")
    assert set(shares(client)) == {"n0.ipynb", "n1.ipynb", "n3.ipynb", "n4.ipynb"}


def test_a_plain_notebook_is_left_as_it_is(made: Server, client: LocalClient) -> None:
    kernel = started(made, notebook(made, "plain.ipynb"))
    until(lambda: made.ask("GET", f"api/kernels/{kernel}")[0] == 200)
    assert shares(client) == {}
    assert client.store.jobs() == []


def test_a_server_that_is_killed_leaves_no_share(made: Server, client: LocalClient) -> None:
    names = [notebook(made, f"n{i}.ipynb", QUARTER) for i in range(2)]
    for name in names:
        started(made, name)
    jobs = [running(client, name) for name in names]
    made.end(signal.SIGKILL)
    until(lambda: not any(alive(job.process) for job in jobs), what="their kernels end with it")
    until(
        lambda: all(client.job(job.id).state in TERMINAL for job in jobs),
        what="the books are right",
    )


def test_a_server_that_stops_gives_all_back(made: Server, client: LocalClient) -> None:
    started(made, notebook(made, "n0.ipynb", QUARTER))
    job = running(client, "n0.ipynb")
    # a refused start must not keep it from stopping
    assert opened(made, notebook(made, "big.ipynb", {"share": "1"}))[0] == 500
    assert opened(made, notebook(made, "odd.ipynb", {"share": "much"}))[0] == 500
    assert made.end() == 0
    until(lambda: client.job(job.id).state in TERMINAL)
    assert client.job(job.id).state is JobState.SUCCEEDED


def test_five_restarts_used_up(home: Home, client: LocalClient, tmp_path: Path) -> None:
    """A kernel that ends whenever it is started: Jupyter drops it, and says so to nobody."""
    folder = tmp_path / "work" / "jupyter_data_dir" / "kernels" / "broken"
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-c", "pass", "{connection_file}"], "display_name": "Broken",
        "language": "python", "metadata": {"gpuqueue": QUARTER},
    }  # fmt: skip
    (folder / "kernel.json").write_text(json.dumps(spec))
    quick = "--KernelRestarter.time_to_dead=0.1"
    with server(home, tmp_path / "work", *jupyter("server", quick)) as made:
        kernel = started(made, notebook(made, "n0.ipynb"), "broken")
        until(lambda: made.ask("GET", f"api/kernels/{kernel}")[0] == 404, what="it is dropped")
        until(lambda: not client.store.live(), what="its share is free")
        (job,) = client.store.jobs()
        assert (job.state, job.reason) == (JobState.FAILED, "its kernel died")


def test_a_kernel_that_cannot_be_started_leaves_nothing(
    home: Home, client: LocalClient, tmp_path: Path
) -> None:
    folder = tmp_path / "work" / "jupyter_data_dir" / "kernels" / "absent"
    folder.mkdir(parents=True)
    spec = {
        "argv": [str(tmp_path / "no-such-program"), "{connection_file}"], "display_name": "Absent",
        "language": "python", "metadata": {"gpuqueue": QUARTER},
    }  # fmt: skip
    (folder / "kernel.json").write_text(json.dumps(spec))
    with server(home, tmp_path / "work") as made:
        started(made, notebook(made, "n0.ipynb", QUARTER))
        assert opened(made, notebook(made, "n1.ipynb"), "absent")[0] == 500
        until(lambda: set(shares(client)) == {"n0.ipynb"}, what="its share is free")
        assert made.end() == 0


def test_culling_gives_back(home: Home, client: LocalClient, tmp_path: Path) -> None:
    cull = ["--MappingKernelManager.cull_idle_timeout=1", "--MappingKernelManager.cull_interval=1"]
    with server(home, tmp_path / "work", *jupyter("server", *cull)) as made:
        started(made, notebook(made, "n0.ipynb", QUARTER))
        running(client, "n0.ipynb")
        until(lambda: not client.store.live(), what="it is culled, and its share is free")
        assert client.store.jobs()[0].state is JobState.SUCCEEDED


def test_a_cancelled_share_is_not_taken_again_at_once(made: Server, client: LocalClient) -> None:
    kernel = started(made, notebook(made, "n0.ipynb", QUARTER))
    job = running(client, "n0.ipynb")
    made.api("POST", f"jobs/{job.id}/cancel")
    until(lambda: client.job(job.id).state is JobState.CANCELLED)
    until(lambda: made.ask("GET", f"api/kernels/{kernel}")[0] == 404, what="Jupyter calls it dead")
    assert shares(client) == {}
    assert not alive(job.process)
    started(made, "n0.ipynb")
    running(client, "n0.ipynb")
