"""The panel in the sidebar of the oldest JupyterLab that it is made for.

It comes from the package index, into a virtual environment that is kept inside the one that runs
the tests (or in the folder ``GPUQUEUE_TESTS_CACHE``); a change of what it needs makes a new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from lab_server import TOKEN, Server, jupyter, server
from panel_browser import *  # noqa: F403
from panel_browser import in_lab, picture, watched

from gpuqueue.paths import Home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
OLDEST = "4.0"


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter of an environment with that JupyterLab and what gpuqueue needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [f"jupyterlab=={OLDEST}.*", *project["dependencies"]]
    key = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("GPUQUEUE_TESTS_CACHE", sys.prefix))
    folder = cache / f"jupyterlab-{OLDEST}-{key}"
    found = folder / "bin" / "python"
    if (folder / "whole").exists():
        return str(found)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    install = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"JupyterLab {OLDEST} cannot be installed here: {done.stderr[-300:]}")
    (folder / "whole").touch()
    return str(found)


@pytest.fixture
def lab(home: Home, tmp_path: Path, python: str) -> Iterator[Server]:
    """That JupyterLab with this extension: the sources, and the front end as it is installed."""
    place = tmp_path / "data" / "labextensions" / "jupyter-gpuqueue"
    shutil.copytree(ROOT / "jupyter_ext" / "labextension", place)
    shutil.copytree(ROOT / "widgets" / "panel", place / "files" / "panel")
    sources = (str(ROOT), str(ROOT / "jupyter_ext"), str(ROOT / "widgets"))
    env = {"PYTHONPATH": os.pathsep.join(sources), "JUPYTER_PATH": str(tmp_path / "data")}
    on = "--ServerApp.jpserver_extensions={'gpuqueue_jupyter': True, 'jupyterlab': True}"
    # the module by itself: `jupyter lab` would look for a command of that name on the PATH
    command = ["-m", "jupyterlab", *jupyter("lab", "--LabApp.news_url=None", on)[3:]]
    with server(home, tmp_path / "work", *command, env=env, python=python) as made:
        yield made


def test_the_sidebar_follows_a_job_and_frees_the_gpus(lab: Server, browser: Any) -> None:
    page = watched(browser.new_page(viewport={"width": 1100, "height": 900}))
    page.goto(f"{lab.url}lab?reset&token={TOKEN}")
    panel = in_lab(page)
    assert page.evaluate(
        "JSON.parse(document.getElementById('jupyter-config-data').textContent).appVersion"
    ).startswith(f"{OLDEST}.")
    first = lab.submit("sleep 600", tag="first", preset="exclusive")
    until(lambda: lab.api("GET", f"jobs/{first}")["state"] == "running")
    second = lab.submit("true", tag="second", preset="exclusive")
    panel.locator(f".gq-waiting [data-job='{second}']").wait_for(timeout=20_000)
    panel.get_by_role("button", name="Freeze").click()
    panel.locator(f".gq-running [data-job='{first}'][data-state=frozen]").wait_for(timeout=20_000)
    panel.get_by_role("button", name="Resume").click()
    panel.locator(f".gq-running [data-job='{first}'][data-state=running]").wait_for(timeout=20_000)
    lab.api("POST", f"jobs/{first}/cancel")
    done = panel.locator(f".gq-recent [data-job='{second}'][data-state=succeeded]")
    done.wait_for(timeout=20_000)
    picture(page, "lab-oldest")
    assert page.problems == []
    page.close()
