"""Pictures of the panel in its three homes, from a real server with pretend GPUs and real jobs.

Run by ``make screenshots``; writes PNG files into docs/img.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "img"
TOKEN = "for-pictures-only"  # noqa: S105 - of a server that lives for a minute
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
]
API = "gpuqueue/api/v1"
KINDS = ("running", "waiting")
TRAIN = """\
import math, time
from gpuqueue import checkpoint
for step in range(1, 4001):
    loss = 2.3 * math.exp(-step / 900) + 0.05 * math.sin(step / 7) / (1 + step / 200)
    checkpoint.log(step, loss=loss, accuracy=1 - loss / 2.4, total_steps=4000)
    if step % 20 == 0:
        print(f"step {step:5d}  loss {loss:.4f}  lr {0.1 * 0.999 ** step:.5f}", flush=True)
    time.sleep(0.004 if step < 1400 else 0.5)
"""
EVALUATE = """\
import time
print("loading checkpoint run-12/step-4000 ...", flush=True)
time.sleep(1)
scores = {"top1": 0.71}
print("top5:", scores["top5"])
"""
SHARE = {"share": "0.25", "mem": "20G"}
NOTEBOOK: dict[str, Any] = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "cells": [
        {
            "cell_type": "code",
            "id": "a",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": "import gpuqueue\n\ngpuqueue.panel()",
        },
    ],
}


class Machine:
    """A JupyterLab server with pretend GPUs, and how to ask it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        work = folder / "work"
        work.mkdir()
        (work / "train.py").write_text(TRAIN)
        (work / "evaluate.py").write_text(EVALUATE)
        (work / "panel.ipynb").write_text(json.dumps(NOTEBOOK))
        shares = {**NOTEBOOK["metadata"], "gpuqueue": SHARE}
        (work / "explore.ipynb").write_text(json.dumps({**NOTEBOOK, "metadata": shares}))
        self.processes = folder / "processes"
        self.processes.write_text("")
        names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyter", "lab", "--allow-root", "--no-browser",
                f"--port={port}", "--LabApp.news_url=None", f"--ServerApp.root_dir={work}",
            ],
            env={
                **os.environ,
                **{name: str(folder / name.lower()) for name in names},
                "GPUQUEUE_HOME": str(folder / "home"),
                "GPUQUEUE_FAKE_GPUS": "2xNVIDIA H100:80G",
                "GPUQUEUE_FAKE_PROCS": str(self.processes),
                "JUPYTER_TOKEN": TOKEN,
                "JUPYTER_PREFER_ENV_PATH": "1",
            },
            stdout=open(folder / "log", "wb"),  # noqa: SIM115 - for the process's life
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        until(lambda: self.ask("GET", "api/status"))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """JSON of an address; None where nobody answers yet."""
        request = urllib.request.Request(  # noqa: S310 - loopback
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError:
            raise
        except OSError:
            return None

    def submit(self, command: Any, **options: Any) -> int:
        """A job's number."""
        asked = {"command": command, "options": options}
        return int(self.ask("POST", "gpuqueue/api/v1/jobs", asked)["id"])

    def state(self, job: int) -> str:
        """Where a job is in its life."""
        return str(self.ask("GET", f"gpuqueue/api/v1/jobs/{job}")["state"])

    def explore(self) -> None:
        """A notebook whose kernel holds a share, and idles."""
        name = "explore.ipynb"
        kernel = {"name": "python3"}
        self.ask(
            "POST",
            "api/sessions",
            {"path": name, "name": name, "type": "notebook", "kernel": kernel},
        )
        status = f"{API}/status"
        until(
            lambda: any(job.get("busy") is False for job in self.ask("GET", status)["running"]),
        )

    def fill(self) -> dict[str, int]:
        """A lively afternoon; gives some of its jobs by name."""
        done = [
            self.submit("sleep 1", tag=tag, mem="10G", eta="1m") for tag in ("tokenize", "warmup")
        ]
        failed = self.submit(["python", "evaluate.py"], tag="evaluate", mem="4G", eta="5m")
        for job in (*done, failed):
            until(lambda job=job: self.state(job) in ("succeeded", "failed"))  # type: ignore[misc]
        train = self.submit(
            ["python", "train.py"], tag="finetune-lr0.1", mem="32G", share=0.5, eta="40m"
        )
        embed = self.submit("sleep 900", tag="embed-corpus", mem="20G", share=0.25, eta="15m")
        until(lambda: self.state(train) == self.state(embed) == "running")
        self.explore()
        self.submit("sleep 2400", tag="pretrain-small", preset="one", eta="40m")
        for i, rate in enumerate(("0.05", "0.02", "0.01")):
            self.submit("sleep 600", tag=f"sweep-lr{rate}", preset="one", eta=f"{20 + 5 * i}m")
        last = self.submit("sleep 1200", tag="ablation-2gpu", preset="two", eta="1h")
        self.submit("true", tag="report", preset="cpu", after=last)
        until(
            lambda: (
                (self.ask("GET", f"gpuqueue/api/v1/jobs/{train}").get("progress") or {}).get(
                    "step", 0
                )
                > 1400
            )
        )
        # what the driver would tell of them, and of a program that is not the queue's
        running = self.ask("GET", "gpuqueue/api/v1/status")["running"]
        pids = {job["tag"]: job["pid"] for job in running}
        lines = [
            f"{pids['finetune-lr0.1']}:0:27100",
            f"{pids['embed-corpus']}:0:18400",
            f"{pids['explore.ipynb']}:0:9300",
            f"{pids['pretrain-small']}:1:52000",
            f"{os.getpid()}:0:3100",
        ]
        self.processes.write_text("\n".join(lines))
        until(lambda: self.ask("GET", "gpuqueue/api/v1/gpus")["gpus"][0]["outside"])
        return {"train": train, "failed": failed}


def until(condition: Callable[[], Any]) -> None:
    """Wait for something, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("screenshots: it does not come up; see the server's log")
        time.sleep(0.05)


def browser_path() -> str | None:
    """The system's Chromium."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


def shoot(page: Any, name: str) -> None:
    """Keep a picture."""
    FOLDER.mkdir(exist_ok=True)
    page.wait_for_timeout(700)  # bars move to their places
    page.screenshot(path=FOLDER / f"{name}.png")
    size = (FOLDER / f"{name}.png").stat().st_size
    print(f"{name}.png {size / 1024:.0f} KB")


def open_page(browser: Any, machine: Machine, size: tuple[int, int], scheme: str) -> Any:
    """The page by itself."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page.goto(f"{machine.url}gpuqueue/?token={TOKEN}")
    page.wait_for_selector(".gq-running .gq-row")
    page.wait_for_selector(".gq-stay")
    return page


def choose(page: Any) -> None:
    """Some jobs looked for and chosen, and a share about to be changed."""
    page.get_by_role("searchbox").fill("sweep")
    page.get_by_role("search").get_by_text("3 waiting").wait_for()
    boxes = page.locator(".gq-waiting [data-pick]")
    boxes.nth(0).check()
    boxes.nth(1).click(modifiers=["Shift"])
    page.locator(".gq-resize").first.click()
    page.get_by_role("slider", name="Compute").press("ArrowLeft")


def choose_share(page: Any) -> None:
    """A notebook's share, about to be changed."""
    row = page.locator(".gq-notebook").first
    row.locator(".gq-resize").click()
    row.get_by_text("At its next start").wait_for()
    row.get_by_role("slider", name="Compute").press("ArrowLeft")
    row.evaluate("node => node.parentElement.parentElement.scrollIntoView({block: 'center'})")


def open_lab(browser: Any, machine: Machine, size: tuple[int, int], theme: str) -> Any:
    """JupyterLab, in one of its themes."""
    address = "lab/api/settings/@jupyterlab/apputils-extension:themes"
    machine.ask("PUT", address, {"raw": json.dumps({"theme": theme})})
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(f"{machine.url}lab/tree/panel.ipynb?token={TOKEN}&reset")
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=120_000)
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    return page


