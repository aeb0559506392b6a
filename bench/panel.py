"""What the panel costs: first paint, an update, and memory, in a browser on a real server.

Run ``python bench/panel.py [--jobs 10,1000,10000] [--history 100000]``. One job holds the pretend
GPUs, the given number waits behind it, ten times as many have ended. The page is opened three
times (the least counts), then the queue changes ``--updates`` times.

* first paint: from the navigation to the first rows of GPUs and queue, wall clock, in ms; of it
  *answer* is the server's answer with the state
* update: the page's main thread busy for one change, in ms: asking, drawing, layout
* changed nodes: DOM changes of one update in which one job moves
* memory: the page's JavaScript heap after collection, in MB, at first and after all updates and
  a walk through the whole queue

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKEN = "for-the-bench-only"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--js-flags=--expose-gc"]
COUNT = """() => {
  window.changes = 0;
  new MutationObserver(all => { window.changes += all.length; }).observe(
    document.querySelector('.gq-waiting'),
    { subtree: true, childList: true, attributes: true, characterData: true });
}"""


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            sys.exit("bench/panel.py: it does not come up")
        time.sleep(0.05)
    return value


class Bench:
    """A server of its own with a queue of a given length."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.home = folder / "home"
        names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
        os.environ |= {name: str(folder / name.lower()) for name in names}
        os.environ |= {"GPUQUEUE_HOME": str(self.home), "GPUQUEUE_FAKE_GPUS": "80G,80G"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpuqueue_jupyter", f"--port={self.port}"],
            env={**os.environ, "JUPYTER_TOKEN": TOKEN},
            stderr=subprocess.DEVNULL,
        )
        until(lambda: self.ask("GET", "counts"))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/gpuqueue/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except OSError:
            return None

    def fill(self, waiting: int, ended: int) -> None:
        """One job that runs, those that wait behind it, and a history."""
        from gpuqueue.client import LocalClient
        from gpuqueue.model import JobKind, Origin, Preset, Request
        from gpuqueue.store import Draft

        asked = {"command": "sleep 86400", "options": {"preset": "exclusive", "eta": "10h"}}
        first = self.ask("POST", "jobs", asked)["id"]
        until(lambda: self.ask("GET", f"jobs/{first}")["state"] == "running")
        client = LocalClient()
        origin = Origin("notebook", "/home/ann/run.ipynb", "kernel-7")
        now = time.time()
        with sqlite3.connect(client.home.database) as db:
            asked_then = json.dumps({"preset": "one", "eta": 600})
            rows = [
                (
                    "failed" if i % 7 == 0 else "succeeded", 0, asked_then, f"old-{i}",
                    f"python train.py --seed {i}", json.dumps({"kind": "rest"}), now - 9e6 + i,
                    now - 9e6 + i, now - 9e6 + i + 50, "exit code 1" if i % 7 == 0 else "",
                )
                for i in range(ended)
            ]  # fmt: skip
            db.executemany(
                "INSERT INTO jobs (kind, state, priority, position, request, tag, owner, command, "
                "cwd, origin, submitted, started, ended, reason, attempt) VALUES "
                "('script', ?, ?, 0, ?, ?, 'ann', ?, '/home/ann', ?, ?, ?, ?, ?, 1)",
                rows,
            )
        drafts = [
            Draft(
                kind=JobKind.SCRIPT,
                request=Request(preset=Preset.ONE, eta=600.0 + i % 50 * 60),
                tag=f"train-{i}",
                owner="ann",
                command=f"python train.py --seed {i}",
                cwd="/home/ann",
                origin=origin,
                spec="{}",
            )
            for i in range(waiting)
        ]
        client.store.submit(drafts, lambda _index, _number: None)
        client.wake("submit")
        client.close()

    def close(self) -> None:
        """End the server and all that belongs to this queue; nothing that waits may start."""
        from gpuqueue.run.process import marked

        self.process.kill()
        self.process.wait(60)
        for _ in range(3):  # a launcher may just be starting another controller
            for pid in marked("GPUQUEUE_HOME", str(self.home)):
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.3)


