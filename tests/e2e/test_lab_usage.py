"""The small table of who used how much: folded, asked for when it is opened, read as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from panel_browser import *  # noqa: F403
from panel_view import *  # noqa: F403
from panel_view import again, job, status, text

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

ANSWER = """path => {
  const by = /by=(\\w+)/.exec(path)[1];
  const since = /since=(\\w+)/.exec(path)[1];
  window.usages = [...(window.usages || []), [since, by]];
  const row = (name, gpu_hours, jobs) => ({ [by]: name, gpu_hours, gib_hours: gpu_hours * 40, held_hours: gpu_hours, jobs });
  if (window.none) return { by, since: 0, until: 1, rows: [] };
  if (by === 'notebook') return { by, rows: [row('/home/ann/deep/explore.ipynb', 2, 3), row('', 0.001, 1)] };
  if (by === 'gpu') return { by, rows: [{ ...row('GPU-123', 7, 1), name: 'GPU 1 (H200)' }] };
  if (by === 'tag') return { by, rows: Array.from({ length: 30 }, (_, i) => row(`t-${i}`, 30 - i, 1)) };
  return { by, rows: [row('ann', 12.34, 40), row('<b>bo</b>', 0.5, 2)] };
}"""  # noqa: E501


@pytest.fixture
def told(show: Callable[..., Any]) -> Any:
    """A page with the panel, whose usage has been asked for by nobody yet."""
    page = show(status(running=[job(1, "running")]))
    page.evaluate(f"window.answers = {{ '/usage': {ANSWER} }}")
    return page


def rows(page: Any) -> list[list[str]]:
    return [
        [cell.strip() for cell in row.locator("th, td").all_inner_texts()]
        for row in page.get_by_role("table").get_by_role("row").all()
    ]


def opened(page: Any) -> Any:
    page.locator(".gq-usage summary").click()
    page.get_by_role("table", name="Usage of the GPUs in the last").wait_for()
    return page


def test_it_is_asked_for_when_it_is_opened_and_not_before(told: Any) -> None:
    page = told
    again(page, status(running=[job(1, "running")]))
    assert page.evaluate("window.usages") is None
    page.locator(".gq-usage summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("table", name="Usage of the GPUs in the last 24 hours, by owner").wait_for()
    assert rows(page) == [
        ["Owner", "GPU h", "GiB h", "Jobs"],
        ["ann", "12.3", "494", "40"],
        ["<b>bo</b>", "0.50", "20.0", "2"],
        ["all", "12.8", "514", ""],
    ]
    assert page.get_by_role("rowheader", name="ann").count() == 1
    assert page.get_by_role("columnheader").count() == 4
    # changes of the queue are no reason to add up all records anew
    for _ in range(3):
        again(page, status(running=[job(1, "running")]))
    assert page.evaluate("usages.length") == 1


def test_it_is_told_by_notebook_by_name_and_by_gpu_of_a_day_or_a_week(told: Any) -> None:
    page = opened(told)
    page.get_by_role("combobox", name="By").select_option("notebook")
    page.get_by_role("table", name="by notebook").wait_for()
    assert rows(page)[1:3] == [
        ["explore.ipynb", "2.00", "80.0", "3"], ["none", "<0.01", "0.04", "1"],
    ]  # fmt: skip
    page.get_by_role("combobox", name="By").select_option("gpu")
    page.get_by_role("rowheader", name="GPU 1 (H200)").wait_for()
    assert len(rows(page)) == 2  # one row needs no sum
    page.get_by_role("combobox", name="Of the last").select_option("7d")
    page.get_by_role("table", name="in the last 7 days, by GPU").wait_for()
    page.get_by_role("combobox", name="By").select_option("tag")
    page.get_by_role("rowheader", name="t-19").wait_for()
    assert rows(page)[-2:] == [["10 more", "55.0", "2200", ""], ["all", "465", "18600", ""]]
    asked = page.evaluate("usages")
    assert asked == [["24h", "owner"], ["24h", "notebook"], ["24h", "gpu"], ["7d", "gpu"],
                     ["7d", "tag"]]  # fmt: skip


def test_where_nobody_has_used_anything_it_says_so(told: Any) -> None:
    page = told
    page.evaluate("window.none = true")
    page.locator(".gq-usage summary").click()
    page.get_by_text("Nobody has held a GPU in the last 24 hours.").wait_for()
    assert page.get_by_role("table").count() == 0


def test_what_the_server_says_is_told_where_it_refuses(told: Any) -> None:
    page = told
    page.evaluate("window.answers = {}")
    page.locator(".gq-usage summary").click()
    page.locator(".gq-usage").get_by_text("there is none").wait_for()
    assert "Usage" in text(page) or "USAGE" in text(page)
    page.evaluate(f"window.answers = {{ '/usage': {ANSWER} }}")
    page.get_by_role("combobox", name="By").select_option("tag")
    page.get_by_role("table", name="by name").wait_for()
    assert not page.locator(".gq-usage").get_by_text("there is none").is_visible()
