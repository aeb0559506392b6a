"""The panel's view by itself in a real browser, with a source made for the test.

``from panel_view import *`` for its fixtures; ``show`` gives the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from panel_browser import *  # noqa: F403
from panel_browser import site, watched

from gpuqueue.about import __version__

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
      window.path = path;
      const { status, answer } = window.replyTo ? window.replyTo(path) : window.reply;
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
def blank(browser: Any) -> Iterator[Any]:
    """A page with the panel's files and nothing in it."""
    page = site(watched(browser.new_page(viewport={"width": 1000, "height": 800})))
    page.set_default_timeout(10_000)
    yield page
    assert page.problems == []
    page.close()


@pytest.fixture
def show(blank: Any) -> Callable[..., Any]:
    """Shows an answer; gives the page."""
    page = blank

    def shown(answer: Any, code: int = 200, refresh: float = 10, **state: Any) -> Any:
        page.evaluate("state => Object.assign(window, state)", state)
        page.evaluate("reply => { window.reply = reply; }", {"status": code, "answer": answer})
        page.evaluate(START, [refresh])
        page.wait_for_function("window.asked > 0")
        page.wait_for_function("!document.querySelector('.gq-looking')")
        return page

    return shown


def text(page: Any) -> str:
    page.wait_for_function("root.querySelector('.gq-main:not([hidden]), .gq-note:not([hidden])')")
    return str(page.locator(".gq-view").inner_text())


def again(page: Any, answer: Any) -> None:
    """Show another answer, and wait until it is there."""
    before = page.evaluate("asked")
    page.evaluate("answer => { reply = { status: 200, answer }; changed(); }", answer)
    page.wait_for_function(f"asked > {before}")