def busy(session: Any) -> float:
    """Seconds that the page's main thread has worked."""
    found = session.send("Performance.getMetrics")["metrics"]
    return float({item["name"]: item["value"] for item in found}["TaskDuration"])


def heap(page: Any, session: Any) -> float:
    """The page's JavaScript heap in MB, after collection."""
    page.evaluate("() => { gc(); gc(); }")
    found = session.send("Performance.getMetrics")["metrics"]
    return float({item["name"]: item["value"] for item in found}["JSHeapUsedSize"]) / 1e6


def measure(browser: Any, bench: Bench, waiting: int, updates: int) -> dict[str, float]:
    """All numbers for one length of queue."""
    address = f"http://127.0.0.1:{bench.port}/gpuqueue/"
    paints, answers = [], []
    for _ in range(3):
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        page = context.new_page()
        page.goto(f"{address}?token={TOKEN}")  # with the cookie and the files, as ever after
        page.wait_for_selector(".gq-queued")
        page.add_init_script(
            "new MutationObserver((_, me) => { if (document.querySelector('.gq-card') && "
            "document.querySelector('.gq-queued')) { requestAnimationFrame(() => { "
            "window.painted ??= performance.now(); }); me.disconnect(); } }).observe("
            "document, { subtree: true, childList: true });"
        )
        page.goto(address)
        paints.append(page.wait_for_function("window.painted").json_value())
        answers.append(
            page.evaluate(
                "performance.getEntriesByType('resource').find(e => e.name.includes('/status'))"
                ".duration"
            )
        )
        if len(paints) < 3:
            context.close()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.wait_for_timeout(1500)
    first = heap(page, session)
    page.evaluate(COUNT)
    jobs = [job["id"] for job in bench.ask("GET", "queue?limit=20")["jobs"]]
    work, changes = [], []
    for number in range(updates):
        changed, before = page.evaluate("window.changes"), busy(session)
        with page.expect_response(lambda answer: "/timeline" in answer.url):
            one, other = jobs[number % 8], jobs[number % 8 + 1]
            bench.ask("POST", f"jobs/{other}/move", {"before": one})
        page.wait_for_timeout(300)
        work.append(busy(session) - before)
        changes.append(page.evaluate("window.changes") - changed)
    for part in range(21):
        page.evaluate(
            "part => { const e = document.querySelector('.gq-scroller');"
            "e.scrollTop = e.scrollHeight * part / 20; }",
            part,
        )
        page.wait_for_timeout(100)
    page.evaluate("document.querySelector('.gq-scroller').scrollTop = 0")
    page.wait_for_timeout(1500)
    found = {
        "jobs": waiting,
        "first_paint_ms": min(paints),
        "answer_ms": min(answers),
        "update_ms": min(work) * 1000,
        "update_median_ms": sorted(work)[len(work) // 2] * 1000,
        "changed_nodes": sorted(changes)[len(changes) // 2],
        "heap_first_mb": first,
        "heap_after_mb": heap(page, session),
        "nodes": page.evaluate("document.querySelectorAll('*').length"),
    }
    page.context.close()
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default="10,1000,10000", help="lengths of queue")
    parser.add_argument("--history", type=int, help="ended jobs; ten times the queue by default")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    asked = parser.parse_args()
    results = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=asked.browser, args=FLAGS)
        for text in asked.jobs.split(","):
            waiting = int(text)
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
                bench = Bench(Path(name))
                try:
                    history = 10 * waiting if asked.history is None else asked.history
                    bench.fill(waiting, history)
                    results.append(measure(browser, bench, waiting, asked.updates))
                finally:
                    bench.close()
        browser.close()
    names = list(results[0])
    print(" | ".join(f"{name:>16}" for name in names))
    for result in results:
        print(" | ".join(f"{result[name]:>16}" for name in names))
    print(json.dumps({"bench": "panel", "results": results}))


if __name__ == "__main__":
    main()
