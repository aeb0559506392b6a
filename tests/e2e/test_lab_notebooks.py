"""Notebooks' shares in the panel, and shares that are changed in it, on a real server.

Real jobs and kernels on a pretend GPU; the sliders and fields are used with the keyboard, and the
store's books must say the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from lab_server import TOKEN, Server, jupyter, server
from panel_browser import *  # noqa: F403
from panel_browser import as_installed, in_lab, picture, watched

from gpuqueue.client import LocalClient
from gpuqueue.model import ACTIVE, Job, JobKind, JobState
from gpuqueue.paths import Home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

BASE = "/user/ann%40lab/x%20y/"
SLEEP = ["sleep", "600"]


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")


@pytest.fixture
def made(home: Home, tmp_path: Path) -> Iterator[Server]:
    """JupyterLab with this checkout's panel in its sidebar."""
    command = jupyter("lab", "--LabApp.news_url=None", base=BASE)
    env = as_installed(tmp_path / "data")
    with server(home, tmp_path / "work", *command, base=BASE, env=env) as found:
        yield found


@pytest.fixture
def page(browser: Any, made: Server) -> Iterator[Any]:
    """The page by itself."""
    shown = watched(browser.new_page(viewport={"width": 1000, "height": 900}))
    shown.set_default_timeout(30_000)
    shown.goto(f"{made.url}gpuqueue/?token={TOKEN}")
    yield shown
    assert shown.problems == []
    shown.close()


def notebook(made: Server, name: str, asked: dict[str, Any] | None = None) -> None:
    metadata: dict[str, Any] = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    if asked:
        metadata["gpuqueue"] = asked
    text = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": []})
    (made.folder / name).write_text(text)


def start(made: Server, name: str) -> dict[str, Any]:
    """Open a notebook as JupyterLab does; its session."""
    body = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
    status, answer = made.ask("POST", "api/sessions", body)
    assert status == 201, answer
    return dict(answer)


def talk(made: Server, kernel: str) -> Any:
    """A client of a running kernel."""
    import jupyter_client

    file = made.folder / "jupyter_runtime_dir" / f"kernel-{kernel}.json"
    found = jupyter_client.BlockingKernelClient(connection_file=str(file))
    found.load_connection_file()
    found.start_channels()
    return found


def runs(client: LocalClient, number: int) -> Job:
    until(lambda: client.job(number).state is JobState.RUNNING, what=f"job {number} runs")
    return client.job(number)


def kernel_of(client: LocalClient, name: str) -> Job:
    """The share of a notebook, once its kernel runs."""

    def found() -> Job | None:
        live = client.store.live()
        kernels = [job for job in live if job.kind is JobKind.KERNEL and job.state in ACTIVE]
        return next((j for j in kernels if j.tag == name and j.state is JobState.RUNNING), None)

    return until(found, what=f"{name} holds a share")


def booked(client: LocalClient, number: int) -> list[tuple[int, int]]:
    """What a job has by its placement, which must be what the books have as held now."""
    placement = until(lambda: client.job(number).placement, what=f"job {number} is placed")
    assert client.store.held(number, client.job(number).attempt) == placement
    return [(grant.compute, grant.memory) for grant in placement.grants]


