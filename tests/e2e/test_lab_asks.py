"""What the panel asks and when, and what it says where it gets no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from panel_view import *  # noqa: F403
from panel_view import again, status, text

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def clock(blank: Any) -> Any:
    """The page's own clock, which goes on by itself and can be put forward."""
    blank.clock.install()
    return blank.clock


@pytest.mark.parametrize(
    ("code", "answer", "words"),
    [
        (0, None, "cannot be reached"),
        (404, "", "pip install jupyter-gpuqueue"),
        (403, "", "not allowed"),
        (503, "the state directory is on a network file system", "network file system"),
        (500, "", "status 500"),
        (200, {"schema": 2, "server": {"version": "9.9"}, "counts": {}}, "9.9"),
        (200, {"schema": 1}, "different versions"),
        (200, {"hello": "world"}, "different versions"),
    ],
)  # fmt: skip
def test_trouble_is_told_with_what_to_do(
    show: Callable[..., Any], code: int, answer: Any, words: str
) -> None:
    page = show(answer, code)
    page.locator(".gq-note", has_text=words).wait_for()


def test_a_server_of_another_version_is_told_and_shown_all_the_same(
    show: Callable[..., Any],
) -> None:
    page = show(status(server={"version": "9.9", "problem": ""}))
    page.locator(".gq-note", has_text="is 9.9, this panel is").wait_for()
    assert "H200" in text(page)


def test_a_silent_kernel_is_told_as_such(show: Callable[..., Any]) -> None:
    page = show(None, 0, kind="kernel")
    page.locator(".gq-note", has_text="kernel does not answer").wait_for()


def test_it_recovers(show: Callable[..., Any]) -> None:
    page = show(None, 0)
    page.locator(".gq-note", has_text="cannot be reached").wait_for()
    again(page, status())
    page.get_by_text("The GPUs are idle.").wait_for()
    page.locator(".gq-note", has_text="cannot be reached").wait_for(state="hidden")


def test_many_changes_are_few_questions(show: Callable[..., Any]) -> None:
    page = show(status())
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)
    before = page.evaluate("asked")
    for _ in range(100):
        page.evaluate("changed()")
        page.clock.run_for(5)
    page.clock.run_for(1000)
    assert 2 <= page.evaluate("asked") - before <= 3  # half a second, and the end of it


def test_it_does_not_ask_faster_than_every_two_seconds(show: Callable[..., Any]) -> None:
    page = show(status(), refresh=0.1)
    page.clock.run_for(1200)
    assert page.evaluate("asked") == 1


def test_nobody_looking_nothing_asked(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("seen = false; changed()")
    page.clock.run_for(1200)
    assert page.evaluate("asked") == 1
    page.evaluate("seen = true; view.look()")
    page.wait_for_function("asked === 2")


GONE = """() => new Promise(done => new IntersectionObserver(
  found => found.at(-1).isIntersecting || done()).observe(root))"""
"""The view's own observer is older, so that it has heard of it too."""


def test_scrolled_out_of_sight_it_asks_nothing(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("root.style.cssText = 'position: absolute; top: 9000px; height: 300px'")
    page.evaluate(GONE)
    page.evaluate("changed()")
    page.clock.run_for(1000)
    assert page.evaluate("asked") == 1
    page.evaluate("root.style.cssText = ''")
    page.wait_for_function("asked === 2")


def test_closed_it_is_quiet(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("view.close(); view.look(); changed()")
    page.clock.run_for(1000)
    assert page.evaluate("[asked, stopped]") == [1, True]
    assert page.locator("main").inner_text() == ""
