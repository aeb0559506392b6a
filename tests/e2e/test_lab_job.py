"""The view of one job in the panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from panel_view import *  # noqa: F403
from panel_view import job, status

pytestmark = pytest.mark.browser


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
