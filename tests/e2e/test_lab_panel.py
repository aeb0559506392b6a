"""The panel in its three homes, on a real server with pretend GPUs and real jobs.

One JupyterLab server for all of them: its sidebar, Notebook 7 beside it, the page, and a cell.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from lab_server import TOKEN, Server, jupyter, server
from panel_browser import in_lab, picture, watched
from panel_lab import *  # noqa: F403
from panel_lab import (
    CELL,
    KERNEL,
    WHOLE,
    Opened,
    appears,
    in_cell,
    line_of,
    on_page,
    order,
    serious,
)

import gpuqueue
from gpuqueue.paths import Home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# -- every home ------------------------------------------------------------------------------


def test_the_sidebar_follows_the_queue(lab: Server, opened: Opened) -> None:
    page = opened("lab?reset")
    panel = in_lab(page)
    panel.get_by_text("The GPUs are idle.").wait_for()
    # what follows must come from the event stream: a look at intervals would be too late
    failed = lab.submit("exit 3", tag="evaluate", preset="cpu")
    panel.locator(f"[data-job='{failed}'][data-state=failed]").wait_for(timeout=5000)
    running = lab.submit("sleep 600", tag="<b>finetune</b>", preset="exclusive", eta="40m")
    panel.locator(f".gq-running [data-job='{running}']").get_by_text("<b>finetune</b>").wait_for(
        timeout=5000
    )
    waiting = lab.submit("sleep 600", tag="sweep-1", preset="exclusive")
    row = panel.locator(f".gq-waiting [data-job='{waiting}']")
    row.get_by_text("waits for").wait_for(timeout=5000)
    panel.get_by_text("whole GPU").first.wait_for()
    page.get_by_role("button", name="GPU: 1 running, 1 waiting").wait_for()
    picture(page, "lab")
    cancel = row.get_by_role("button", name=f"Cancel job {waiting}")
    cancel.click()
    cancel.click()
    panel.locator(f"[data-job='{waiting}'][data-state=cancelled]").wait_for(timeout=5000)


def test_a_job_goes_from_waiting_to_done_on_the_page(lab: Server, opened: Opened) -> None:
    page = on_page(opened)
    first, second = line_of(lab, 1)
    page.locator(f".gq-waiting [data-job='{second}']").wait_for(timeout=5000)
    lab.api("POST", f"jobs/{first}/cancel")
    page.locator(f".gq-running [data-job='{second}']").wait_for(timeout=8000)
    done = lab.submit("true", tag="quick", preset="cpu")
    page.locator(f".gq-recent [data-job='{done}'][data-state=succeeded]").wait_for(timeout=8000)
    assert page.locator(".gq-timeline .gq-stay").count() >= 3


def test_a_cell_shows_the_same_and_works_while_the_kernel_is_busy(
    lab: Server, opened: Opened
) -> None:
    job = lab.submit("sleep 600", tag="long", preset="exclusive")
    page = opened("lab/tree/panel.ipynb?reset")
    panel = in_cell(page)
    panel.locator(f".gq-running [data-job='{job}']").wait_for(timeout=60_000)
    page.keyboard.press("Shift+Enter")  # a cell that sleeps
    page.wait_for_selector("[data-status=busy]")
    cancel = panel.locator(f"[data-cancel='{job}']")
    cancel.click()
    cancel.click()
    panel.locator(f".gq-recent [data-job='{job}'][data-state=cancelled]").wait_for(timeout=8000)


def test_without_its_queue_on_the_server_a_cell_asks_the_kernel(
    lab: Server, opened: Opened
) -> None:
    job = lab.submit("sleep 600", tag="long", preset="exclusive")
    page = opened("lab/tree/kernel.ipynb?reset")
    asked: list[str] = []
    panel = in_cell(page)
    panel.locator(f".gq-running [data-job='{job}']").wait_for(timeout=60_000)
    page.on("request", lambda request: asked.append(request.method))
    cancel = panel.locator(f"[data-cancel='{job}']")
    cancel.click()
    cancel.click()
    panel.locator(f".gq-recent [data-job='{job}'][data-state=cancelled]").wait_for(timeout=15_000)
    assert "POST" not in asked


def test_a_jobs_own_card_follows_it(lab: Server, opened: Opened) -> None:
    page = opened("lab/tree/card.ipynb?reset")
    card = in_cell(page)
    card.locator(".gq-state", has_text="running").wait_for(timeout=60_000)
    number, name = card.locator(".gq-title").inner_text().split()
    assert name == "carded"
    lab.api("POST", f"jobs/{number}/cancel")
    card.locator(".gq-state", has_text="cancelled").wait_for(timeout=10_000)


def test_notebook_7_has_it_in_its_sidebar(lab: Server, opened: Opened) -> None:
    pytest.importorskip("notebook")
    job = lab.submit("sleep 600", tag="long", preset="exclusive")
    page = opened("notebooks/panel.ipynb")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
    entry = page.get_by_role("menuitem", name="Show GPU queue")
    menu = page.get_by_role("menuitem", name="View")

    def found() -> bool:  # the menu grows while the application starts
        page.keyboard.press("Escape")
        menu.click()
        side = page.get_by_text("Left Sidebar")
        if side.count():
            side.first.hover()
        return appears(entry)

    until(found, what="the panel is in the menu")
    entry.click()
    page.locator(f"#jupyter-gpuqueue-panel .gq-running [data-job='{job}']").wait_for(timeout=8000)
    picture(page, "notebook")


# -- doing -----------------------------------------------------------------------------------


def test_free_and_resume(lab: Server, opened: Opened) -> None:
    job = lab.submit("sleep 600", tag="long", preset="exclusive")
    until(lambda: lab.api("GET", f"jobs/{job}")["state"] == "running")
    page = on_page(opened)
    page.get_by_role("button", name="Freeze").click()
    page.locator(".gq-chip[data-mode=free]").wait_for(timeout=20_000)
    page.get_by_text("by you").wait_for()
    page.locator(f".gq-running [data-job='{job}'][data-state=frozen]").wait_for(timeout=8000)
    assert lab.api("GET", "status")["mode"]["name"] == "free"
    picture(page, "free")
    page.get_by_role("button", name="Resume").click()
    page.locator(f".gq-running [data-job='{job}'][data-state=running]").wait_for(timeout=20_000)
    assert lab.api("GET", "status")["mode"]["name"] == "normal"


def test_a_row_is_dragged_to_the_front(lab: Server, opened: Opened) -> None:
    _, a, b, c = line_of(lab, 3)
    page = on_page(opened)
    grip = page.locator(f".gq-waiting [data-job='{c}'] .gq-grip")
    grip.wait_for()
    start = grip.bounding_box()
    target = page.locator(f".gq-waiting [data-job='{a}']").bounding_box()
    page.mouse.move(start["x"] + 5, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(target["x"] + 40, target["y"] + 30, steps=5)
    page.locator(".gq-mark").wait_for()
    page.mouse.move(target["x"] + 40, target["y"] + 4, steps=5)
    page.mouse.up()
    until(lambda: order(lab) == [c, a, b], what="the queue has the new order")
    page.get_by_text(f"Job {c} is at position 1.").wait_for()
    assert not page.locator(".gq-mark").is_visible()


def test_a_drag_that_is_broken_off_moves_nothing(lab: Server, opened: Opened) -> None:
    _, a, b = line_of(lab, 2)
    page = on_page(opened)
    grip = page.locator(f".gq-waiting [data-job='{b}'] .gq-grip")
    grip.wait_for()
    box = grip.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 5, box["y"] - 100, steps=5)
    page.keyboard.press("Escape")
    page.mouse.up()
    page.locator(".gq-mark").wait_for(state="hidden")
    assert order(lab) == [a, b]


def test_rows_move_by_keyboard_and_keep_the_focus(lab: Server, opened: Opened) -> None:
    _, a, b, c = line_of(lab, 3)
    page = on_page(opened)
    grip = page.locator(f".gq-waiting [data-job='{c}'] .gq-grip")
    grip.focus()
    page.keyboard.press("ArrowUp")
    until(lambda: order(lab) == [a, c, b], what="it is one up")
    page.get_by_text(f"Job {c} is at position 2.").wait_for()
    assert page.evaluate("document.activeElement.closest('[data-job]').dataset.job") == str(c)
    page.keyboard.press("Home")
    until(lambda: order(lab) == [c, a, b], what="it is in front")
    page.get_by_text(f"Job {c} is at position 1.").wait_for()
    page.keyboard.press("ArrowDown")
    until(lambda: order(lab) == [a, c, b], what="it is one down")


def test_a_row_does_not_move_ahead_of_what_it_comes_after(lab: Server, opened: Opened) -> None:
    _, a = line_of(lab, 1)
    b = lab.submit("true", tag="child", after=[a], **WHOLE)
    page = on_page(opened)
    page.locator(f".gq-waiting [data-job='{b}'] .gq-grip").focus()
    page.keyboard.press("ArrowUp")
    page.get_by_role("alert").filter(has_text=f"job {b} comes after job {a}").wait_for()
    assert order(lab) == [a, b]


def test_a_log_is_followed_as_it_grows(lab: Server, opened: Opened) -> None:
    code = "import time\nprint('begun', flush=True)\ninput_ = open('go', 'w').close()\n"
    code += "import os\nwhile not os.path.exists('more'): time.sleep(0.02)\n"
    code += "print('a line that came later', flush=True)\ntime.sleep(600)"
    job = lab.submit([sys.executable, "-c", code], tag="talker", preset="cpu")
    page = on_page(opened)
    page.locator(f".gq-running [data-job='{job}'] .gq-open").click()
    log = page.locator(".gq-log")
    log.get_by_text("begun").wait_for(timeout=8000)
    (lab.folder / "more").touch()
    log.get_by_text("a line that came later").wait_for(timeout=2500)
    (lab.folder / "more").unlink()
    page.keyboard.press("Escape")
    page.locator(".gq-main").wait_for()


def test_a_failure_is_read_where_it_happened(lab: Server, opened: Opened) -> None:
    (lab.folder / "broken.py").write_text("a = {}\nprint('one')\na['missing']\n")
    job = lab.submit(["python", "broken.py"], tag="broken", preset="cpu")
    page = on_page(opened)
    row = page.locator(f".gq-recent [data-job='{job}'][data-state=failed]")
    row.get_by_text("exit code 1: KeyError: 'missing'").wait_for(timeout=10_000)
    row.get_by_text("broken.py, line 3: a['missing']").wait_for()
    row.get_by_role("button", name=f"Run job {job} again").click()
    page.get_by_text(f"Job {job} is queued again as job").wait_for()


def test_a_command_is_queued_from_the_form(lab: Server, opened: Opened) -> None:
    line_of(lab, 0)
    page = on_page(opened)
    page.get_by_role("button", name="New job").click()
    page.get_by_role("textbox", name="Command").fill("echo from-the-form")
    page.get_by_text("Would be at position 1, in").wait_for()
    page.get_by_label("Size").select_option("cpu")
    page.get_by_text("Would start at once on CPU").wait_for()
    page.get_by_label("Name").fill("form")
    page.get_by_role("button", name="Queue it").click()
    page.locator(".gq-recent [data-state=succeeded]", has_text="form").wait_for(timeout=8000)
    (job,) = [each for each in lab.api("GET", "jobs")["jobs"] if each["tag"] == "form"]
    # the same as from Python, but for where it came from
    other = gpuqueue.submit("echo from-the-form", preset="cpu", tag="form", cwd=job["cwd"])
    other.wait(60)
    told = lab.api("GET", f"jobs/{other.id}")
    own = {"id", "origin", "submitted", "position", "started", "ended", "pid", "expected"}
    same = told.keys() & job.keys() - own - {"latest", "learned"}
    assert {name: job[name] for name in same} == {name: told[name] for name in same}


def test_what_a_job_came_from_is_opened(lab: Server, opened: Opened) -> None:
    page = opened("lab/tree/card.ipynb?reset")
    card = in_cell(page)
    card.locator(".gq-state", has_text="running").wait_for(timeout=60_000)
    job = lab.api("GET", f"jobs/{card.locator('.gq-title').inner_text().split()[0]}")
    assert job["origin"]["path"].endswith("/card.ipynb")
    alone = on_page(opened)
    alone.locator(f"[data-job='{job['id']}'] .gq-open").first.click()
    with alone.expect_popup() as popup:
        alone.get_by_role("button", name="Open notebook").click()
    popup.value.wait_for_url("**/lab/tree/card.ipynb")
    # and its end is told in JupyterLab, where that notebook is open
    lab.api("POST", f"jobs/{job['id']}/cancel")
    page.get_by_text(f"Job {job['id']} (carded) was cancelled").wait_for(timeout=10_000)


# -- looking only, or nothing to look at -------------------------------------------------------


def test_nothing_is_asked_for_while_nobody_looks(lab: Server, opened: Opened) -> None:
    page = opened("lab?reset")
    in_lab(page)
    page.get_by_role("tab", name="GPU queue").click()  # closes the sidebar
    page.wait_for_selector("#jupyter-gpuqueue-panel", state="hidden")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with page.expect_request("**/counts*", timeout=20_000):
        job = lab.submit("true", tag="unseen", preset="cpu")
    until(lambda: lab.api("GET", f"jobs/{job}")["state"] == "succeeded")
    # a panel in sight would have asked long before the status bar does again, three seconds later
    with page.expect_request("**/counts*", timeout=20_000):
        lab.submit("true", tag="later", preset="cpu")
    # but for the two numbers in the status bar, which are asked for when something has changed, and
    # for the job that has ended, or for both at once where they end together; a panel asks for more
    ours = [url for url in asked if "gpuqueue" in url]
    told = r"(/counts|/jobs/\d+|/status\?limit=0&recent=50)([?&]\d+)?$"
    assert all(re.search(told, url) for url in ours), ours
    # two jobs have ended; how often there is something to count depends on the machine's speed
    assert sum("/counts" not in url for url in ours) <= 2, ours
    page.get_by_role("tab", name="GPU queue").click()
    page.locator(f"[data-job='{job}']").wait_for(timeout=5000)


def test_the_page_wants_a_token_and_ui_prints_its_address(lab: Server, place: Home) -> None:
    runtime = {"JUPYTER_RUNTIME_DIR": str(lab.folder / "jupyter_runtime_dir")}
    told = subprocess.run(
        [sys.executable, "-c", "from gpuqueue.cli import main; main()", "ui", "--print"],
        env={**os.environ, **runtime},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    told = told.stdout.strip()
    assert told == f"{lab.url.replace('127.0.0.1', 'localhost')}gpuqueue/?token={TOKEN}"
    with urllib.request.urlopen(told) as answer:
        assert b"GPU queue" in answer.read()
    with urllib.request.urlopen(f"{lab.url}gpuqueue/") as answer:
        assert "/login?next=" in answer.url
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{lab.url}gpuqueue/static/../../../etc/passwd?token={TOKEN}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(lab: Server, opened: Opened, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    line_of(lab, 2)
    failed = lab.submit("exit 3", tag="bad", preset="cpu")
    page = on_page(opened, color_scheme=scheme)
    page.locator(f"[data-job='{failed}']").wait_for()
    page.locator(".gq-stay").first.wait_for()
    page.get_by_role("button", name="New job").click()
    found = serious(Axe().run(page))
    page.keyboard.press("Escape")
    page.locator(f"[data-job='{failed}'] .gq-open").click()
    page.locator(".gq-facts div").first.wait_for()
    found += serious(Axe().run(page))
    assert found == []


def test_without_the_server_part_the_sidebar_says_so_and_a_cell_works_by_its_kernel(
    place: Home, tmp_path: Path, browser: Any
) -> None:
    cells = [{**CELL, "source": "import gpuqueue\ngpuqueue.panel()"}]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": KERNEL, "cells": cells}
    (tmp_path / "panel.ipynb").write_text(json.dumps(notebook))
    off = "--ServerApp.jpserver_extensions={'gpuqueue_jupyter': False, 'jupyterlab': True}"
    with server(place, tmp_path, *jupyter("lab", off)) as bare:
        page = watched(browser.new_page(viewport={"width": 1100, "height": 900}))
        page.goto(f"{bare.url}lab/tree/panel.ipynb?token={TOKEN}&reset")
        page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
        page.get_by_role("tab", name="GPU queue").click()
        page.get_by_text("does not have the server part of gpuqueue").wait_for()
        page.get_by_role("tab", name="GPU queue").click()
        panel = in_cell(page)
        panel.locator(".gq-card").first.wait_for(timeout=60_000)
        assert page.problems == []
        page.close()


def test_no_browser_keeps_the_files_of_an_earlier_version(lab: Server) -> None:
    for file in ("remoteEntry.js", "lab.mjs", "panel/view.mjs", "panel/panel.css"):
        address = f"{lab.url}lab/extensions/jupyter-gpuqueue/files/{file}?token={TOKEN}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.headers["Cache-Control"] == "no-cache"


def test_a_page_of_another_version_says_so(lab: Server, opened: Opened) -> None:
    def older(route: Any) -> None:
        route.fulfill(body="export const VERSION = '0.0.1'; export const SCHEMA = 1;",
                      content_type="text/javascript")  # fmt: skip

    page = opened("gpuqueue/api/v1/status")
    page.route("**/version.mjs", older)
    page.goto(f"{lab.url}gpuqueue/")
    page.locator(".gq-note", has_text="this panel is 0.0.1").wait_for()
    page.wait_for_selector(".gq-card")


def test_the_files_of_the_package_are_those_of_the_panel() -> None:
    from gpuqueue_widgets.files import as_one_module, panel_folder

    assert (panel_folder() / "view.mjs").is_file()
    module = as_one_module("widget")
    names = {path.stem for path in Path(panel_folder()).glob("*.mjs")}
    assert all(f'"{name}"' in module for name in names - {"notices", "page", "paused", "types"})