def serious(page: Any) -> list[str]:
    """What axe finds that keeps somebody from using it."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{rule['id']}: {node['target']}"
        for rule in Axe().run(page).response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def test_a_running_job_is_given_more_by_the_keyboard(
    made: Server, client: LocalClient, page: Any
) -> None:
    grows = made.submit(SLEEP, tag="grows", share="0.25", mem="20G")
    other = made.submit(SLEEP, tag="other", share="0.25", mem="20G")
    before = runs(client, grows)
    runs(client, other)
    assert before.process is not None
    opener = page.get_by_role("button", name=f"Change the share of job {grows}")
    opener.focus()
    page.keyboard.press("Enter")
    compute = page.get_by_role("slider", name="Compute")
    assert page.evaluate("document.activeElement.name") == "share"
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert compute.get_attribute("aria-valuetext") == "50%, 25% free"
    page.get_by_role("button", name="Give it that").focus()
    page.keyboard.press("Enter")
    page.get_by_text(f"job {grows} has share 0.5").wait_for()
    assert booked(client, grows) == [(500, 20 << 30)]
    assert booked(client, other) == [(250, 20 << 30)]
    after = client.job(grows)
    assert (after.state, after.process, after.attempt) == (
        JobState.RUNNING, before.process, before.attempt,
    )  # fmt: skip

    # more than is free: refused, with the numbers, and nothing has changed
    compute.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.get_by_text("That is more than is free on GPU 0.").wait_for()
    page.get_by_role("button", name="Give it that").focus()
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert").filter(has_text=f"The share of job {grows} stays.")
    alert.wait_for()
    assert "GPU 0 has 0.75 of its compute for it, the 0.5 that it holds" in alert.inner_text()
    assert compute.input_value() == "500"
    assert booked(client, grows) == [(500, 20 << 30)]
    assert client.job(grows).process == before.process


def test_a_waiting_job_asks_for_less_and_starts(
    made: Server, client: LocalClient, page: Any
) -> None:
    first = made.submit(SLEEP, tag="first", share="0.75", mem="20G")
    runs(client, first)
    waits = made.submit(SLEEP, tag="waits", share="0.35", mem="20G")
    page.locator(f".gq-waiting [data-job='{waits}'] .gq-open").click()
    detail = page.locator(".gq-detail")
    detail.get_by_text("It waits, and asks for that from then on.").wait_for()
    compute = detail.get_by_role("slider", name="Compute")
    assert compute.get_attribute("aria-valuetext") == "35%"
    for _ in range(2):
        compute.press("ArrowLeft")
    detail.get_by_role("button", name="Give it that").click()
    runs(client, waits)
    assert booked(client, waits) == [(250, 20 << 30)]
    detail.get_by_text("That leaves 0% free").wait_for()


def test_a_notebook_s_kernel_busy_then_idle_and_ended(
    made: Server, client: LocalClient, page: Any
) -> None:
    section = page.get_by_role("region", name="Notebooks")
    section.get_by_text("No notebook holds a share of a GPU.").wait_for()
    notebook(made, "a b.ipynb", {"share": "0.25", "mem": "20G"})
    session = start(made, "a b.ipynb")
    share = kernel_of(client, "a b.ipynb")
    row = section.locator(f"[data-job='{share.id}']")
    row.get_by_text("a b.ipynb").wait_for()
    row.get_by_text("GPU 0: 25%, 20G").wait_for()
    assert page.locator(f".gq-running [data-job='{share.id}']").count() == 0
    page.get_by_text("0 running, 0 waiting, 1 notebook").wait_for()

    kernel = talk(made, session["kernel"]["id"])
    flag = made.folder / "go on"
    kernel.execute(f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)")
    row.get_by_text("busy", exact=True).wait_for()
    flag.touch()
    row.get_by_text("idle for").wait_for()
    assert (row.locator(".gq-side").get_attribute("title") or "").startswith("Idle since ")
    picture(page, "notebooks-page")

    # another size, now and at its next start
    row.get_by_role("button", name="Change the share of a b.ipynb").click()
    row.get_by_text("At its next start it asks for what the notebook").wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert serious(page) == []
    page.set_viewport_size({"width": 280, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert row.evaluate("node => node.scrollWidth <= node.clientWidth")
    row.scroll_into_view_if_needed()
    picture(page, "notebooks-narrow")
    page.set_viewport_size({"width": 1000, "height": 900})
    row.get_by_role("slider", name="Compute").press("ArrowRight")
    row.get_by_role("button", name="Give it that").click()
    row.get_by_text(f"job {share.id} has share 0.3").wait_for()
    assert booked(client, share.id) == [(300, 20 << 30)]
    row.get_by_role("textbox", name="Compute").fill("0.5")
    row.get_by_role("textbox", name="Memory").fill("much")
    row.get_by_role("textbox", name="Memory").press("Enter")
    row.get_by_text("That was not noted.").wait_for()
    row.get_by_role("textbox", name="Memory").fill("30G")
    row.get_by_role("textbox", name="Memory").press("Enter")
    row.get_by_text("At its next start it asks for 50%, 30G.").wait_for()
    until(lambda: booked(client, share.id) == [(500, 30 << 30)], what="it has that at once")
    row.get_by_text("GPU 0: 50%, 30G").wait_for()

    # its kernel ends, once that was said twice
    row.get_by_role("button", name="Shut down the kernel of a b.ipynb").click()
    row.get_by_text("End its kernel?").click()
    until(lambda: client.job(share.id).state is JobState.CANCELLED, what="its kernel has ended")
    row.wait_for(state="detached")
    kernel.stop_channels()


def test_the_notebook_that_is_open_chooses_its_share(
    browser: Any, made: Server, client: LocalClient
) -> None:
    notebook(made, "mine.ipynb")
    seldom = {"raw": json.dumps({"refresh": 600})}
    assert made.ask("PUT", "lab/api/settings/jupyter-gpuqueue:panel", seldom)[0] == 204
    shown = watched(browser.new_page(viewport={"width": 1200, "height": 900}))
    shown.set_default_timeout(60_000)
    shown.goto(f"{made.url}lab/tree/mine.ipynb?reset&token={TOKEN}")
    panel = in_lab(shown)
    section = panel.get_by_role("region", name="Notebooks")
    section.get_by_text("no share", exact=True).wait_for()
    section.get_by_role("button", name="Change the share of mine.ipynb").click()
    section.get_by_role("textbox", name="Compute").fill("0.25")
    section.get_by_role("textbox", name="Memory").fill("20G")
    section.get_by_role("button", name="Ask for it").click()
    section.get_by_text("At its next start it asks for 25%, 20G.").wait_for()
    picture(shown, "notebooks-lab-chosen")
    kernel = until(lambda: made.ask("GET", "api/sessions")[1], what="it has a kernel")[0]["kernel"]
    assert made.ask("POST", f"api/kernels/{kernel['id']}/restart", {})[0] == 200
    share = kernel_of(client, "mine.ipynb")
    assert booked(client, share.id) == [(250, 20 << 30)]
    row = section.locator(f"[data-job='{share.id}']")
    row.get_by_text("GPU 0: 25%, 20G").wait_for()
    assert row.get_attribute("aria-current") == "true"
    assert section.get_by_text("no share", exact=True).count() == 0
    picture(shown, "notebooks-lab")
    # the panel looks by itself once in ten minutes here: it must have heard of the cell
    asked = talk(made, kernel["id"])
    flag = made.folder / "go on"
    asked.execute(f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)")
    row.get_by_text("busy", exact=True).wait_for()
    flag.touch()
    row.get_by_text("idle for").wait_for()
    asked.stop_channels()
    assert not [problem for problem in shown.problems if "gpuqueue" in problem]
    shown.close()
