"""An order to start a job that is carried out late, when another lead has given it again."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from conftest import lead_process, until
from failure_processes import ours, waiting_bytes

import gpuqueue
from gpuqueue.control.lead import spawn_headless
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, send_signal


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_of_two_runners_for_an_attempt_one_goes_away(home: Home, tmp_path: Path) -> None:
    gpuqueue.submit(["true"]).wait(60)
    first = until(lambda: lead_process(home))
    (launcher,) = until(lambda: ours(home).get("launcher"))
    send_signal(launcher, signal.SIGSTOP)
    try:
        ran = tmp_path / "ran"
        job = gpuqueue.submit(["sh", "-c", f"echo $$ >>'{ran}'; exit 3"])
        until(lambda: waiting_bytes(launcher), what="the order is on its way")
        send_signal(first, signal.SIGKILL)
        until(lambda: not alive(first))
        until(lambda: spawn_headless(home) or lead_process(home), what="another leads")
        assert job.wait(60) == 3
    finally:
        send_signal(launcher, signal.SIGCONT)
    until(lambda: not alive(launcher), what="it has carried out its orders, and ends")
    until(lambda: not ours(home).get("runner"), what="and its runner, too")
    assert len(ran.read_text().split()) == 1
    assert job.record.attempt == 1
    assert job.returncode == 3
