"""The panel's view by itself in a real browser, with a source made for the test."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from panel_browser import *  # noqa: F403
from panel_browser import site, watched

from gpuqueue.about import __version__
from gpuqueue.units import format_bytes, format_duration

pytestmark = pytest.mark.browser

START = """async ([refresh]) => {
  const panel = (window.panel = await import('/view.mjs'));
  Object.assign(window, await import('/format.mjs'), await import('/log.mjs'));
  const root = (window.root = document.querySelector('main'));
  window.asked = 0;
  window.posts = [];
  window.seen = window.seen ?? true;
  const source = {
    kind: window.kind || 'server',
    onChange: changed => { window.changed = changed; return () => { window.stopped = true; }; },
    async ask(method, path, body) {
      if (method === 'POST') {
        window.posts.push([path, body]);
        if (window.refusal) throw new panel.Refused(...window.refusal);
        return (window.answers || {})[path] || {};
      }
      if (!path.startsWith('/status')) {
        const found = (window.answers || {})[path.split('?')[0]];
        if (found === undefined) throw new panel.Refused(404, 'there is none');
        return typeof found === 'function' ? found(path) : found;
      }
      window.asked += 1;
      const { status, answer } = window.reply;
      if (status === 0) throw new TypeError('Failed to fetch');
      if (status !== 200) throw new panel.Refused(status, answer);
      return answer && answer.server ? { ...answer, at: Date.now() / 1000 } : answer;
    },
  };
  window.view = panel.show(root, { source, refresh, visible: () => window.seen });
}"""


def job(number: int, state: str, **more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "id": number, "kind": "script", "tag": f"job-{number}", "state": state, "owner": "ann",
        "reason": "", "command": "python train.py", "cwd": "/w", "started": now - 90, "ended": None,
        "submitted": now - 100, "attempt": 1, "request": {"eta": None, "memory": None, "after": []},
        "origin": {"kind": "rest", "path": "", "session": ""}, "placement": None, "excess": 0,
        "peak": None, "wait": None, **more,
    }  # fmt: skip


def wait(position: int, **more: Any) -> dict[str, Any]:
    return {
        "position": position, "expected": None, "later_than": None, "by": None, "reason": "gpu",
        "sentence": f"waits for job {position}", "hint": "", **more,
    }  # fmt: skip


def status(**more: Any) -> dict[str, Any]:
    gpu = {
        "uuid": "g", "index": 0, "name": "H200", "memory": 141 << 30, "grants": [],
        "outside_holders": [], "outside": 0, "compute_promised": 0, "memory_promised": 0,
        "reading": {"memory_used": 1 << 30, "utilization": 3, "temperature": 34, "power": 120.4},
    }  # fmt: skip
    found: dict[str, Any] = {
        "schema": 1, "lead": None, "problem": "", "warning": "", "gpus": [gpu], "running": [],
        "waiting": [], "recent": [], "home": "/h",
        "server": {"version": __version__, "problem": "", "may": {"write": True, "execute": True}},
        **more,
    }  # fmt: skip
    found.setdefault("counts", {name: len(found[name]) for name in ("running", "waiting")})
    return found


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Any]]:
    """Shows an answer; gives the page."""
    page = site(watched(browser.new_page(viewport={"width": 1000, "height": 800})))

    def shown(answer: Any, code: int = 200, refresh: float = 10, **state: Any) -> Any:
        page.evaluate("state => Object.assign(window, state)", state)
        page.evaluate("reply => { window.reply = reply; }", {"status": code, "answer": answer})
        page.evaluate(START, [refresh])
        page.wait_for_function("window.asked > 0")
        page.wait_for_function("!document.querySelector('.gq-looking')")
        return page

    yield shown
    assert page.problems == []
    page.close()


def text(page: Any) -> str:
    page.wait_for_function("root.querySelector('.gq-main:not([hidden]), .gq-note:not([hidden])')")
    return str(page.locator(".gq-view").inner_text())


def again(page: Any, answer: Any) -> None:
    """Show another answer, and wait until it is there."""
    before = page.evaluate("asked")
    page.evaluate("answer => { reply = { status: 200, answer }; changed(); }", answer)
    page.wait_for_function(f"asked > {before}")
    page.wait_for_timeout(20)


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
        "1m 30s of ~10m", "step 30 of 120 · loss 0.25", "in 5m to 12m", "waits for job 1", "bo",
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
    began = time.monotonic()
    page = show(status())
    for _ in range(100):
        page.evaluate("changed()")
        page.wait_for_timeout(5)
    page.wait_for_timeout(1200)
    took = time.monotonic() - began
    assert 2 <= page.evaluate("asked") <= 2 + took / 0.5


def test_it_does_not_ask_faster_than_every_two_seconds(show: Callable[..., Any]) -> None:
    page = show(status(), refresh=0.1)
    page.wait_for_timeout(1200)
    assert page.evaluate("asked") == 1


def test_nobody_looking_nothing_asked(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("seen = false; changed()")
    page.wait_for_timeout(1200)
    assert page.evaluate("asked") == 1
    page.evaluate("seen = true; view.look()")
    page.wait_for_function("asked === 2")


def test_scrolled_out_of_sight_it_asks_nothing(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("root.style.cssText = 'position: absolute; top: 9000px; height: 300px'")
    page.wait_for_timeout(300)
    page.evaluate("changed()")
    page.wait_for_timeout(1000)
    assert page.evaluate("asked") == 1
    page.evaluate("root.style.cssText = ''")
    page.wait_for_function("asked === 2")


def test_closed_it_is_quiet(show: Callable[..., Any]) -> None:
    page = show(status())
    page.evaluate("view.close(); view.look(); changed()")
    page.wait_for_timeout(1000)
    assert page.evaluate("[asked, stopped]") == [1, True]
    assert page.locator("main").inner_text() == ""


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
    page = show(status(mode=mode), answers={"/free": {"message": "2 jobs are asked to save"}})
    page.get_by_text("Free GPUs").click()
    page.get_by_role("status").filter(has_text="2 jobs are asked to save").wait_for()
    page.get_by_text("Freeze", exact=True).click()
    page.wait_for_function("posts.length === 2")
    assert page.evaluate("posts") == [["/free", {"soft": False}], ["/free", {"soft": True}]]
    held = [
        {"job": 3, "tag": "train", "gpu": 1, "memory": 6 << 30},
        {"job": 4, "tag": "eval", "gpu": 0, "memory": None},
        {"job": 5, "tag": "prep", "gpu": None, "memory": None},
    ]
    freeing = {**mode, "name": "freeing", "by": "automatic", "program": "blender", "since": 0,
               "holding": held}  # fmt: skip
    again(page, status(mode=freeing))
    told = text(page)
    assert "automatic for blender" in told
    assert "job 3 train still holds 6G of GPU 1 · job 4 eval still holds memory of GPU 0" in told
    assert "job 5 prep still holds memory" in told
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


class TestOneJob:
    LOG = "/jobs/1/log"

    def log(self, **more: Any) -> dict[str, Any]:
        return {"text": "", "offset": 0, "next": 0, "size": 0, "ended": True, "attempt": 1, **more}

    def open(self, show: Callable[..., Any], answers: dict[str, Any], **more: Any) -> Any:
        found = job(1, "running", **more)
        page = show(status(running=[found]), answers={"/jobs/1": found, **answers})
        page.locator("[data-job='1'] .gq-open").click()
        page.locator(".gq-detail .gq-facts div").first.wait_for()
        return page

    def test_escape_goes_back_to_where_one_was(self, show: Callable[..., Any]) -> None:
        page = self.open(show, {self.LOG: self.log()})
        assert not page.locator(".gq-main").is_visible()
        page.keyboard.press("Escape")
        assert page.locator(".gq-main").is_visible()
        assert page.evaluate("document.activeElement.closest('[data-job]').dataset.job") == "1"

    def test_the_log_is_followed_and_searched(self, show: Callable[..., Any]) -> None:
        first = "".join(f"step {i}\n" for i in range(200))
        page = self.open(show, {self.LOG: self.log(
            text=first, next=len(first), size=len(first), ended=False)})  # fmt: skip
        log = page.locator(".gq-log")
        log.get_by_text("step 199").wait_for()
        bottom = "e => e.scrollHeight - e.scrollTop - e.clientHeight < 5"
        assert log.evaluate(bottom)
        page.evaluate(
            "part => { answers['/jobs/1/log'] = part; }",
            self.log(text="loss 7\n", offset=len(first), next=len(first) + 7, size=len(first) + 7),
        )
        log.get_by_text("loss 7").wait_for()
        assert log.evaluate(bottom)
        page.get_by_label("Search the log").fill("STEP 5")
        page.get_by_text("11 of 11").wait_for()  # 5 and 50 to 59, at the last
        page.keyboard.press("Enter")
        page.get_by_text("1 of 11").wait_for()
        assert not page.get_by_label("Follow").is_checked()

    def test_a_log_shows_what_a_terminal_would(self, show: Callable[..., Any]) -> None:
        page = self.open(show, {self.LOG: self.log()})
        cases = {
            "\x1b[31mred\x1b[0m\n": "red\n", "10%\r50%\r100%\n": "100%\n", "a\r\nb": "a\nb",
            "\x1b]0;title\x07x": "x", "one\rtwo": "two",
        }  # fmt: skip
        for raw, shown in cases.items():
            assert page.evaluate("text => plain(text)", raw) == shown

    def test_a_huge_log_does_not_fill_the_page(self, show: Callable[..., Any]) -> None:
        page = self.open(show, {self.LOG: self.log()})
        size = page.evaluate("""async () => {
          const { Log } = await import('/log.mjs');
          const log = new Log({ home: { source: { ask: async () => ({ text: '', next: 0, size: 0,
            ended: true, offset: 0, attempt: 1 }) } } }, 1, () => true);
          for (let i = 0; i < 100; i += 1) log.append(`${'x'.repeat(20000)}\\n`);
          return [log.text.textContent.length, log.text.childNodes.length];
        }""")
        assert size[0] <= 420_000
        assert size[1] <= 25

    def test_a_cells_outputs_are_outputs(self, show: Callable[..., Any]) -> None:
        dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # noqa: E501
        evil = "<b id=b>bold</b><script>top.hacked = 1</script><img src=x onerror='top.hacked=2'>"
        shown = {"transient": {"display_id": "d"}, "output_type": "display_data"}
        outputs = [
            {"output_type": "stream", "name": "stdout", "text": "hel"},
            {"output_type": "stream", "name": "stdout", "text": "lo\n"},
            {"output_type": "display_data", "data": {"image/png": dot, "text/plain": "<Figure>"}},
            {"output_type": "display_data", "data": {"text/html": evil}},
            {**shown, "data": {"text/plain": "before"}},
            {**shown, "output_type": "update_display_data", "data": {"text/plain": "after"}},
            {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE: v"]},
        ]
        answer = {"outputs": outputs, "next": 9, "ended": True, "attempt": 1}
        page = self.open(show, {self.LOG: self.log(), "/jobs/1/outputs": answer}, kind="cell")
        box = page.locator(".gq-outputs")
        box.get_by_text("E: v").wait_for()
        told = box.inner_text()
        assert "hello" in told
        assert "after" in told
        assert "before" not in told
        assert box.locator("img").evaluate("e => e.naturalWidth") == 1
        frame = box.locator("iframe")
        assert frame.get_attribute("sandbox") == ""
        page.frame_locator(".gq-outputs iframe").locator("#b").wait_for()
        assert page.evaluate("window.hacked") is None

    def test_its_metrics_are_lines(self, show: Callable[..., Any]) -> None:
        points = [{"at": i, "step": i, "metrics": {"loss": 1 / i}} for i in (1, 2, 4)]
        answers = {self.LOG: self.log(),
                   "/jobs/1/progress": {"points": points, "count": 3, "ended": False}}  # fmt: skip
        page = self.open(show, answers)
        line = page.locator(".gq-spark polyline")
        line.wait_for(state="attached")
        assert len(line.get_attribute("points").split()) == 3
        assert page.locator(".gq-spark").inner_text().split() == ["loss", "0.25"]


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
        page.wait_for_timeout(50)
        assert page.evaluate("root.scrollWidth <= root.clientWidth"), width
