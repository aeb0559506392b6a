"""One JupyterLab server with pretend GPUs for all tests of a module, and the panel's homes on it.

``from panel_lab import *`` for its fixtures; ``opened`` gives pages that must go without an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import clean_up, until
from lab_server import TOKEN, Server, jupyter, server
from panel_browser import *  # noqa: F403
from panel_browser import as_installed, watched

from gpuqueue import paths
from gpuqueue.paths import Home, find_home

BASE = "/user/ann%40lab/x%20y/"
CELL = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": []}
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
WHOLE = {"preset": "two"}
Opened = Callable[[str], Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A state directory for all tests here, as the fixture ``home`` is for one."""
    folder = tmp_path_factory.mktemp("panel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUQUEUE_HOME", str(folder / "st ate – ü"))
        patch.setenv("GPUQUEUE_FAKE_GPUS", "24G,24G")
        for name in ("GPUQUEUE_JOB_ID", "GPUQUEUE_ATTEMPT_DIR", "JPY_SESSION_NAME"):
            patch.delenv(name, raising=False)
        paths._checked.clear()
        found = find_home()
        yield found
        clean_up(found)
        paths._checked.clear()


@pytest.fixture(scope="module")
def shared(place: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    work = tmp_path_factory.mktemp("work")
    for name, source in (
        ("panel", "import gpuqueue\ngpuqueue.panel()"),
        ("card", "import gpuqueue\ngpuqueue.submit(['sleep', '600'], tag='carded')"),
        ("kernel", KERNEL_ONLY),
    ):
        cells = [
            {**CELL, "source": source},
            {**CELL, "id": "b", "source": "import time; time.sleep(3)"},
        ]
        notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": KERNEL, "cells": cells}
        (work / f"{name}.ipynb").write_text(json.dumps(notebook))
    command = jupyter("lab", "--LabApp.news_url=None", base=BASE)
    env = as_installed(tmp_path_factory.mktemp("data"))
    with server(place, work, *command, base=BASE, env=env) as made:
        yield made


KERNEL_ONLY = """\
import gpuqueue
shown = gpuqueue.panel()
shown.home = "elsewhere"  # as if the server beside it had another queue
shown"""


@pytest.fixture
def lab(shared: Server) -> Iterator[Server]:
    """The server, with nothing left in its queue by the test."""
    yield shared
    if shared.api("GET", "status?limit=0")["mode"]["name"] != "normal":
        shared.api("POST", "resume", {})
    for job in shared.api("GET", "jobs?state=queued,starting,running,evicting,frozen")["jobs"]:
        shared.ask("POST", f"gpuqueue/api/v1/jobs/{job['id']}/cancel", {})
    until(lambda: not any(counts(shared).values()), what="the queue is empty")


def counts(shared: Server) -> dict[str, int]:
    return {name: shared.api("GET", "counts")[name] for name in ("running", "waiting")}


@pytest.fixture
def opened(browser: Any, lab: Server) -> Iterator[Opened]:
    """Opens an address of the server, with nothing remembered."""
    pages: list[Any] = []

    def open_it(path: str, **how: Any) -> Any:
        page = watched(browser.new_page(viewport={"width": 1100, "height": 900}, **how))
        pages.append(page)
        mark = "&" if "?" in path else "?"
        page.goto(f"{lab.url}{path}{mark}token={TOKEN}")
        return page

    yield open_it
    problems = [page.problems for page in pages]
    for page in pages:
        page.close()
    assert not any(problems)


def appears(what: Any, seconds: float = 4) -> bool:
    """Whether it is there within a moment."""
    from playwright.sync_api import TimeoutError as Late

    try:
        what.first.wait_for(timeout=seconds * 1000)
    except Late:
        return False
    return True


def on_page(opened: Opened, **how: Any) -> Any:
    """The page by itself."""
    page = opened("gpuqueue/", **how)
    page.wait_for_selector(".gq-card")
    return page


def in_cell(page: Any) -> Any:
    """The panel that the first cell of a notebook shows."""
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
    page.wait_for_selector("[data-status=idle]", timeout=60_000)
    cell = page.locator(".jp-Notebook .jp-Cell").first
    prompt = cell.locator(".jp-InputPrompt")

    def begun() -> bool:  # JupyterLab loses what is run in the moment that it connects, or asks
        if page.locator(".jp-Dialog").count():
            page.keyboard.press("Escape")
        cell.locator(".jp-InputArea-editor").click()
        page.keyboard.press("Shift+Enter")
        # one that is slow is not run twice: it would queue its job twice
        runs = appears(prompt.filter(has_text=re.compile(r"\[(\d+|\*)\]")))
        return runs and appears(prompt.filter(has_text=re.compile(r"\[\d+\]")), 60)

    until(begun, what="the cell runs")
    shown = page.locator(".gq-incell")
    shown.wait_for(timeout=60_000)
    return shown


def line_of(lab: Server, count: int, **options: Any) -> list[int]:
    """Jobs that wait behind one that has the whole machine; its number comes first."""
    first = lab.submit("sleep 600", tag="first", eta="10m", **WHOLE)
    until(lambda: lab.api("GET", f"jobs/{first}")["state"] == "running")
    more = {**WHOLE, "eta": "5m", **options}
    return [first, *(lab.submit("sleep 600", tag=f"w{i}", **more) for i in range(count))]


def order(lab: Server) -> list[int]:
    return [job["id"] for job in lab.api("GET", "queue")["jobs"]]


def serious(results: Any) -> list[str]:
    return [
        f"{rule['id']}: {node['target']} {node.get('failureSummary', '')[:300]}"
        for rule in results.response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
