"""Notebooks at a quarter of a GPU each, in a real JupyterLab behind a base URL, in a browser.

Four run; the fifth is told why it does not. Restarting, killing and culling them leaves the books
right, and a tile in the launcher starts a kernel with a share.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from lab_server import TOKEN, Server, jupyter, server
from panel_browser import *  # noqa: F403
from panel_browser import picture, watched

from gpuqueue.client import LocalClient
from gpuqueue.model import ACTIVE, WHOLE, Job, JobKind, JobState
from gpuqueue.paths import Home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

BASE = "/user/ann%40lab/x%20y/"
SHOWS = "%gpu share"
CELL = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": []}
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3"},
    "gpuqueue": {"share": "0.25"},
}


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")


@pytest.fixture
def lab(home: Home, tmp_path: Path) -> Iterator[Server]:
    work = tmp_path / "work"
    work.mkdir()
    for i in range(6):
        notebook = {
            "nbformat": 4, "nbformat_minor": 5, "metadata": METADATA,
            "cells": [{**CELL, "source": SHOWS}],
        }  # fmt: skip
        (work / f"n{i}.ipynb").write_text(json.dumps(notebook))
    options = [
        "--LabApp.news_url=None", "--MappingKernelManager.cull_interval=1",
        "--MappingKernelManager.cull_idle_timeout=3600",
    ]  # fmt: skip
    with server(home, work, *jupyter("lab", *options, base=BASE), base=BASE) as made:
        yield made


@pytest.fixture
def page(browser: Any, lab: Server) -> Iterator[Any]:
    made = watched(browser.new_page(viewport={"width": 1200, "height": 800}))
    yield made
    made.close()


def open_notebook(page: Any, lab: Server, name: str) -> None:
    page.goto(f"{lab.url}lab/tree/{name}?reset&token={TOKEN}")
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
    page.wait_for_selector(".jp-Notebook .jp-Cell")

    def settled() -> bool:
        if choose_kernel(page):
            return False
        return bool(
            page.locator(".jp-Dialog").count() or page.locator("[data-status=idle]").count()
        )

    until(settled, what=f"{name} has a kernel, or none")


def choose_kernel(page: Any) -> bool:
    """Whether JupyterLab asks whose kernel to take, as it may where others run: the notebook's."""
    dialog = page.locator(".jp-Dialog", has_text="Select Kernel")
    if not dialog.count():
        return False
    dialog.get_by_role("button", name="Select").last.click()
    return True


def click(page: Any, target: Any) -> None:
    """Click, whatever JupyterLab asks meanwhile."""
    from playwright.sync_api import TimeoutError as Covered

    def clicked() -> bool:
        choose_kernel(page)
        try:
            target.click(timeout=3000)
        except Covered:
            words = page.locator(".jp-Dialog").all_inner_texts()
            assert not words or "Select Kernel" in words[0], words
            return False
        return True

    until(clicked, what="it can be clicked")


def run_cell(page: Any) -> str:
    """Run the notebook's cell; what it printed."""
    until(
        lambda: not choose_kernel(page) and page.locator("[data-status=idle]").count(),
        what="its kernel is idle",
    )
    cell = page.locator(".jp-Notebook .jp-Cell").first
    shown = cell.locator(".jp-OutputArea-output")

    from playwright.sync_api import TimeoutError as Late

    def begun() -> bool:  # JupyterLab loses what is run in the moment that it connects
        click(page, cell.locator(".jp-InputArea-editor"))
        page.keyboard.press("Shift+Enter")
        with contextlib.suppress(Late):
            shown.first.wait_for(timeout=1500)
        return bool(shown.count())

    until(begun, what="the cell has run")
    return str(shown.first.inner_text())


def shares(client: LocalClient) -> dict[str, Job]:
    """The kernels that hold a share, by notebook."""
    return {
        job.tag: job
        for job in client.store.live()
        if job.kind is JobKind.KERNEL and job.state in ACTIVE
    }


