"""Which ends of jobs are told, how, and how often: the same code on the page and in JupyterLab."""

from __future__ import annotations

from typing import Any

import pytest
from panel_view import *  # noqa: F403
from panel_view import job

pytestmark = pytest.mark.browser

START = """async which => {
  Object.assign(window, await import('/notices.mjs'));
  window.shown = [];
  window.desktop = [];
  window.Notification = class {
    static permission = 'granted';
    constructor(title, { body }) { desktop.push([title, body]); }
  };
  window.corner = new Corner(number => { window.opened = number; });
  document.body.append(corner.root);
  window.settings = { which, desktop: true };
  window.jobs = {};
  window.asked = [];
  window.notifier = new Notifier({
    ask: async (method, path) => {
      asked.push(path);
      return path.startsWith('/jobs/') ? jobs[path.slice(6)] : window.answer;
    },
    mine: origin => isFrom(origin, ['work/train.ipynb']),
    show: (...told) => { shown.push(told); corner.show(...told); },
    settings,
  });
}"""
TERMINAL = {"kind": "terminal", "path": "", "session": "pts/3"}
NOTEBOOK = {"kind": "notebook", "path": "/home/ann/work/train.ipynb", "session": "k"}


def begin(page: Any, which: str = "all") -> None:
    page.evaluate(START, which)


def ends(page: Any, number: int, state: str, **more: Any) -> None:
    found = job(number, state, ended=2e9, **{"origin": TERMINAL, **more})
    page.evaluate(
        "([job]) => { jobs[job.id] = job;"
        "return notifier.heard({ job: job.id, kind: 'ended', state: job.state }); }",
        [found],
    )


def test_each_end_is_told_once_on_page_and_desktop(blank: Any) -> None:
    begin(blank)
    ends(blank, 3, "succeeded")
    ends(blank, 3, "succeeded")
    ends(blank, 4, "failed", reason="exit code 1\nmore", origin=NOTEBOOK)
    words = ["Job 3 (job-3) succeeded", "Job 4 (job-4) failed: exit code 1"]
    assert blank.evaluate("shown") == [[words[0], "success", 3], [words[1], "error", 4]]
    assert blank.evaluate("desktop") == [["GPU queue", each] for each in words]
    log = blank.get_by_role("log")
    assert [log.get_by_text(each).count() for each in words] == [1, 1]
    log.get_by_role("button", name="Show").last.click()
    assert blank.evaluate("opened") == 4
    assert log.locator(".gq-notice").count() == 1


def test_what_is_not_ones_own_is_not_told(blank: Any) -> None:
    begin(blank)
    for path in ("/home/ann/other.ipynb", "", "/home/bo/rework/train.ipynb"):
        ends(blank, 5, "failed", origin={"kind": "notebook", "path": path, "session": ""})
    assert blank.evaluate("shown") == []


def test_failures_only_and_nothing(blank: Any) -> None:
    begin(blank, "failures")
    ends(blank, 1, "succeeded")
    ends(blank, 2, "cancelled")
    ends(blank, 3, "failed")
    assert [told[2] for told in blank.evaluate("shown")] == [3]
    begin(blank, "off")
    ends(blank, 4, "failed")
    assert blank.evaluate("[shown, asked]") == [[], []]


def test_a_burst_of_ends_is_one_question(blank: Any) -> None:
    begin(blank)
    recent = [job(n, "succeeded", ended=2e9, origin=TERMINAL) for n in (3, 2, 1)]
    blank.evaluate(
        "answer => { window.answer = answer; return Promise.all([1, 2, 3].map("
        "job => notifier.heard({ job, kind: 'ended', state: 'succeeded' }))); }",
        {"recent": recent},
    )
    assert [told[2] for told in blank.evaluate("shown")] == [3, 2, 1]
    assert blank.evaluate("asked") == ["/status?limit=0&recent=50"]


def test_what_was_missed_is_looked_for(blank: Any) -> None:
    begin(blank)
    recent = [job(8, "failed", ended=2e9, origin=TERMINAL),
              job(7, "failed", ended=1.0, origin=TERMINAL)]  # fmt: skip
    mode = {"name": "free", "by": "automatic", "program": "blender"}
    blank.evaluate("answer => { window.answer = answer; return notifier.heard(); }",
                   {"recent": recent, "mode": mode})  # fmt: skip
    told = [text for text, *_ in blank.evaluate("shown")]
    assert told == ["Job 8 (job-8) failed", "The GPUs are being freed for blender."]
    blank.evaluate("answer.mode = { name: 'normal', by: '' }; notifier.heard({ kind: 'mode' })")
    blank.wait_for_function("shown.length === 3")
    assert blank.evaluate("shown[2][0]") == "The queue has the GPUs again."


def test_the_choice_is_kept_and_asks_the_browser_when_it_is_made(blank: Any) -> None:
    begin(blank)
    blank.evaluate("""() => {
      Notification.permission = 'default';
      Notification.requestPermission = async () => { window.begged = true; return 'denied'; };
      settings.which = 'all';
      document.body.append(choice('kept', settings));
    }""")
    field = blank.get_by_role("combobox", name="Which ends of jobs")
    assert field.input_value() == "all"
    field.select_option("off")
    assert blank.evaluate("[settings.which, localStorage.kept, window.begged]") == [
        "off", "off", None]  # fmt: skip
    field.select_option("failures")
    blank.get_by_text("does not let this page tell them on the desktop").wait_for()
    assert blank.evaluate("begged")
    blank.evaluate("settings.which = 'all'; choice('kept', settings)")
    assert blank.evaluate("settings.which") == "failures"


def test_notices_do_not_pile_up(blank: Any) -> None:
    blank.clock.install()
    begin(blank)
    for number in range(1, 8):
        ends(blank, number, "failed" if number % 2 else "succeeded")
    assert blank.locator(".gq-notice").count() == 4
    blank.clock.run_for(9000)
    assert blank.locator(".gq-notice").evaluate_all("all => all.map(e => e.dataset.kind)") == [
        "error", "error"]  # fmt: skip
    blank.get_by_role("button", name="Put it away").first.click()
    assert blank.locator(".gq-notice").count() == 1