def quiet(machine: Machine) -> None:
    """Nothing of JupyterLab's own over the pictures."""
    address = "lab/api/settings/@jupyterlab/apputils-extension:notification"
    machine.ask(
        "PUT", address, {"raw": json.dumps({"fetchNews": "false", "checkForUpdates": False})}
    )


def sidebar(page: Any) -> None:
    """Open the panel in JupyterLab's sidebar."""
    page.get_by_role("tab", name="GPU queue").click()
    page.wait_for_selector("#jupyter-gpuqueue-panel .gq-running .gq-row")


def of_the_page(browser: Any, machine: Machine, jobs: dict[str, int]) -> None:
    """Pictures of the page by itself, light and dark."""
    for scheme in ("light", "dark"):
        page = open_page(browser, machine, (1200, 800), scheme)
        page.locator(".gq-usage summary").click()
        page.get_by_role("combobox", name="By").select_option("tag")
        page.get_by_role("table", name="by name").wait_for()
        shoot(page, f"page-{scheme}-wide")
        page.set_viewport_size({"width": 420, "height": 900})
        shoot(page, f"page-{scheme}-narrow")
        page.set_viewport_size({"width": 1200, "height": 800})
        choose_share(page)
        shoot(page, f"notebooks-{scheme}")
        page.reload()
        page.wait_for_selector(".gq-running .gq-row")
        choose(page)
        shoot(page, f"many-{scheme}")
        page.goto(f"{machine.url}gpuqueue/#job={jobs['train' if scheme == 'light' else 'failed']}")
        page.reload()
        page.wait_for_selector(".gq-log:not([hidden])")
        shoot(page, f"job-{scheme}")
        page.close()


def main() -> None:
    """Take them all."""
    from playwright.sync_api import sync_playwright

    path = browser_path()
    if path is None:
        sys.exit("screenshots: install Chromium first (apt install chromium)")
    only = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        machine = Machine(Path(name))
        try:
            jobs = machine.fill()
            quiet(machine)
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            if not only or "page" in only:
                of_the_page(browser, machine, jobs)
            for theme, scheme in (
                ("JupyterLab Light", "light"),
                ("JupyterLab Dark", "dark"),
                ("JupyterLab Dark High Contrast", "contrast"),
            ):
                if only and "lab" not in only:
                    break
                page = open_lab(browser, machine, (1200, 800), theme)
                sidebar(page)
                shoot(page, f"lab-{scheme}")
                if scheme != "contrast":
                    page.get_by_role("tab", name="GPU queue").click()
                    page.wait_for_selector("[data-status=idle]", timeout=60_000)
                    page.wait_for_timeout(2000)  # what is run as it connects gets lost
                    page.click(".jp-Notebook .jp-Cell")
                    page.keyboard.press("Shift+Enter")
                    page.wait_for_selector(".gq-incell .gq-running .gq-row", timeout=60_000)
                    shoot(page, f"cell-{scheme}")
                page.close()
            browser.close()
        finally:
            for job in machine.ask("GET", "gpuqueue/api/v1/jobs?state=queued,running")["jobs"]:
                machine.ask("POST", f"gpuqueue/api/v1/jobs/{job['id']}/cancel", {})
            # a server that is stopped with jobs leaves a controller behind
            until(lambda: not any(machine.ask("GET", f"{API}/counts")[n] for n in KINDS))
            machine.process.terminate()
            machine.process.wait(30)


if __name__ == "__main__":
    main()
