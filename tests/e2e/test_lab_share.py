"""Changing what a job has of its GPUs, in the panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from panel_view import *  # noqa: F403
from panel_view import again, job, status

pytestmark = pytest.mark.browser

GIB = 1 << 30


def sharing(compute: int = 250, memory: int = 6 * GIB, **more: Any) -> dict[str, Any]:
    """Two jobs on one GPU, of which the second has half."""
    grant = {"job": 1, "tag": "a", "compute": compute, "memory": memory, "whole": False}
    other = {"job": 2, "tag": "b", "compute": 500, "memory": 20 * GIB, "whole": False}
    gpu = status()["gpus"][0] | {
        "memory": 80 * GIB, "grants": [grant, other], "compute_promised": compute + 500,
        "memory_promised": memory + 20 * GIB, "outside": 4 * GIB,
    }  # fmt: skip
    return status(gpus=[gpu], running=[held(1), held(2)], **more)


def held(number: int) -> dict[str, Any]:
    grants = [{"gpu": "g", "compute": 250, "memory": 6 * GIB, "whole": False}]
    hold = {"compute": "advised", "memory": "capped"}
    return job(number, "running", placement={"grants": grants, "slots": 1}, hold=hold)


def opener(page: Any, number: int) -> Any:
    return page.get_by_role("button", name=f"Change the share of job {number}")


def answer(share: int, memory: int, message: str) -> dict[str, Any]:
    return {"id": 1, "share": share, "memory": memory, "message": message}


def test_sliders_by_keyboard_say_what_is_free(show: Callable[..., Any]) -> None:
    done = answer(400, 6 * GIB, "job 1 has share 0.4 (now), mem 6G")
    page = show(sharing(), answers={"/jobs/1/resize": done})
    opener(page, 1).click()
    assert opener(page, 1).get_attribute("aria-expanded") == "true"
    compute = page.get_by_role("slider", name="Compute")
    assert compute.get_attribute("aria-valuetext") == "25%, 25% free"
    page.get_by_text("That leaves 25% free, 50G of memory on GPU 0.").wait_for()
    assert not page.get_by_role("button", name="Give it that").is_visible()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert compute.get_attribute("aria-valuetext") == "40%, 10% free"
    assert page.evaluate("posts") == []
    page.evaluate("answer => { reply = { status: 200, answer }; }", sharing(compute=400))
    page.get_by_role("button", name="Give it that").click()
    page.get_by_text("job 1 has share 0.4 (now), mem 6G").wait_for()
    assert page.evaluate("posts") == [["/jobs/1/resize", {"share": "0.4"}]]
    assert compute.get_attribute("aria-valuetext") == "40%, 10% free"
    assert page.evaluate("document.activeElement.name") == "share"


def test_memory_goes_by_itself(show: Callable[..., Any]) -> None:
    done = answer(250, 20 * GIB, "job 1 has share 0.25, mem 20G (at its next start)")
    page = show(sharing(), answers={"/jobs/1/resize": done})
    opener(page, 1).click()
    page.get_by_role("slider", name="Memory").fill("20")
    page.get_by_role("button", name="Give it that").click()
    page.get_by_text("mem 20G (at its next start)").wait_for()
    assert page.evaluate("posts") == [["/jobs/1/resize", {"mem": "20G"}]]


def test_what_is_refused_says_why_and_goes_back(show: Callable[..., Any]) -> None:
    page = show(sharing(), refusal=[409, "GPU 0 has 0.25 free"])
    opener(page, 1).click()
    compute = page.get_by_role("slider", name="Compute")
    compute.fill("900")
    page.get_by_text("That is more than is free on GPU 0.").wait_for()
    page.get_by_role("button", name="Give it that").click()
    page.get_by_role("alert").filter(
        has_text="The share of job 1 stays. GPU 0 has 0.25 free"
    ).wait_for()
    assert compute.input_value() == "250"
    # it stays to be read through the looks that follow, until a slider is moved
    again(page, sharing())
    alert = page.get_by_role("alert").filter(has_text="The share of job 1 stays.")
    alert.wait_for()
    compute.fill("300")
    alert.wait_for(state="hidden")


def test_what_is_being_moved_is_not_moved_back_by_an_update(show: Callable[..., Any]) -> None:
    page = show(sharing())
    opener(page, 1).click()
    compute = page.get_by_role("slider", name="Compute")
    compute.fill("500")
    again(page, sharing(compute=300))
    assert compute.input_value() == "500"
    page.keyboard.press("Escape")
    assert compute.input_value() == "300"
    opener(page, 1).click()
    assert page.get_by_role("slider").count() == 0


def test_a_jobs_own_view_has_them_and_says_how_far_it_is_held(show: Callable[..., Any]) -> None:
    page = show(sharing(), answers={"/jobs/1": held(1)})
    page.locator("[data-job='1'] .gq-open").click()
    page.locator(".gq-detail").get_by_role("slider", name="Compute").wait_for()
    held_to = "compute is advised only, memory is capped"
    assert held_to in page.locator(".gq-detail").inner_text()


def test_it_is_offered_to_those_who_may_and_for_shares_only(show: Callable[..., Any]) -> None:
    found = sharing()
    found["gpus"][0]["grants"][1]["whole"] = True
    page = show(found)
    opener(page, 1).wait_for()
    assert not opener(page, 2).is_visible()
    again(page, sharing(server={"version": "", "problem": "", "may": {"write": False}}))
    opener(page, 1).wait_for(state="hidden")


def test_what_is_typed_for_a_next_start_stays_when_the_answer_comes_late(
    show: Callable[..., Any],
) -> None:
    origin = {"kind": "kernel", "path": "/w/a.ipynb", "session": ""}
    kernel = job(1, "running", kind="kernel", tag="a.ipynb", origin=origin, busy=None)
    page = show(status(running=[kernel]))
    page.evaluate("""answers = {
      '/share': () => new Promise(done => {
        const chosen = { share: 500, memory: null, gpus: null };
        window.answerNow = () => done({ path: '/w/a.ipynb', chosen, job: 1 });
      }),
    }""")
    page.get_by_role("button", name="Change the share of a.ipynb").click()
    field = page.get_by_role("textbox", name="Compute")
    field.fill("0.25")
    page.evaluate("answerNow()")
    page.get_by_text("At its next start it asks for 50%").wait_for()
    assert field.input_value() == "0.25"
