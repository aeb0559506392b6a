"""Many jobs in the panel: finding some of them, choosing several, and doing something to all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from panel_view import *  # noqa: F403
from panel_view import again, job, status, wait

pytestmark = pytest.mark.browser

FIND = """([rows, count]) => {
  window.pages = [];
  const fits = path => {
    const words = new URLSearchParams(path.split('?')[1]).get('match') || '';
    return rows.filter(row => row.tag.includes(words));
  };
  window.replyTo = path => {
    const found = fits(path);
    const answer = structuredClone(reply.answer);
    answer.waiting = found.slice(0, 100);
    answer.counts = { running: 0, waiting: count };
    if (/match=|state=/.test(path)) answer.matches = { running: 0, waiting: found.length };
    return { status: 200, answer };
  };
  window.answers = { '/queue': path => {
    const asked = new URLSearchParams(path.split('?')[1]);
    const offset = Number(asked.get('offset'));
    pages.push([offset, Number(asked.get('limit'))]);
    const found = fits(path);
    return { at: 0, total: found.length, offset, jobs: found.slice(offset, offset + Number(asked.get('limit'))) };
  } };
}"""  # noqa: E501


def rows(count: int) -> list[dict[str, Any]]:
    """Waiting jobs, every tenth of which is a sweep."""
    return [
        job(n, "queued", wait=wait(n), tag="sweep" if n % 10 == 0 else f"train-{n}")
        for n in range(1, count + 1)
    ]


def chosen(page: Any) -> list[int]:
    boxes = page.locator("[data-pick]:checked")
    return [int(each) for each in boxes.evaluate_all("all => all.map(e => e.dataset.pick)")]


def box(page: Any, number: int) -> Any:
    return page.locator(f"[data-pick='{number}']")


def posted(page: Any) -> list[str]:
    return [path for path, _ in page.evaluate("posts")]


class TestFinding:
    def test_ten_thousand_jobs_are_looked_through_by_the_server(
        self, show: Callable[..., Any]
    ) -> None:
        page = show(status(waiting=rows(3), counts={"running": 0, "waiting": 10_000}))
        page.evaluate(FIND, [rows(10_000), 10_000])
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") != "filter"  # nothing had the focus
        page.locator(".gq-open").first.focus()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "filter"
        page.keyboard.type("sweep")
        told = page.get_by_role("search").get_by_role("status")
        told.filter(has_text="0 running, 1000 waiting, 0 ended").wait_for()
        assert page.locator(".gq-waiting .gq-count").inner_text() == "1000 OF 10000"
        assert page.locator(".gq-queued").count() < 40
        # the place is that in the queue, not that among those that match
        assert page.locator("[data-job='20'] .gq-place").inner_text() == "20"
        page.locator(".gq-scroller").evaluate("e => { e.scrollTop = e.scrollHeight; }")
        page.locator("[data-job='10000']").wait_for()
        page.get_by_role("searchbox").press("Escape")
        page.locator("[data-job='1']").wait_for()
        assert page.evaluate("path").endswith("recent=20")
        assert told.inner_text() == ""
        page.get_by_role("searchbox").press("Escape")
        assert page.evaluate("document.activeElement === document.body")

    def test_a_slash_in_a_field_is_a_slash(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(1)))
        page.get_by_role("button", name="New job").click()
        page.keyboard.type("ls /tmp")
        assert page.get_by_role("textbox", name="Command").input_value() == "ls /tmp"

    def test_states_are_chips(self, show: Callable[..., Any]) -> None:
        bad = job(4, "failed", ended=time.time())
        page = show(status(waiting=rows(2), recent=[bad]))
        chip = page.get_by_role("button", name="failed", exact=True)
        found = status(recent=[bad], counts={"running": 0, "waiting": 2})
        page.evaluate("answer => { reply = { status: 200, answer }; }",
                      found | {"matches": {"running": 0, "waiting": 0}})  # fmt: skip
        chip.click()
        page.locator(".gq-waiting").wait_for(state="hidden")
        assert page.evaluate("path").endswith("&state=failed")
        assert chip.get_attribute("aria-pressed") == "true"
        assert page.locator("[data-job='4']").is_visible()
        page.get_by_role("button", name="running", exact=True).click()
        page.wait_for_function("path.endsWith('&state=failed,starting,running,evicting,frozen')")

    def test_nothing_found_is_told(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(2)))
        found = {"matches": {"running": 0, "waiting": 0}, "counts": {"running": 0, "waiting": 2}}
        page.evaluate("answer => { reply = { status: 200, answer }; }", status(**found))
        page.get_by_role("searchbox").fill("Größe & more")
        page.get_by_text("No job matches.").wait_for()
        assert "match=Gr%C3%B6%C3%9Fe%20%26%20more" in page.evaluate("path")
        assert not page.get_by_text("The GPUs are idle.").is_visible()

    def test_older_ones_are_looked_for_too(self, show: Callable[..., Any]) -> None:
        ended = [job(n, "succeeded", ended=time.time()) for n in range(120, 100, -1)]
        found = status(recent=ended, matches={"running": 0, "waiting": 0})
        page = show(status(recent=ended))
        page.evaluate(
            """([answer, first]) => { reply = { status: 200, answer }; window.answers = {
              '/jobs': path => {
                window.older = path;
                return { jobs: [first], next: null };
              } }; }""",
            [found, job(7, "succeeded", ended=1.0)],
        )  # fmt: skip
        page.get_by_role("searchbox").fill("job")
        page.get_by_text("20+ ended").wait_for()
        page.get_by_role("button", name="Show more").click()
        page.locator("[data-job='7']").wait_for()
        asked = page.evaluate("older")
        ended = "state=succeeded,failed,cancelled&order=ended"
        assert asked == f"/jobs?{ended}&before=101&limit=50&match=job"


class TestChoosing:
    def test_clicks_with_control_and_shift(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(8)))
        row = "[data-job='{}'] .gq-line"
        page.locator(row.format(2)).click(modifiers=["Control"])
        assert chosen(page) == [2]
        page.locator(row.format(5)).click(modifiers=["Shift"])
        assert chosen(page) == [2, 3, 4, 5]
        page.locator(row.format(3)).click(modifiers=["Control"])
        assert chosen(page) == [2, 4, 5]
        page.get_by_text("3 chosen").wait_for()
        assert page.locator(".gq-main").is_visible()  # no job was opened
        page.get_by_role("button", name="Choose none").click()
        assert chosen(page) == []
        assert not page.get_by_text("chosen").is_visible()
        page.locator(row.format(3)).click()
        page.locator(".gq-detail").wait_for()

    def test_space_and_arrow_keys(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(40)))
        box(page, 2).focus()
        page.keyboard.press("Space")
        for _ in range(3):
            page.keyboard.press("Shift+ArrowDown")
        assert chosen(page) == [2, 3, 4, 5]
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Space")
        assert chosen(page) == [2, 3, 4, 5, 7]
        assert page.evaluate("document.activeElement.dataset.pick") == "7"
        for _ in range(20):
            page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.dataset.pick") == "27"
        page.keyboard.press("Control+a")
        page.get_by_text("40 chosen").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("40 chosen").wait_for(state="hidden")

    def test_a_range_over_rows_that_were_never_in_sight(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(100), counts={"running": 0, "waiting": 10_000}))
        page.evaluate(FIND, [rows(10_000), 10_000])
        box(page, 1).check()
        page.get_by_role("button", name="All 10000 waiting").click()
        page.get_by_text("10000 chosen").wait_for()
        assert page.evaluate("pages.length") == 20  # 9,900 that were not known, 500 at once
        assert not page.get_by_role("button", name="waiting", exact=True).is_hidden()

    def test_all_are_cancelled_after_one_question(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(8), running=[job(90, "running")]))
        box(page, 2).check()
        box(page, 4).click(modifiers=["Shift"])
        box(page, 90).check()
        page.get_by_role("button", name="Cancel 4", exact=True).click()
        assert posted(page) == []
        page.get_by_role("button", name="Cancel 4: sure?").click()
        page.get_by_text("4 jobs are cancelled.").wait_for()
        assert sorted(posted(page)) == [f"/jobs/{n}/cancel" for n in (2, 3, 4, 90)]
        assert chosen(page) == []

    def test_what_was_refused_stays_chosen_and_is_told(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(4)), refusal=[409, "it has ended"])
        box(page, 1).check()
        box(page, 2).check()
        page.get_by_role("button", name="Cancel 2").click()
        page.get_by_role("button", name="Cancel 2: sure?").click()
        told = page.get_by_role("alert").filter(has_text="Not done for 2 of 2. Job")
        told.wait_for()
        assert "Job 2: it has ended" in told.inner_text()
        assert chosen(page) == [1, 2]

    def test_the_front_keeps_their_order(self, show: Callable[..., Any]) -> None:
        page = show(status(waiting=rows(9)))
        for number in (8, 3, 5):
            box(page, number).check()
        page.get_by_role("button", name="To the front 3").click()
        page.get_by_role("button", name="To the front 3: sure?").click()
        page.get_by_text("3 jobs are at the front.").wait_for()
        assert posted(page) == [f"/jobs/{n}/priority" for n in (8, 5, 3)]

    def test_ended_ones_are_run_again(self, show: Callable[..., Any]) -> None:
        ended = [job(n, "failed", ended=time.time()) for n in (9, 8, 7)]
        page = show(status(recent=ended, waiting=rows(2)))
        box(page, 7).check()
        box(page, 9).click(modifiers=["Shift"])
        assert not page.get_by_role("button", name="Cancel 3").is_visible()
        box(page, 1).check()
        page.get_by_role("button", name="Cancel 1").wait_for()
        page.get_by_role("button", name="Run again 3").click()
        page.get_by_role("button", name="Run again 3: sure?").click()
        page.get_by_text("3 jobs are queued again.").wait_for()
        assert posted(page) == [f"/jobs/{n}/retry" for n in (7, 8, 9)]
        assert chosen(page) == [1]

    def test_a_chosen_one_that_ends_meanwhile_is_not_cancelled(
        self, show: Callable[..., Any]
    ) -> None:
        page = show(status(waiting=rows(3)))
        box(page, 1).check()
        again(page, status(waiting=rows(3)[1:], recent=[job(1, "succeeded", ended=time.time())]))
        page.get_by_role("button", name="Run again 1").wait_for()
        assert not page.get_by_role("button", name="Cancel 1").is_visible()

    def test_who_may_only_look_has_nothing_to_choose(self, show: Callable[..., Any]) -> None:
        may = {"problem": "", "version": "", "may": {"write": False, "execute": False}}
        page = show(status(waiting=rows(2), server=may))
        page.locator("[data-job='1']").wait_for()
        assert page.locator("[data-pick]").count() == 0
