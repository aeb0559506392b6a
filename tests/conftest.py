"""Fixtures: a state directory of one's own, with pretend GPUs, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest
from certificates import Certificates, make_certificates

from gpuqueue import paths
from gpuqueue.client import LocalClient
from gpuqueue.client.rights import MARKERS
from gpuqueue.model import ACTIVE, ProcessId
from gpuqueue.paths import Home, find_home
from gpuqueue.run.process import alive, marked, send_signal
from gpuqueue.store import Store

T = TypeVar("T")

# nothing here may depend on the machine's speed; HYPOTHESIS_PROFILE=thorough looks further
hypothesis.settings.register_profile(
    "ci", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "thorough", hypothesis.settings.get_profile("ci"), max_examples=1000
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if hasattr(signal, "SIGHUP"):
    # a run under nohup ignores it, and so would every process that the tests start
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # and one in the background of a script ignores this one
    signal.signal(signal.SIGINT, signal.default_int_handler)


def until(condition: Callable[[], T], timeout: float = 60.0, what: str = "") -> T:
    """The first true value of a condition; fails after a generous time."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"never became true: {what or condition}")
        time.sleep(0.01)


def lead_process(home: Home) -> ProcessId | None:
    """The process that leads on a home now."""
    if not home.database.exists():
        return None
    store = Store(home.database)
    try:
        fact = store.fact("lead")
    finally:
        store.close()
    if not fact:
        return None
    process = ProcessId(fact["pid"], fact["start"], fact["boot"])
    return process if alive(process) and fact["leading"] else None


def leads_of(home: Home) -> list[int]:
    """Every controller process of a home that runs in the background, leading or standing by."""
    return [pid for pid in marked("GPUQUEUE_HOME", str(home.root)) if _is_headless(pid)]


def _is_headless(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"gpuqueue.control.headless" in words


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended since it was found
        os.kill(pid, number)


def end_leads(home: Home, number: int = signal.SIGTERM) -> None:
    """End the controllers in the background, one that was only about to begin as well."""
    asked: set[int] = set()

    def over() -> bool:
        there = leads_of(home)
        for pid in set(there) - asked:
            asked.add(pid)
            _kill(pid, number)
        return not there

    until(over, what="controllers end")


def clean_up(home: Home) -> None:
    """End the controllers and the jobs of a home."""
    end_leads(home)
    if not home.database.exists():
        return
    store = Store(home.database)
    try:
        for job in store.live():
            if job.state in ACTIVE and job.process is not None:
                send_signal(job.process, signal.SIGKILL)
            for pid in marked("GPUQUEUE_ATTEMPT_DIR", str(home.attempt(job.id, job.attempt))):
                _kill(pid, signal.SIGKILL)
    finally:
        store.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A state directory with an awkward name and two pretend GPUs of 24 GiB."""
    root = tmp_path / "st ate – ü"
    monkeypatch.setenv("GPUQUEUE_HOME", str(root))
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "24G,24G")
    here = ("GPUQUEUE_JOB_ID", "GPUQUEUE_ATTEMPT_DIR", "JPY_SESSION_NAME", "JUPYTERHUB_USER")
    for name in (*here, *MARKERS):  # whoever runs the tests
        monkeypatch.delenv(name, raising=False)
    paths._checked.clear()
    found = find_home()
    yield found
    clean_up(found)
    paths._checked.clear()


@pytest.fixture
def client(home: Home) -> Iterator[LocalClient]:
    """A client of that state directory."""
    made = LocalClient(home)
    yield made
    made.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate for loopback, from an authority that nobody else knows."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: side by side, nobody then waits for one that began last."""
    items.sort(
        key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have to tell though they passed: their property ``told``; and kills in all."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if any(name == "told" for name, _ in report.user_properties)
    ]
    for report in reports:
        told = dict(report.user_properties)
        terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {told['told']}")
    killers = [report for report in reports if "kills" in dict(report.user_properties)]
    if killers:
        kills = sum(dict(report.user_properties)["kills"] for report in killers)
        took = max(report.stop for report in killers) - min(report.start for report in killers)
        terminalreporter.write_line(f"{kills} kills in all, within {took:.0f} s")
