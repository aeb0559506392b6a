"""Usage, undo and folders in the panel's homes, on a real server with real jobs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from conftest import until
from lab_server import Server
from panel_browser import in_lab, picture
from panel_lab import *  # noqa: F403
from panel_lab import Opened, in_cell, line_of, on_page, order, serious

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.mark.parametrize("home", ["sidebar", "page", "cell"])
def test_usage_is_told_in_each_home(lab: Server, opened: Opened, home: str) -> None:
    job = lab.submit("sleep 600", tag=f"held-{home}", preset="two")
    until(lambda: lab.api("GET", f"jobs/{job}")["state"] == "running")
    if home == "sidebar":
        page = opened("lab?reset")
        panel = in_lab(page)
    elif home == "page":
        page = panel = on_page(opened)
    else:
        page = opened("lab/tree/panel.ipynb?reset")
        panel = in_cell(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    panel.locator(f".gq-running [data-job='{job}']").wait_for(timeout=60_000)
    assert not any("/usage" in url for url in asked)
    panel.locator(".gq-usage summary").press("Enter")
    table = panel.get_by_role("table", name="Usage of the GPUs in the last 24 hours, by owner")
    table.get_by_role("rowheader").first.wait_for()
    panel.get_by_role("combobox", name="By").select_option("tag")
    panel.get_by_role("table", name="by name").get_by_text(f"held-{home}").wait_for()
    panel.get_by_role("combobox", name="By").select_option("gpu")
    panel.get_by_role("table", name="by GPU").get_by_text("GPU 1").wait_for()
    panel.locator(".gq-usage").evaluate("node => node.scrollIntoView({ block: 'center' })")
    picture(page, f"usage-{home}")
    shown = panel.locator(".gq-usage")
    assert shown.evaluate("node => node.scrollWidth <= node.clientWidth")
    # folded again, nothing is asked for
    panel.locator(".gq-usage summary").press("Enter")
    asked.clear()
    lab.api("POST", f"jobs/{job}/cancel")
    panel.locator(f".gq-recent [data-job='{job}']").wait_for(timeout=15_000)
    assert not any("/usage" in url for url in asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_what_is_unfolded(
    lab: Server, opened: Opened, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    first, waiting = line_of(lab, 1)
    page = on_page(opened, color_scheme=scheme)
    page.locator(".gq-usage summary").click()
    page.get_by_role("table").get_by_role("rowheader").first.wait_for()
    cancel = page.locator(f"[data-cancel='{waiting}']")
    cancel.click()
    cancel.click()
    page.get_by_role("button", name="Undo").wait_for()
    found = serious(Axe().run(page))
    page.get_by_role("button", name="Freeze").click()
    page.get_by_role("list", name="still hold").get_by_text(f"{first} first").wait_for()
    page.wait_for_function("!document.getAnimations().length")
    assert found + serious(Axe().run(page)) == []


def test_a_cancel_of_what_waits_can_be_undone_where_it_was(lab: Server, opened: Opened) -> None:
    _, a, b, c = line_of(lab, 3)
    page = on_page(opened)
    cancel = page.locator(f"[data-cancel='{b}']")
    cancel.click()
    cancel.click()
    page.get_by_text(f"Job {b} is cancelled.").wait_for()
    until(lambda: order(lab) == [a, c])
    page.get_by_role("button", name="Undo").click()
    told = page.get_by_text(re.compile(rf"Job {b} is back in the queue, as job (\d+)\."))
    told.wait_for()
    found = re.search(r"as job (\d+)", told.inner_text())
    assert found is not None
    again = int(found[1])
    until(lambda: order(lab) == [a, again, c], what="it is where it was")
    job = lab.api("GET", f"jobs/{again}")
    assert (job["retry_of"], job["state"]) == (b, "queued")
    # whoever cancels a job is not told of it as news
    assert page.locator(".gq-notice").count() == 0
    # and somebody else's cancel is
    lab.api("POST", f"jobs/{c}/cancel")
    page.locator(".gq-notice").get_by_text(f"Job {c} (w2) was cancelled").wait_for(timeout=10_000)


def test_what_others_wait_for_is_cancelled_for_good(lab: Server, opened: Opened) -> None:
    _, waiting = line_of(lab, 1)
    follower = lab.submit("true", tag="follower", preset="cpu", after=waiting)
    page = on_page(opened)
    page.locator(f".gq-waiting [data-job='{follower}']").wait_for()
    cancel = page.locator(f"[data-cancel='{waiting}']")
    cancel.click()
    cancel.click()
    page.get_by_text(f"Job {waiting} is cancelled.").wait_for()
    assert page.get_by_role("button", name="Undo").count() == 0
    until(lambda: lab.api("GET", f"jobs/{follower}")["state"] == "cancelled")


def test_what_ended_last_is_first_whatever_its_number(lab: Server, opened: Opened) -> None:
    long = lab.submit("sleep 600", tag="long", preset="cpu")
    page = on_page(opened)
    numbers = [lab.submit("true", tag=f"quick-{i}", preset="cpu") for i in range(25)]
    for number in numbers:
        until(lambda number=number: lab.api("GET", f"jobs/{number}")["state"] == "succeeded")
    lab.api("POST", f"jobs/{long}/cancel")
    page.locator(f".gq-recent li:first-child[data-job='{long}']").wait_for(timeout=15_000)
    page.get_by_role("button", name="Show more").click()
    page.locator(f".gq-recent [data-job='{numbers[0]}']").wait_for(timeout=10_000)

    def shown() -> list[int]:
        return page.locator(".gq-recent li").evaluate_all("all => all.map(e => +e.dataset.job)")

    ended = [job["id"] for job in lab.api("GET", "jobs?order=ended&limit=26")["jobs"]]
    assert shown()[:26] == ended
    assert ended[0] == long


def test_a_jobs_folder_is_opened_where_that_can_be(lab: Server, opened: Opened) -> None:
    inside = lab.folder / "a b ü"
    inside.mkdir(exist_ok=True)
    job = int(lab.api("POST", "jobs", {"command": "sleep 600", "cwd": "a b ü"})["id"])
    far = int(lab.api("POST", "jobs", {"command": "sleep 600", "cwd": "/"})["id"])
    page = on_page(opened)
    row = page.locator(f"[data-job='{job}'] .gq-open").first
    row.click()
    with page.expect_popup() as popup:
        page.get_by_role("button", name="Open folder").click()
    popup.value.wait_for_url("**/lab/tree/a%20b%20%C3%BC")
    page.get_by_role("button", name="Back to the queue").click()
    page.locator(f"[data-job='{far}'] .gq-open").first.click()
    page.get_by_role("button", name="Copy command").wait_for()
    assert page.get_by_role("button", name="Open folder").count() == 0

    beside: Any = opened("lab?reset")
    panel = in_lab(beside)
    panel.locator(f"[data-job='{job}'] .gq-open").first.click()
    panel.get_by_role("button", name="Open folder").click()
    beside.locator(".jp-BreadCrumbs-item", has_text="a b ü").wait_for(timeout=20_000)
