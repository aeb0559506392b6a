"""``share``: what a notebook's kernels get, by its path."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conftest import until
from server_fixtures import *  # noqa: F403
from server_fixtures import Rest

from gpuqueue.client import LocalClient
from gpuqueue.client.shares import acquire
from gpuqueue.client.wishes import Wish, remembered
from gpuqueue.model import JobState
from gpuqueue.run.kernelshare import BUSY, Busy
from gpuqueue.run.process import identify


@pytest.fixture(autouse=True)
def one_gpu(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")


def shown(rest: Rest, path: str) -> Any:
    """What is told of a notebook."""
    return rest.ask("GET", "/share", query=f"?{urlencode({'path': path})}").json


def test_a_choice_is_kept_by_the_notebook_s_path(
    rest: Rest, client: LocalClient, jp_root_dir: Path
) -> None:
    path = str(jp_root_dir / "a b.ipynb")
    assert shown(rest, "a b.ipynb") == {"path": path, "chosen": None, "job": None}
    chosen = rest.post("/share", {"path": "a b.ipynb", "share": 0.5, "mem": "20G"})
    assert chosen.json["chosen"] == {"share": 500, "memory": 20 << 30, "gpus": None}
    assert chosen.json["message"] == ""
    assert remembered(client, path) == Wish(500, 20 << 30)
    assert shown(rest, path)["chosen"]["share"] == 500
    assert rest.post("/share", {"path": "a b.ipynb"}).json["chosen"] is None
    assert remembered(client, path) is None


def test_a_kernel_that_runs_is_given_it_at_once(
    rest: Rest, client: LocalClient, jp_root_dir: Path
) -> None:
    lease = acquire(client, Wish(250), path=str(jp_root_dir / "a.ipynb"), env={})
    process = subprocess.Popen(["sleep", "600"], env=lease.environment(os.environ))
    lease.name(identify(process.pid))
    until(lambda: client.job(lease.job).state is JobState.RUNNING)
    told = rest.post("/share", {"path": "a.ipynb", "share": "0.5"}).json
    assert told["job"] == lease.job
    assert told["message"].startswith(f"job {lease.job} has share 0.5")
    assert client.job(lease.job).placement.grants[0].compute == 500
    other = acquire(client, Wish(500), path="/elsewhere/b.ipynb", env={})
    told = rest.post("/share", {"path": "a.ipynb", "share": "0.75"}).json
    assert told["message"].startswith("not now, but at its kernel's next start: job")
    assert client.job(lease.job).placement.grants[0].compute == 500
    other.release()
    process.kill()
    process.wait()
    lease.release()


def test_a_kernel_gives_its_share_back_and_goes_on(rest: Rest, client: LocalClient) -> None:
    lease = acquire(client, Wish(250), path="/books/a.ipynb", env={})
    process = subprocess.Popen(["sleep", "600"], env=lease.environment(os.environ))
    lease.name(identify(process.pid))
    until(lambda: client.job(lease.job).state is JobState.RUNNING)
    answer = rest.post(f"/jobs/{lease.job}/release")
    assert (answer.status, answer.json["id"], answer.json["holds"]) == (200, lease.job, {})
    assert answer.json["job"]["state"] == "succeeded"
    assert process.poll() is None
    assert rest.post(f"/jobs/{lease.job}/release").status == 409
    assert rest.post("/jobs/99/release").status == 404
    refused = rest.post(f"/jobs/{lease.job}/release", {"force": True})
    assert (refused.status, refused.json["field"]) == (400, "force")
    process.kill()
    process.wait()
    lease.release()


def test_a_kernel_tells_whether_a_cell_runs_and_since_when_none_does(
    rest: Rest, client: LocalClient
) -> None:
    lease = acquire(client, Wish(250), path="/w/a.ipynb", env={})
    script = rest.submit("sleep 600", options={"preset": "cpu"})["id"]
    folder = client.home.attempt(lease.job, 1)

    def activity() -> tuple[Any, Any]:
        job = rest.get(f"/jobs/{lease.job}").json
        (listed,) = [one for one in rest.get("/status").json["running"] if one["id"] == lease.job]
        assert (job["busy"], job["idle_since"]) == (listed["busy"], listed["idle_since"])
        return job["busy"], job["idle_since"]

    try:
        assert activity() == (None, None)
        told = Busy(folder)
        told.tell(busy=True)
        assert activity() == (True, None)
        told.tell(busy=False)
        told.close()
        os.utime(folder / BUSY, (1e9, 1e9))
        assert activity() == (False, 1e9)
        assert "busy" not in rest.get(f"/jobs/{script}").json
        until(lambda: rest.get("/counts").json["running"] == 2)
        counts = rest.get("/counts").json
        assert (counts["waiting"], counts["notebooks"]) == (0, 1)
        status = rest.get("/status", match="a.ipynb").json
        assert status["counts"] == {"running": 2, "waiting": 0, "notebooks": 1}
        assert status["matches"] == {"running": 1, "waiting": 0, "notebooks": 1}
    finally:
        lease.release()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "path: write the path of a notebook"),
        ({"path": 7}, "path: write the path"),
        ({"path": "a", "share": 2}, "share: 2 is not a share"),
        ({"path": "a", "mem": "much"}, "mem: 'much' is not a size"),
        ({"path": "a", "gpus": 0}, "gpus: 0 is not a number of GPUs"),
        ({"path": "a", "what": 1}, "what"),
    ],
)
def test_what_is_wrong_is_named(rest: Rest, body: dict[str, object], words: str) -> None:
    answer = rest.post("/share", body)
    assert answer.status == 400
    assert words in answer.content.decode()
