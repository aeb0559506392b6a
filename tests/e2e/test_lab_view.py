"""The panel's view by itself in a real browser, with a home made for the test."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.units import format_bytes, format_duration

pytestmark = pytest.mark.browser

SOURCE = (Path(__file__).parents[2] / "widgets" / "panel" / "panel.mjs").read_text()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
if CHROMIUM is None:
    pytest.skip("there is no chromium here", allow_module_level=True)

HOME = """async ([source, refresh]) => {
  const url = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
  const panel = (window.panel = await import(url));
  const root = document.body.appendChild(document.createElement('div'));
  window.asked = 0;
  window.seen = window.seen ?? true;
  window.view = panel.show(root, {
    refresh,
    visible: () => window.seen,
    onChange: changed => { window.changed = changed; return () => { window.stopped = true; }; },
    cancel: window.cannot ? undefined : async job => {
      (window.cancelled ??= []).push(job);
      if (window.refusal) throw new panel.Refused(...window.refusal);
    },
    async status() {
      window.asked += 1;
      const { status, answer } = window.reply;
      if (status === 0) throw new TypeError('Failed to fetch');
      if (status !== 200) throw new panel.Refused(status, answer);
      return { ...answer, at: Date.now() / 1000 };
    },
  });
}"""


def job(number: int, state: str, **more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "id": number, "tag": f"job-{number}", "state": state, "owner": "ann", "reason": "",
        "command": "python train.py", "started": now - 90, "ended": None,
        "request": {"eta": None}, "wait": None, **more,
    }  # fmt: skip


def status(**more: Any) -> dict[str, Any]:
    gpu = {
        "index": 0, "name": "H200", "memory": 141 << 30, "grants": [], "outside_holders": [],
        "outside": 0, "reading": {"memory_used": 1 << 30, "utilization": 3},
    }  # fmt: skip
    found: dict[str, Any] = {
        "schema": 1, "lead": None, "problem": "", "warning": "", "gpus": [gpu], "running": [],
        "waiting": [], "recent": [], "server": {"version": "0.1.0", "problem": ""}, **more,
    }  # fmt: skip
    found.setdefault("counts", {name: len(found[name]) for name in ("running", "waiting")})
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Any]]:
    """Shows an answer; gives the page."""
    page = browser.new_page()

    def shown(answer: Any, code: int = 200, refresh: float = 10) -> Any:
        page.evaluate("reply => { window.reply = reply; }", {"status": code, "answer": answer})
        page.evaluate(HOME, [SOURCE, refresh])
        page.wait_for_function("window.asked > 0")
        return page

    yield shown
    page.close()


def text(page: Any) -> str:
    return str(page.locator(".gq-view").inner_text())


def test_numbers_read_as_everywhere_else(show: Callable[..., Any]) -> None:
    page = show(status())
    sizes = [0, 1, 1023, 1024, 1536, 99 << 20, 100 << 20, 1023 << 20, 80 << 30, 3 << 40, None]
    for size in sizes:
        assert page.evaluate("size => panel.bytes(size)", size) == format_bytes(size)
    for seconds in (0, 1, 59.4, 60, 61, 3599, 3600, 3629, 5400, 86400, 100_000, 900_000):
        told = page.evaluate("seconds => panel.duration(seconds)", seconds)
        assert told == format_duration(seconds)


def test_a_queue_with_everything(show: Callable[..., Any]) -> None:
    wait = {"position": 1, "expected": time.time() + 300, "sentence": "waits for job 1"}
    page = show(
        status(
            running=[job(1, "running", request={"eta": 600})],
            waiting=[job(2, "queued", wait=wait), job(3, "queued")],
            recent=[job(4, "failed", ended=time.time(), reason="exit code 3\nmore")],
            warning="config.toml cannot be read",
        )
    )
    told = text(page)
    for words in (
        "1m 30s of about 10m", "waits for job 1", "in 5m", "about to start", "failed",
        "exit code 3", "config.toml cannot be read", "H200, 1G of 141G, 3% busy",
    ):  # fmt: skip
        assert words in told, words
    assert "more" not in told
    assert "Nothing runs" not in told


def test_memory_is_told_as_held_and_where_it_is_more_than_asked_for(
    show: Callable[..., Any],
) -> None:
    grant = {"job": 1, "tag": "job-1", "compute": 250, "memory": 6 << 30, "whole": False}
    gpus = [status()["gpus"][0] | {"grants": [grant | {"used": 7 << 30}, grant | {"used": None}]}]
    over = {"request": {"eta": None, "memory": 6 << 30}, "peak": 7 << 30, "excess": 1 << 30}
    fits = {"request": {"eta": None, "memory": 6 << 30}, "peak": 5 << 30, "excess": 0}
    recent = [job(2, "succeeded", ended=time.time(), **over), job(3, "succeeded", **fits)]
    running = [job(1, "running", **over)]
    told = text(show(status(gpus=gpus, running=running, recent=recent)))
    assert "job-1: 25%, 6G, uses 7G" in told
    assert told.count("uses") == 1
    assert told.count("has used 7G of GPU memory, asked for 6G") == 2
    assert told.count("has used") == 2


def test_what_the_driver_does_not_tell_is_not_made_up(show: Callable[..., Any]) -> None:
    gpus = [status()["gpus"][0] | {"memory": None, "reading": None}]
    told = text(show(status(gpus=gpus)))
    assert "? of ?" in told
    assert "busy" not in told
    assert "NaN" not in told
    assert "null" not in told


def test_no_gpus_says_why(show: Callable[..., Any]) -> None:
    assert "the driver is not loaded" in text(
        show(status(gpus=[], problem="the driver is not loaded"))
    )


def test_a_long_queue_is_cut_and_counted(show: Callable[..., Any]) -> None:
    waiting = [job(number, "queued") for number in range(1, 201)]
    page = show(status(waiting=waiting, counts={"running": 0, "waiting": 5000}))
    assert page.locator("[data-job]").count() == 50
    assert "and 4950 more" in text(page)


def test_names_are_text_and_not_markup(show: Callable[..., Any]) -> None:
    evil = "<img src=x onerror='window.hacked = true'>"
    page = show(
        status(running=[job(1, "running", tag=evil, owner=evil)], warning=evil, problem=evil)
    )
    assert evil in text(page)
    assert page.locator("img").count() == 0
    assert not page.evaluate("window.hacked")


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


def test_it_recovers(show: Callable[..., Any]) -> None:
    page = show(None, 0)
    page.locator(".gq-note", has_text="cannot be reached").wait_for()
    page.evaluate("answer => { reply = { status: 200, answer }; changed(); }", status())
    page.get_by_text("Nothing runs and nothing waits.").wait_for()
    assert page.get_by_role("status").count() == 0


def test_many_changes_are_few_questions(show: Callable[..., Any]) -> None:
    began = time.monotonic()
    page = show(status())
    for _ in range(100):
        page.evaluate("changed()")
        page.wait_for_timeout(5)
    page.wait_for_timeout(1200)
    took = time.monotonic() - began
    assert 2 <= page.evaluate("asked") <= 2 + took / 0.5


def test_it_does_not_ask_faster_than_every_five_seconds(show: Callable[..., Any]) -> None:
    page = show(status(), refresh=0.1)
    page.wait_for_timeout(3000)
    assert page.evaluate("asked") == 1


def test_nobody_looking_nothing_asked(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("seen = false; changed()")
    page.wait_for_timeout(1500)
    assert page.evaluate("asked") == 1
    page.evaluate("seen = true; view.look()")
    page.wait_for_function("asked === 2")


def test_closed_it_is_quiet(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("view.close(); view.look(); changed()")
    page.wait_for_timeout(1000)
    assert page.evaluate("[asked, stopped]") == [1, True]
    assert page.locator(".gq-view").inner_text() == ""


def test_cancelling_asks_once(show: Callable[..., Any]) -> None:
    page = show(status(running=[job(1, "running")], waiting=[job(2, "queued")], recent=[]))
    button = page.locator("[data-job='2']").get_by_role("button")
    button.click()
    assert button.inner_text() == "cancel?"
    assert page.locator("[data-job='1']").get_by_role("button").inner_text() == "×"
    assert page.evaluate("window.cancelled") is None
    page.evaluate("view.look()")  # what is drawn anew in between does not forget the question
    page.wait_for_function("asked === 2")
    button.click()
    page.wait_for_function("asked === 3")
    assert page.evaluate("cancelled") == [2]
    assert button.inner_text() == "×"


def test_a_question_that_nobody_answers_is_taken_back(show: Callable[..., Any]) -> None:
    page = show(status(running=[job(1, "running")]))
    button = page.locator("[data-job='1']").get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel job 1: sure?").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "cancel?"
    page.get_by_role("button", name="Cancel job 1", exact=True).wait_for()
    assert page.evaluate("window.cancelled") is None


def test_why_a_job_was_not_cancelled_is_told_and_stays(show: Callable[..., Any]) -> None:
    page = show(status(running=[job(1, "running")]))
    page.evaluate("window.refusal = [409, 'it has ended']")
    button = page.locator("[data-job='1']").get_by_role("button")
    button.click()
    button.click()
    told = page.get_by_role("alert", name="").filter(has_text="was not cancelled. it has ended")
    told.wait_for()
    page.wait_for_function("asked === 2")
    assert told.is_visible()
    assert button.is_enabled()


def test_what_has_ended_has_no_button_and_neither_has_a_view_that_cannot(
    show: Callable[..., Any],
) -> None:
    page = show(status(recent=[job(4, "failed", ended=time.time())]))
    assert page.get_by_role("button").count() == 0
    page = show(status(running=[job(1, "running")]))
    page.evaluate("view.close(); window.cannot = true; window.asked = 0")
    page = show(status(running=[job(1, "running")]))
    page.locator("[data-job='1']").wait_for()
    assert page.get_by_role("button").count() == 0
