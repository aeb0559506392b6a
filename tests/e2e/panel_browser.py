"""A real browser for tests of the panel, and the panel's files as a site of their own.

``GPUQUEUE_SCREENSHOTS=folder`` keeps pictures.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FILES = Path(__file__).parents[2] / "widgets" / "panel"
EXTENSION = Path(__file__).parents[2] / "jupyter_ext" / "labextension"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
KINDS = {".mjs": "text/javascript", ".css": "text/css", ".html": "text/html"}
SITE = "http://panel.test/"
HTML = """<!doctype html><html lang="en"><title>panel</title>
<link rel="stylesheet" href="panel.css"><body class="gq-own"><main></main>"""

if CHROMIUM is None:
    pytest.skip("there is no chromium here", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of a module."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


def watched(page: Any) -> Any:
    """The page, with a list of what went wrong in it.

    What Notebook 7 does wrong by itself does not count: 7.6 meets an undefined value in its own
    code whenever a setting is loaded that it does not know.
    """
    page.problems = []

    def noted(error: Any) -> None:
        where = "".join((error.stack or "").split("\n", 2)[1:2])
        if "/static/notebook/notebook_core" not in where:
            page.problems.append(f"{error.message} {error.stack}")

    page.on("pageerror", noted)
    return page


def site(page: Any) -> Any:
    """Give a page the panel's files, at an address that nobody else has."""

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(SITE).partition("?")[0]
        if name == "":
            route.fulfill(body=HTML, content_type="text/html")
        elif (FILES / name).is_file():
            path = FILES / name
            route.fulfill(body=path.read_text(), content_type=KINDS[path.suffix])
        else:
            route.fulfill(status=404, body="")

    page.route(f"{SITE}**", answer)
    page.goto(SITE)
    return page


def as_installed(folder: Path) -> dict[str, str]:
    """This checkout's panel as it is installed, and the environment in which JupyterLab finds it.

    Without that it would be the one that was there when the package was installed.
    """
    there = folder / "labextensions" / "jupyter-gpuqueue"
    shutil.copytree(EXTENSION, there)
    shutil.copytree(FILES, there / "files" / "panel")
    return {"JUPYTER_PATH": str(folder)}


def in_lab(page: Any) -> Any:
    """The panel in JupyterLab's sidebar."""
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
    page.get_by_role("tab", name="GPU queue").click()
    page.wait_for_selector("#jupyter-gpuqueue-panel .gq-card")
    return page.locator("#jupyter-gpuqueue-panel")


def picture(page: Any, name: str) -> None:
    """Keep one, if somebody wants it."""
    if folder := os.environ.get("GPUQUEUE_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")
