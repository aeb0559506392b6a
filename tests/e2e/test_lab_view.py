"""What the panel shows, by itself in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from panel_view import *  # noqa: F403
from panel_view import again, job, status, text, wait

from gpuqueue.units import format_bytes, format_duration

pytestmark = pytest.mark.browser


def test_numbers_read_as_everywhere_else(show: Callable[..., Any]) -> None:
    page = show(status())
    sizes = [0, 1, 1023, 1024, 1536, 99 << 20, 100 << 20, 1023 << 20, 80 << 30, 3 << 40, None]
    for size in sizes:
        assert page.evaluate("size => bytes(size)", size) == format_bytes(size)
    for seconds in (0, 1, 59.4, 60, 61, 3599, 3600, 3629, 5400, 86400, 100_000, 900_000):
        told = page.evaluate("seconds => duration(seconds)", seconds)
        assert told == format_duration(seconds)


def test_a_queue_with_everything(show: Callable[..., Any]) -> None:
    note = {"at": time.time(), "step": 30, "metrics": {"loss": 0.25, "total_steps": 120}}
    soon = wait(1, expected=time.time() + 300, by=time.time() + 720)
    failure = {"error": "KeyError: 'x'", "line": "run.py, line 5: a['x']"}
    page = show(
        status(
            running=[job(1, "running", request={"eta": 600, "memory": None}, progress=note)],
            waiting=[job(2, "queued", wait=soon), job(3, "queued", owner="bo")],
            recent=[
                job(4, "failed", ended=time.time(), reason="exit code 1\nmore", failure=failure)
            ],
            warning="config.toml cannot be read",
            host={
                "cpu": 43.0, "cpus": 8, "memory": {"used": 4 << 30, "total": 16 << 30},
                "disks": [{"path": "/h", "free": 7 << 30, "total": 9 << 30}],
            },
        )
    )  # fmt: skip
    told = text(page)
    for words in (
        "s of ~10m", "step 30 of 120 · loss 0.25", "in 5m to 12m", "waits for job 1", "bo",
        "starts now", "failed", "exit code 1: KeyError: 'x'", "run.py, line 5: a['x']",
        "config.toml cannot be read", "H200", "1G of 141G", "3% busy", "34 °C · 120 W",
        "43% of 8", "4G of 16G", "7G free",
    ):  # fmt: skip
        assert words in told, words
    assert "more\n" not in told
    assert "are idle" not in told
    assert page.locator("[data-job='1'] .gq-fill").evaluate("e => e.style.width") == "25%"


def test_memory_is_told_as_held_and_where_it_is_more_than_asked_for(
    show: Callable[..., Any],
) -> None:
    grant = {"job": 1, "tag": "job-1", "compute": 250, "memory": 6 << 30, "whole": False}
    grants = [grant | {"used": 7 << 30}, grant | {"job": 2, "tag": "job-2", "used": None}]
    gpus = [status()["gpus"][0] | {"grants": grants, "outside": 3 << 30}]
    over = {"request": {"eta": None, "memory": 6 << 30}, "peak": 7 << 30, "excess": 1 << 30}
    fits = {"request": {"eta": None, "memory": 6 << 30}, "peak": 5 << 30, "excess": 0}
    recent = [job(2, "succeeded", ended=time.time(), **over), job(3, "succeeded", **fits)]
    page = show(status(gpus=gpus, running=[job(1, "running", **over)], recent=recent))
    told = text(page)
    assert "25%, 6G, uses 7G" in told
    assert "Other programs: 3G" in told
    assert "50% promised" in told
    assert told.count("has used 7G of GPU memory, asked for 6G") == 2
    widths = page.locator(".gq-card .gq-track").nth(1).locator("i")
    kinds = widths.evaluate_all("all => all.map(e => e.className)")
    assert kinds == ["gq-outside", "gq-promised", "gq-used", "gq-promised"]


def test_what_the_driver_does_not_tell_is_not_made_up(show: Callable[..., Any]) -> None:
    gpus = [status()["gpus"][0] | {"memory": None, "reading": None}]
    told = text(show(status(gpus=gpus)))
    assert "? of ?" in told
    for wrong in ("busy", "NaN", "null", "°C", "undefined"):
        assert wrong not in told


def test_no_gpus_says_why(show: Callable[..., Any]) -> None:
    assert "the driver is not loaded" in text(
        show(status(gpus=[], problem="the driver is not loaded"))
    )


def test_an_idle_machine_says_what_to_do_next(show: Callable[..., Any]) -> None:
    told = text(show(status()))
    assert "%%gpu" in told
    assert "jupyter gpuqueue submit" in told


def test_of_a_long_queue_only_what_is_in_sight_is_there(show: Callable[..., Any]) -> None:
    page = show(
        status(
            waiting=[job(n, "queued", wait=wait(n)) for n in range(1, 101)],
            counts={"running": 0, "waiting": 5000},
        )
    )
    page.evaluate(
        """first => { window.pages = []; window.answers = { '/queue': path => {
          const offset = Number(/offset=(\\d+)/.exec(path)[1]);
          pages.push(offset);
          const jobs = Array.from({ length: 100 }, (_, i) => (
            { ...first, id: offset + i + 1, tag: `job-${offset + i + 1}` }));
          return { at: 0, total: 5000, offset, jobs };
        } }; }""",
        job(1, "queued", wait=wait(1)),
    )
    scroller = page.locator(".gq-scroller")
    assert page.locator(".gq-queued").count() < 40
    assert "5000" in text(page)
    scroller.evaluate("e => { e.scrollTop = e.scrollHeight; }")
    page.locator("[data-job='5000']").wait_for()
    assert page.locator("[data-job='5000']").get_attribute("aria-posinset") == "5000"
    assert page.evaluate("pages") == [4900]
    assert page.locator(".gq-queued").count() < 40


def test_an_update_changes_only_what_differs(show: Callable[..., Any]) -> None:
    running = [job(n, "running", started=None) for n in range(1, 6)]
    waiting = [job(n, "queued", wait=wait(n), submitted=0) for n in range(6, 12)]
    now = status(running=running, waiting=waiting)
    page = show(now)
    text(page)
    page.evaluate("""() => {
      window.changes = 0;
      new MutationObserver(all => { changes += all.length; }).observe(
        root, { subtree: true, childList: true, attributes: true, characterData: true });
    }""")
    again(page, now)
    assert page.evaluate("changes") <= 12  # of the waiting times, which have gone on
    first = page.locator("[data-job='2']").element_handle()
    again(page, status(running=running[1:], waiting=waiting))
    assert page.locator("[data-job='2']").evaluate("(e, first) => e === first", first)
    assert page.locator("[data-job='1']").count() == 0


def test_names_are_text_and_not_markup(show: Callable[..., Any]) -> None:
    evil = "<img src=x onerror='window.hacked = true'>"
    bad = job(1, "running", tag=evil, owner=evil, progress={
        "at": time.time(), "step": 1, "metrics": {evil: evil}})  # fmt: skip
    ended = job(2, "failed", reason=evil, ended=time.time(), failure={"error": evil, "line": evil})
    answers = {"/jobs/1": bad, "/jobs/1/log": {
        "text": evil, "offset": 0, "next": 9, "size": 9, "ended": True, "attempt": 1}}  # fmt: skip
    page = show(status(running=[bad], recent=[ended], warning=evil, problem=evil), answers=answers)
    assert evil in text(page)
    page.locator("[data-job='1'] .gq-open").click()
    page.locator(".gq-log", has_text="onerror").wait_for()
    assert page.locator("img").count() == 0
    assert not page.evaluate("window.hacked")


def test_the_timeline_has_lanes_of_what_was_is_and_will_be(show: Callable[..., Any]) -> None:
    now = time.time()
    bars = [
        {"job": 1, "tag": "a", "state": "succeeded", "gpu": "g", "when": "past",
         "start": now - 1800, "end": now - 900},
        {"job": 2, "tag": "b", "state": "running", "gpu": "g", "when": "now",
         "start": now - 900, "end": None},
        {"job": 3, "tag": "c", "state": "queued", "gpu": "h", "when": "next",
         "start": now + 600, "end": now + 1200},
    ]  # fmt: skip
    gpus = [{"uuid": "g", "index": 0, "name": "A"}, {"uuid": "h", "index": 1, "name": "B"}]
    page = show(status(), answers={"/timeline": {"at": now, "gpus": gpus, "bars": bars}})
    page.locator(".gq-stay").nth(2).wait_for()
    lanes = page.locator(".gq-lane")
    assert [lanes.nth(i).locator(".gq-stay").count() for i in (0, 1)] == [2, 1]
    lefts = page.locator(".gq-stay").evaluate_all("all => all.map(e => parseFloat(e.style.left))")
    assert lefts == sorted(lefts)
    tops = lanes.nth(0).locator(".gq-stay").evaluate_all("all => all.map(e => e.style.top)")
    assert len(set(tops)) == 1  # one after the other needs no second line
    assert page.get_by_role("button", name=re.compile("Job 3 c, expected")).count() == 1


def test_very_short_jobs_have_no_numbers_that_would_be_cut_or_overlap(
    show: Callable[..., Any],
) -> None:
    now = time.time()
    bars = [
        {"job": 1000 + n, "tag": "a", "state": "succeeded", "gpu": "g", "when": "past",
         "start": now - 1800 + n, "end": now - 1800 + n + 0.5}
        for n in range(5)
    ]  # fmt: skip
    bars.append({**bars[0], "job": 7, "start": now - 1200, "end": now - 600})
    gpus = [{"uuid": "g", "index": 0, "name": "A"}]
    page = show(status(), answers={"/timeline": {"at": now, "gpus": gpus, "bars": bars}})
    page.locator(".gq-stay").nth(5).wait_for()
    assert page.locator(".gq-stay").all_inner_texts() == ["", "", "", "", "", "7"]
    assert page.get_by_role("button", name="Job 1003 a, ended").count() == 1
    tops = page.locator(".gq-stay").evaluate_all("all => all.map(e => e.style.top)")
    assert len(set(tops)) == 1  # a burst of them makes no tower


def test_it_fits_a_narrow_sidebar(show: Callable[..., Any]) -> None:
    grant = {"job": 1, "tag": "a-rather-long-name-of-a-job", "compute": 250, "memory": 6 << 30,
             "whole": False, "used": 5 << 30}  # fmt: skip
    gpus = [status()["gpus"][0] | {"grants": [grant], "name": "NVIDIA H200 141GB HBM3e"}]
    page = show(
        status(gpus=gpus, running=[job(1, "running", tag="a-rather-long-name-of-a-job")],
               waiting=[job(2, "queued", wait=wait(1), tag="x" * 80)])
    )  # fmt: skip
    text(page)
    for width in (220, 300, 500, 900):
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_function(f"innerWidth === {width}")
        assert page.evaluate("root.scrollWidth <= root.clientWidth"), width
