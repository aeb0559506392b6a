"""Jobs that are beside each other have different colours, and each keeps its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from panel_browser import *  # noqa: F403
from panel_view import *  # noqa: F403
from panel_view import again, job, status

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

GIB = 1 << 30
STEP = 7  # numbers that far apart begin with the same colour


def grant(number: int, compute: int = 100) -> dict[str, Any]:
    return {"job": number, "tag": f"job-{number}", "gpu": "g", "compute": compute,
            "memory": 4 * GIB, "whole": False, "used": GIB}  # fmt: skip


def held(*numbers: int) -> dict[str, Any]:
    made = status(running=[job(number, "running") for number in numbers])
    made["gpus"][0]["grants"] = [grant(number) for number in numbers]
    return made


def bars(*found: tuple[int, str, float, float | None]) -> dict[str, Any]:
    now = time.time()
    return {
        "at": now,
        "gpus": [{"uuid": "g", "index": 0, "name": "H200"}],
        "bars": [
            {"job": number, "tag": f"job-{number}", "state": "running", "gpu": "g", "when": when,
             "start": now + start, "end": None if end is None else now + end}
            for number, when, start, end in found
        ],
    }  # fmt: skip


def tones(page: Any, where: str, name: str) -> dict[int, str]:
    """Colours by job, of what says which job it is in this attribute or text."""
    found = page.evaluate(
        f"""() => [...document.querySelectorAll('{where} [data-tone]')].map(node => [
          node.closest('[{name}]')?.getAttribute('{name}'), node.dataset.tone])"""
    )
    return {int(number): tone for number, tone in found if number}


def on_timeline(page: Any) -> dict[int, str]:
    found = page.locator(".gq-stay").evaluate_all(
        "all => all.map(e => [Number(/Job (\\d+)/.exec(e.ariaLabel)[1]), e.dataset.tone])"
    )
    made: dict[int, str] = {}
    for number, tone in found:
        assert made.setdefault(number, tone) == tone, "one job, one colour"
    return made


def test_jobs_on_one_gpu_differ_everywhere_in_the_same_way(show: Callable[..., Any]) -> None:
    numbers = [4, 4 + STEP, 4 + 2 * STEP, 4 + 3 * STEP]
    timeline = bars(*[(number, "now", -60, 600) for number in numbers])
    page = show(held(*numbers), answers={"/timeline": timeline})
    page.locator(".gq-stay").nth(3).wait_for()
    cards = tones(page, ".gq-holders", "data-holder")
    assert len(set(cards.values())) == 4
    assert tones(page, ".gq-running", "data-job") == cards
    assert on_timeline(page) == cards
    drawn = page.locator(".gq-promised").evaluate_all("all => all.map(e => e.dataset.tone)")
    assert set(drawn) == set(cards.values())


def test_more_jobs_than_colours_differ_from_those_beside_them(show: Callable[..., Any]) -> None:
    numbers = [number * STEP for number in range(1, 13)]
    page = show(held(*numbers), answers={"/timeline": bars()})
    found = tones(page, ".gq-holders", "data-holder")
    order = [found[number] for number in numbers]
    assert all(one != other for one, other in pairwise(order)), order
    assert len(set(order)) == STEP


def test_a_job_keeps_its_colour_when_others_come_and_go(show: Callable[..., Any]) -> None:
    first, second, third = 5, 5 + STEP, 5 + 2 * STEP
    page = show(held(first, second), answers={"/timeline": bars()})
    before = tones(page, ".gq-holders", "data-holder")
    again(page, held(second, third))
    page.locator(f"[data-holder='{third}']").wait_for()
    after = tones(page, ".gq-holders", "data-holder")
    assert after[second] == before[second]
    assert after[third] != after[second]


def test_bars_in_a_row_differ_and_what_is_foreseen_gives_way(show: Callable[..., Any]) -> None:
    past, now, following, last = 3, 3 + STEP, 3 + 2 * STEP, 3 + 3 * STEP
    timeline = bars(
        (past, "past", -900, -300), (now, "now", -300, 300), (following, "next", 300, 600),
        (last, "next", 600, 900),
    )  # fmt: skip
    page = show(held(now), answers={"/timeline": timeline})
    page.locator(".gq-stay").nth(3).wait_for()
    found = on_timeline(page)
    assert found[now] == str(now % STEP)
    for one, other in ((past, now), (now, following), (following, last)):
        assert found[one] != found[other], found
    # it begins, with the colour that it was foreseen in
    page.evaluate("made => { answers['/timeline'] = made; }",
                  bars((now, "past", -600, -10), (following, "now", -10, 300)))  # fmt: skip
    again(page, held(following))
    page.locator(f"[data-holder='{following}']").wait_for()
    assert tones(page, ".gq-holders", "data-holder")[following] == found[following]
    page.wait_for_function("document.querySelectorAll('.gq-stay').length === 2")
    assert on_timeline(page) == {now: found[now], following: found[following]}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_colour_stands_out_from_the_ground(blank: Any, scheme: str) -> None:
    """At least 3 to 1, as WCAG 2.2 asks of graphics (1.4.11)."""
    page = blank
    page.emulate_media(color_scheme=scheme)
    least = page.evaluate("""() => {
      document.body.classList.add('gq-own');
      const root = document.querySelector('main');
      root.classList.add('gq-view');
      const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = parts => parts.map(part => part / 255)
        .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
      const ground = light(rgb(getComputedStyle(root).backgroundColor));
      return Array.from({ length: 7 }, (_, tone) => {
        const dot = document.createElement('i');
        dot.className = 'gq-dot';
        dot.dataset.tone = String(tone);
        root.append(dot);
        const own = light(rgb(getComputedStyle(dot).backgroundColor));
        const [low, high] = [ground, own].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
      });
    }""")
    assert len({round(one, 4) for one in least}) == 7
    assert min(least) >= 3, least
