"""What a person does in the panel: cancel, free, queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from panel_view import *  # noqa: F403
from panel_view import again, job, status, text

from gpuqueue.about import __version__

pytestmark = pytest.mark.browser


def cancel(page: Any, number: int) -> Any:
    return page.locator(f"[data-cancel='{number}']")


def test_cancelling_asks_once(show: Callable[..., Any]) -> None:
    now = status(running=[job(1, "running")], waiting=[job(2, "queued")])
    page = show(now)
    cancel(page, 2).click()
    assert cancel(page, 2).inner_text() == "Cancel?"
    assert cancel(page, 1).inner_text() == ""
    assert page.evaluate("posts") == []
    again(page, now)  # what is drawn anew in between does not forget the question
    cancel(page, 2).click()
    page.wait_for_function("posts.length === 1")
    assert page.evaluate("posts[0][0]") == "/jobs/2/cancel"
    assert cancel(page, 2).inner_text() == ""


def test_a_question_that_nobody_answers_is_taken_back(show: Callable[..., Any]) -> None:
    page = show(status(running=[job(1, "running")]))
    cancel(page, 1).focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel job 1: sure?").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Cancel?"
    page.get_by_role("button", name="Cancel job 1", exact=True).wait_for(timeout=8000)
    assert page.evaluate("posts") == []


def test_why_a_job_was_not_cancelled_is_told_and_stays(show: Callable[..., Any]) -> None:
    page = show(status(running=[job(1, "running")]), refusal=[409, "it has ended"])
    cancel(page, 1).click()
    cancel(page, 1).click()
    told = page.get_by_role("alert").filter(has_text="was not cancelled. it has ended")
    told.wait_for()
    page.wait_for_function("asked === 2")
    assert told.is_visible()
    assert cancel(page, 1).is_enabled()


def test_what_one_may_not_do_is_not_offered(show: Callable[..., Any]) -> None:
    server = {"version": __version__, "problem": "", "may": {"write": False, "execute": False}}
    mode = {"name": "normal", "by": "", "soft": False, "since": None, "program": "", "holding": []}
    page = show(
        status(
            running=[job(1, "running")], waiting=[job(2, "queued")], server=server, mode=mode,
            recent=[job(4, "failed", ended=time.time())],
        )
    )  # fmt: skip
    text(page)
    names = page.get_by_role("button").evaluate_all("all => all.map(e => e.ariaLabel || '')")
    assert all(not name or "show log" in name or "ack" in name for name in names), names
    for words in ("New job", "Free GPUs", "Freeze"):
        assert not page.get_by_role("button", name=words).is_visible()


def test_freeing_and_resuming(show: Callable[..., Any]) -> None:
    mode = {"name": "normal", "by": "", "soft": False, "since": None, "program": "", "holding": []}
    does = ("evict", "evict", "evict", "freeze")
    jobs = [{"id": n, "tag": "t", "does": what, "new": 1} for n, what in enumerate(does)]
    long = "The GPUs are yours: jobs 1, 2, 3 save and step aside; job 4 ...\nand much more"
    answer = {"message": long, "jobs": jobs, "mode": {**mode, "name": "freeing"}, "more": [1]}
    page = show(status(mode=mode), answers={"/free": answer})
    page.get_by_text("Free GPUs").click()
    words = "The GPUs are yours: 3 jobs save and step aside, 1 is frozen."
    page.get_by_role("status").filter(has_text=words).wait_for()
    page.get_by_text("Freeze", exact=True).click()
    page.wait_for_function("posts.length === 2")
    assert page.evaluate("posts") == [["/free", {"soft": False}], ["/free", {"soft": True}]]
    held = [
        {"job": 3, "tag": "train", "gpu": 1, "memory": 6 << 30, "of": {"another": "release"}},
        {"job": 3, "tag": "train", "gpu": 2, "memory": 5 << 30},
        {"job": 4, "tag": "a.ipynb", "gpu": 0, "memory": None, "notebook": True},
        {"job": 5, "tag": "prep", "gpu": None, "memory": None},
    ]
    freeing = {**mode, "name": "freeing", "by": "automatic", "program": "blender", "since": 0,
               "holding": held}  # fmt: skip
    again(page, status(mode=freeing))
    told = text(page)
    assert "automatic for blender" in told
    held_rows = page.get_by_role("list", name="What jobs and notebooks still hold")
    rows = held_rows.get_by_role("listitem").all_inner_texts()
    assert [" ".join(row.split()) for row in rows] == [
        "3 train holds 6G of GPU 1, 5G of GPU 2 Cancel",
        "4 a.ipynb holds memory of GPU 0 Shut down",
        "5 prep holds memory Cancel",
    ]
    end = held_rows.get_by_role("button", name="Shut down the kernel of a.ipynb")
    end.click()
    held_rows.get_by_role("button", name="End the kernel of a.ipynb").click()
    page.wait_for_function("posts.length === 3")
    assert page.evaluate("posts[2][0]") == "/jobs/4/cancel"
    page.evaluate("posts.pop()")
    page.get_by_role("button", name="Resume").click()
    page.wait_for_function("posts.length === 3")
    assert page.evaluate("posts[2][0]") == "/resume"
    assert page.get_by_text("Free GPUs").count() == 1
    assert not page.get_by_text("Free GPUs").is_visible()


def test_without_free_mode_there_are_no_buttons_for_it(show: Callable[..., Any]) -> None:
    page = show(status())
    text(page)
    assert not page.get_by_text("Free GPUs").is_visible()


def test_the_form_previews_and_queues(show: Callable[..., Any]) -> None:
    preview = {
        "at": time.time(), "command": "python a.py", "cwd": "/", "tag": "a", "kind": "script",
        "now": True, "wait": None, "gpus": [1], "end": time.time() + 600,
    }  # fmt: skip
    page = show(status(), answers={"/preview": preview, "/jobs": {"id": 12}})
    page.get_by_role("button", name="New job").click()
    page.get_by_role("textbox", name="Command").fill("python a.py")
    page.get_by_label("Memory of each GPU").fill("6G")
    page.get_by_text("Would start at once on GPU 1 · done by").wait_for()
    page.get_by_role("button", name="Queue it").click()
    page.get_by_text("Queued as job 12.").wait_for()
    sent = page.evaluate("posts[posts.length - 1]")
    assert sent == ["/jobs", {"command": "python a.py", "options": {"preset": "one", "mem": "6G"}}]
    assert not page.get_by_label("Memory of each GPU").is_visible()


def test_what_is_wrong_in_the_form_is_told_there(show: Callable[..., Any]) -> None:
    page = show(status(), refusal=[400, "mem: write a size such as 6G"])
    page.get_by_role("button", name="New job").click()
    page.get_by_role("textbox", name="Command").fill("python a.py")
    page.get_by_role("alert").filter(has_text="write a size such as 6G").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.title") == "Queue a command"
