"""The panel in a real JupyterLab, in a real browser.

``GPUQUEUE_SCREENSHOTS=folder`` keeps pictures of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_server import TOKEN, Server, jupyter, server

from gpuqueue.paths import Home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

BASE = "/user/ann%40lab/x%20y/"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip

if CHROMIUM is None:
    pytest.skip("there is no chromium here", allow_module_level=True)


@pytest.fixture
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def lab(home: Home, tmp_path: Path) -> Iterator[Server]:
    options = ["--LabApp.news_url=None"]
    command = jupyter("lab", *options, base=BASE)
    with server(home, tmp_path / "work", *command, base=BASE) as made:
        yield made


@pytest.fixture
def open_lab(browser: Any, lab: Server) -> Callable[[], Any]:
    """Opens JupyterLab with nothing remembered, and the panel in it."""

    def opened() -> Any:
        page = browser.new_page(viewport={"width": 1100, "height": 760})
        page.problems = []  # type: ignore[attr-defined]
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.goto(f"{lab.url}lab?token={TOKEN}&reset")
        page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
        page.get_by_role("tab", name="GPU queue").click()
        page.wait_for_selector(".gq-view section")
        return page

    return opened


def picture(page: Any, name: str) -> None:
    if folder := os.environ.get("GPUQUEUE_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")


def test_the_sidebar_follows_the_queue(lab: Server, open_lab: Callable[[], Any]) -> None:
    page = open_lab()
    panel = page.locator("#jupyter-gpuqueue-panel")
    panel.get_by_text("Nothing runs and nothing waits.").wait_for()
    assert panel.get_by_text("GPU 0").count() == 1
    page.get_by_text("Launcher").first.wait_for()
    picture(page, "empty")

    # every request for the state is counted: what follows must come from the event stream
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    failed = lab.submit("exit 3", tag="evaluate", preset="cpu")
    panel.locator(f"[data-job='{failed}'][data-state=failed]").wait_for(timeout=4000)
    running = lab.submit("sleep 600", tag="<b>finetune</b>", preset="exclusive", eta="40m")
    panel.locator(f"[data-job='{running}']").get_by_text("<b>finetune</b>").wait_for(timeout=4000)
    waiting = lab.submit("sleep 600", tag="sweep-1", preset="exclusive")
    panel.locator(f"[data-job='{waiting}'] .gq-line").first.wait_for(timeout=4000)
    panel.get_by_text("whole").first.wait_for()
    picture(page, "light")
    cancel = panel.locator(f"[data-job='{waiting}']").get_by_role("button")
    cancel.click()
    cancel.click()
    panel.locator(f"[data-job='{waiting}'][data-state=cancelled]").wait_for(timeout=4000)
    assert all(BASE in url for url in asked if "gpuqueue" in url)

    # what the theme colours is readable in the dark too
    theme = "lab/api/settings/@jupyterlab/apputils-extension:themes"
    lab.ask("PUT", theme, {"raw": '{"theme": "JupyterLab Dark"}'})
    dark = open_lab()
    dark.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
    dark.locator(f"[data-job='{running}']").wait_for()
    picture(dark, "dark")
    colours = "e => [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]"
    text, background = dark.locator(".gq-view").evaluate(colours)
    assert text != background
    assert page.problems + dark.problems == []


def test_nothing_is_asked_for_while_nobody_looks(lab: Server, open_lab: Callable[[], Any]) -> None:
    page = open_lab()
    page.get_by_role("tab", name="GPU queue").click()  # closes the sidebar
    page.wait_for_selector("#jupyter-gpuqueue-panel", state="hidden")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    job = lab.submit("true", tag="unseen")
    page.wait_for_timeout(6000)
    assert not [url for url in asked if "gpuqueue" in url]
    page.get_by_role("tab", name="GPU queue").click()
    page.locator(f"[data-job='{job}']").wait_for(timeout=4000)


def test_a_server_without_the_extension_is_told_apart(
    browser: Any, home: Home, tmp_path: Path
) -> None:
    off = "--ServerApp.jpserver_extensions={'gpuqueue_jupyter': False, 'jupyterlab': True}"
    with server(home, tmp_path / "work", *jupyter("lab", off)) as lab:
        page = browser.new_page()
        page.goto(f"{lab.url}lab?token={TOKEN}&reset")
        page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
        page.get_by_role("tab", name="GPU queue").click()
        page.get_by_text("does not have the server part of gpuqueue").wait_for()