def holds(client: LocalClient, *names: str) -> None:
    """Exactly these hold a share and run, and the books say the same."""
    until(
        lambda: {j.tag for j in shares(client).values() if j.state is JobState.RUNNING}
        == set(names) == set(shares(client)),
        what=f"{names} hold shares",
    )  # fmt: skip
    live = shares(client)
    grants = [grant for job in live.values() for grant in job.placement.grants]
    assert sum(grant.compute for grant in grants) == 250 * len(names) <= WHOLE
    assert sum(grant.memory for grant in grants) == 20 * len(names) << 30
    open_ones = {row[0] for row in client.store.occupied(0, 1000) if row[6] is None}
    assert open_ones == {job.id for job in live.values()}


def test_a_quarter_each(lab: Server, client: LocalClient, page: Any) -> None:
    for i in range(4):
        open_notebook(page, lab, f"n{i}.ipynb")
        told = run_cell(page)
        assert "holds 0.25 of the compute and 20G of GPU 0 for this notebook" in told
    holds(client, "n0.ipynb", "n1.ipynb", "n2.ipynb", "n3.ipynb")

    # the fifth is refused, and told why
    open_notebook(page, lab, "n4.ipynb")
    dialog = page.locator(".jp-Dialog")
    dialog.wait_for()
    words = dialog.inner_text()
    assert "There is no room now for a share of 0.25 of a GPU.\nGPU 0 has nothing left" in words
    text = dialog.locator("pre")
    assert text.evaluate("node => node.scrollWidth <= node.clientWidth"), "all of it can be read"
    assert "notebook n0.ipynb" in words
    assert "Shut one of these notebooks down" in words
    assert "Traceback" not in words
    picture(page, "share-refused")
    page.keyboard.press("Escape")

    # restarted from its own notebook: the same share, another process
    open_notebook(page, lab, "n0.ipynb")
    run_cell(page)
    before = shares(client)["n0.ipynb"]
    click(page, page.get_by_role("button", name="Restart the kernel").first)
    page.locator(".jp-Dialog .jp-mod-accept").click()
    until(lambda: shares(client)["n0.ipynb"].process != before.process, what="its new process")
    assert shares(client)["n0.ipynb"].id == before.id
    assert "holds 0.25" in run_cell(page)
    holds(client, "n0.ipynb", "n1.ipynb", "n2.ipynb", "n3.ipynb")

    # killed: Jupyter starts it again, in the same share
    before = shares(client)["n1.ipynb"]
    os.kill(before.process.pid, signal.SIGKILL)
    until(lambda: shares(client)["n1.ipynb"].process != before.process, what="its new process")
    holds(client, "n0.ipynb", "n1.ipynb", "n2.ipynb", "n3.ipynb")

    # shut down: the fifth fits
    click(page, page.get_by_role("menuitem", name="Kernel", exact=True))
    page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    holds(client, "n1.ipynb", "n2.ipynb", "n3.ipynb")
    open_notebook(page, lab, "n4.ipynb")
    assert "holds 0.25" in run_cell(page)
    holds(client, "n1.ipynb", "n2.ipynb", "n3.ipynb", "n4.ipynb")
    picture(page, "share-held")
    # the widgets' extension stumbles where a notebook is left without a kernel
    assert not [problem for problem in page.problems if "gpuqueue" in problem]


def test_culled(home: Home, client: LocalClient, tmp_path: Path, lab: Server, page: Any) -> None:
    """A kernelspec says after how long its idle kernels are culled; its share is free then."""
    told = subprocess.run(
        [sys.executable, "-c", "from gpuqueue.cli import main; main()", "kernelspec", "add",
         "--share", "0.25"],
        env={**os.environ, "JUPYTER_DATA_DIR": str(lab.folder / "jupyter_data_dir")},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    name = told.partition(":")[0]
    file = lab.folder / "jupyter_data_dir" / "kernels" / name / "kernel.json"
    spec = json.loads(file.read_text())
    spec["metadata"]["cull_idle_timeout"] = 1
    file.write_text(json.dumps(spec))
    # its tile in the launcher
    page.goto(f"{lab.url}lab?reset&token={TOKEN}")
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
    tile = page.locator(".jp-LauncherCard", has_text="GPU 0.25").first
    tile.wait_for(timeout=60_000)
    picture(page, "share-tile")
    tile.click()
    until(lambda: len(shares(client)) == 1, what="it holds a share")
    page.goto("about:blank")  # a kernel that somebody looks at is not culled
    until(lambda: not shares(client), what="it is culled, and its share is free")
    holds(client)
