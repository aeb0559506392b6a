"""Ends of jobs told elsewhere: which, how, and that nobody learns where to."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from conftest import until

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.notifying import Notifier
from gpuqueue.errors import InvalidRequest
from gpuqueue.model import Job, JobKind, JobState, Origin, Request
from gpuqueue.paths import Home
from gpuqueue.settings import Settings, load_settings, render_settings

SECRET = "json://ann:pass-word@127.0.0.1/hook"


def job(number: int = 7, state: JobState = JobState.SUCCEEDED, took: float = 180.0) -> Job:
    reason = "" if state is JobState.SUCCEEDED else "exit code 2"
    return Job(
        id=number, kind=JobKind.SCRIPT, state=state, request=Request(), tag="train", owner="ann",
        command="python train.py", cwd="/", origin=Origin(), submitted=1000.0, position=number,
        started=1000.0, ended=1000.0 + took, reason=reason,
    )  # fmt: skip


class Apprise:
    """Stands for Apprise: keeps what is sent."""

    sent: list[tuple[str, str, str]]
    works = True
    hold: threading.Event | None = None

    def __init__(self) -> None:
        self._url = ""

    def add(self, url: str) -> bool:
        self._url = url
        return ":" in url

    def notify(self, body: str, title: str) -> bool:
        logging.getLogger("apprise").error("could not reach %s", self._url)
        if self.hold is not None:
            self.hold.wait(60)
        if not self.works:
            raise OSError(f"cannot reach {self._url}")
        self.sent.append((self._url, title, body))
        return True


@pytest.fixture
def apprise(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Apprise]]:
    module = ModuleType("apprise")
    kind = type("Apprise", (Apprise,), {"sent": []})
    module.Apprise = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "apprise", module)
    yield kind
    if kind.hold is not None:
        kind.hold.set()


def notifier(home: Home, patience: float = 30.0, **settings: object) -> Notifier:
    made = Settings(**{"notify_urls": [SECRET], **settings})
    return Notifier(home, lambda: made, patience)


def test_ends_go_out_in_one_message(home: Home, apprise: type[Apprise]) -> None:
    one = notifier(home)
    one.tell([job(1), job(2, JobState.FAILED)])
    one.close()
    ((url, title, body),) = apprise.sent
    assert (url, title) == (SECRET, "GPU queue")
    assert body == "job 1 (train) succeeded in 3m\njob 2 (train) failed: exit code 2 after 3m"


def test_which_ends(home: Home, apprise: type[Apprise]) -> None:
    for settings in ({"notify": "off"}, {"notify": "failures"}, {"notify_after": 200.0},
                     {"notify_urls": []}):  # fmt: skip
        one = notifier(home, **settings)
        one.tell([job(1)])
        one.close()
    assert apprise.sent == []
    one = notifier(home, notify="failures")
    one.tell([job(n, JobState.FAILED) for n in range(20)])
    one.close()
    assert apprise.sent[0][2].endswith("and 12 more")


def test_trouble_is_told_once_and_never_says_where_to(
    home: Home, apprise: type[Apprise], caplog: pytest.LogCaptureFixture
) -> None:
    apprise.works = False
    one = notifier(home, notify_urls=[SECRET, "nonsense"])
    for number in range(3):
        one._deliver([job(number)])
    one.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "gpuqueue: a notification did not reach number 1, 2 of notify_urls: is the address right?"
    ]
    apprise.works = True
    one._deliver([job(4)])
    assert apprise.sent
    assert "pass-word" not in caplog.text


def test_one_that_hangs_is_given_up_and_holds_nobody(
    home: Home, apprise: type[Apprise], caplog: pytest.LogCaptureFixture
) -> None:
    apprise.hold = threading.Event()
    one = notifier(home, patience=0.05)
    began = time.monotonic()
    one.tell([job(1)])
    assert time.monotonic() - began < 1  # who tells does not wait
    until(lambda: "given up" in caplog.text)
    one.tell([job(2)])
    one.close()
    assert apprise.sent == []


def test_without_apprise_it_says_what_to_install(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    one = notifier(home)
    one.tell([job(1)])
    one.close()
    assert "pip install 'jupyter-gpuqueue[notify]'" in caplog.text


def test_the_addresses_are_shown_nowhere(home: Home, client: LocalClient) -> None:
    home.config.write_text(f'notify_urls = ["{SECRET}"]\n')
    settings = load_settings(home.config)
    assert settings.notify_urls == [SECRET]
    shown = [settings.as_dict(), gpuqueue.config(), gpuqueue.status().to_dict()["settings"]]
    assert all(each["notify_urls"] == ["(not shown)"] for each in shown)
    assert "pass-word" not in render_settings(settings)
    assert "pass-word" not in json.dumps(gpuqueue.doctor())
    for wrong in (f'"{SECRET}"', f'[["{SECRET}"]]', f'{{a = "{SECRET}"}}', f'["{SECRET}'):
        home.config.write_text(f"notify_urls = {wrong}\n")
        with pytest.raises(InvalidRequest) as refused:
            load_settings(home.config)
        assert "pass-word" not in str(refused.value)


def test_a_real_controller_tells(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a module in Apprise's place that writes a file; the lead is a process of its own."""
    got = tmp_path / "got"
    (tmp_path / "apprise.py").write_text(
        "class Apprise:\n"
        "    def add(self, url):\n        self.url = url\n        return True\n"
        "    def notify(self, body, title):\n"
        f"        open({str(got)!r}, 'a').write(f'{{self.url}} {{body}}')\n        return True\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    home.config.write_text(f'notify_urls = ["{SECRET}"]\nnotify_after = 0\n')
    gpuqueue.submit(["true"], preset="cpu", tag="quick").wait(60)
    until(lambda: got.exists() and "quick" in got.read_text(), what="the end is told")
    assert got.read_text().startswith(f"{SECRET} job 1 (quick) succeeded in ")
    log = home.log.read_text() if home.log.exists() else ""
    assert "pass-word" not in log
