"""What cannot run is refused at once: nothing is queued, started or waited for."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gpuqueue.client import LocalClient, local
from gpuqueue.errors import GpuqueueError
from gpuqueue.magics.cells import run_cell
from gpuqueue.paths import Home

SETUP = """
import threading
lock = threading.Lock()
class Keeper:
    def __init__(self): self.best = 1; self._guard = threading.RLock()
keeper = Keeper()
def uses(): return lock
def gen(): yield 1
running = gen()
fh = open(__import__('os').devnull, 'w')
nested = {'deep': [(1, {'er': lock})]}
class Refuses:
    def __reduce__(self): raise TypeError('not me')
stubborn = Refuses()
class Endless:
    def __reduce__(self): return (Endless, (Endless(),))
"""


@pytest.fixture
def shell() -> Iterator[Any]:
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    made: Any = InteractiveShell.instance(config=config)
    assert made.run_cell(SETUP).success
    try:
        yield made
    finally:
        made.restore_sys_module_state()
        InteractiveShell.clear_instance()


class Happened:
    """Counts what a refusal must not do."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for owner, name in (
            (subprocess, "Popen"),
            (os, "fork"),
            (os, "posix_spawn"),
            (time, "sleep"),
            (threading.Thread, "start"),
            (local, "ensure_lead"),
        ):
            patch.setattr(owner, name, self._counting(name, getattr(owner, name)))

    def _counting(self, name: str, work: Any) -> Any:
        def counted(*args: Any, **words: Any) -> Any:
            self.calls.append(name)
            return work(*args, **words)

        return counted


@pytest.mark.parametrize(
    ("line", "cell", "kind", "words"),
    [
        ("", "  \n", "PayloadError", "empty"),
        ("", "def f(:\n    pass", "PayloadError", "line 2"),
        ("", "x = 1\nreturn x", "PayloadError", "outside function"),
        ("", "await_ = lambda: (yield)\nbreak", "PayloadError", "break"),
        ("", "f'{'", "PayloadError", "f-string"),
        ("", "nonlocal x", "PayloadError", "nonlocal"),
        ("--lihgt", "1", "InvalidRequest", "--light"),
        ("light", "1", "InvalidRequest", "begin with --"),
        ("--mem", "1", "InvalidRequest", "value must follow"),
        ("--mem lots", "1", "InvalidRequest", "mem"),
        ("--mem -1", "1", "InvalidRequest", "mem"),
        ("--share 2", "1", "InvalidRequest", "share"),
        ("--share 0", "1", "InvalidRequest", "share"),
        ("--share half", "1", "InvalidRequest", "share"),
        ("--gpus many", "1", "InvalidRequest", "gpus"),
        ("--eta soon", "1", "InvalidRequest", "eta"),
        ("--slots none", "1", "InvalidRequest", "slots"),
        ("--after tomorrow", "1", "InvalidRequest", "after"),
        ("--priority high", "1", "InvalidRequest", "priority|high"),
        ("--preset huge", "1", "InvalidRequest", "huge"),
        ("--one --cpu", "1", "InvalidRequest", "contradicts"),
        ("--restartable=yes", "1", "InvalidRequest", "no value"),
        ("--tag 'open", "1", "InvalidRequest", "quotation"),
        ("--in nowhere", "1", "InvalidRequest", "nowhere"),
        ("--out a.b", "1", "InvalidRequest", "a.b"),
        ("--mem 900G", "1", "DoesNotFit", "900G"),
        ("--gpus 9", "1", "DoesNotFit", "9"),
        ("--after 99", "1", "GpuqueueError", "99"),
        ("", "keeper.best", "PayloadError", "keeper._guard"),
        ("--in keeper", "1", "PayloadError", "keeper._guard"),
        ("", "uses()", "PayloadError", "uses lock"),
        ("", "next(running)", "PayloadError", "generator"),
        ("", "fh.write('x')", "PayloadError", "TextIOWrapper"),
        ("", "nested['deep']", "PayloadError", "deep.*er"),
        ("", "stubborn", "PayloadError", "not me"),
        ("", "%%time\nkeeper", "PayloadError", "_guard"),
        ("", "!echo {keeper}", "PayloadError", "_guard"),
    ],
)
def test_refused(  # noqa: PLR0917 - what pytest gives it
    home: Home,
    client: LocalClient,
    shell: Any,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    cell: str,
    kind: str,
    words: str,
) -> None:
    happened = Happened(monkeypatch)
    with pytest.raises(GpuqueueError, match=f"(?s){words}") as caught:
        run_cell(shell, line, cell)
    assert kind in [one.__name__ for one in type(caught.value).__mro__]
    assert happened.calls == []
    assert client.store.jobs() == []
    assert not home.jobs.exists() or list(home.jobs.iterdir()) == []


def test_what_happens_is_counted(
    home: Home, client: LocalClient, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = Happened(monkeypatch)
    run_cell(shell, "--bg", "1")
    assert "ensure_lead" in happened.calls
    assert len(client.store.jobs()) == 1
    # the cell's watcher would start another controller for a job that is left behind
    client.wait(client.store.jobs()[0].id, 120)


def test_inside_a_job(
    home: Home, client: LocalClient, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_JOB_ID", "7")
    happened = Happened(monkeypatch)
    with pytest.raises(GpuqueueError, match="inside job 7"):
        run_cell(shell, "", "1")
    assert happened.calls == []
    assert client.store.jobs() == []
