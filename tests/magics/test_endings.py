"""What a notebook says of its jobs that have ended: under the next cell, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from notebook_kernel import notebook

from gpuqueue.client import LocalClient
from gpuqueue.model import TERMINAL, Origin
from gpuqueue.paths import Home

Runs = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def runs(home: Home, tmp_path: Path) -> Iterator[Runs]:
    """Runs a cell as a front end does that somebody sits at; gives its outputs' data."""
    from jupyter_client.manager import start_new_kernel

    manager, talk = start_new_kernel(cwd=str(tmp_path))

    def run(source: str) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []

        def output(message: dict[str, Any]) -> None:
            if message["msg_type"] in ("display_data", "execute_result"):
                shown.append(message["content"]["data"])

        reply = talk.execute_interactive(source, output_hook=output, allow_stdin=True, timeout=60)
        assert reply["content"]["status"] == "ok", reply
        return shown

    try:
        run("%reload_ext gpuqueue")
        yield run
    finally:
        talk.stop_channels()
        manager.shutdown_kernel(now=True)


def ended(client: LocalClient, number: int) -> None:
    until(lambda: client.job(number).state in TERMINAL, what=f"job {number} has ended")


def said(outputs: list[dict[str, Any]]) -> list[str]:
    told = [each for each in outputs if "gpuqueue-ended" in each.get("text/html", "")]
    return [line for each in told for line in each["text/plain"].split("\n")]


def test_what_ends_in_the_background_is_told_under_the_next_cell_once(
    runs: Runs, client: LocalClient, tmp_path: Path
) -> None:
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    runs(f"%%gpu --bg --cpu --tag train\n{wait}x = 1")
    shell = "until [ -e go ]; do sleep 0.02; done; exit 1"
    runs(f"import gpuqueue; gpuqueue.submit({shell!r}, preset='cpu', tag='<b>bad</b>')")
    (tmp_path / "go").touch()
    ended(client, 1)
    ended(client, 2)
    shown = runs("1 + 1")
    lines = sorted(said(shown))
    assert lines[0].startswith("gpuqueue: job 1 (train) succeeded in ")
    assert lines[0].endswith("; %gpu pull 1")
    assert lines[1].startswith("gpuqueue: job 2 (<b>bad</b>) failed: exit code 1 after ")
    assert lines[1].endswith("; %gpu logs 2")
    assert "<b>" not in shown[-1]["text/html"]
    assert said(runs("1 + 1")) == []


def test_a_command_that_fails_at_once_is_told(runs: Runs, client: LocalClient) -> None:
    runs("import gpuqueue; gpuqueue.status()")
    begin = "job = gpuqueue.submit('echo no >&2; exit 2', preset='cpu', tag='r2')"
    told = said(runs(f"{begin}\ntry: job.wait()\nexcept Exception: pass"))
    assert told == [] or told[0].startswith("gpuqueue: job 1 (r2) failed: exit code 2 after ")
    told += said(runs("1 + 1"))
    assert len(told) == 1
    assert ": no; %gpu logs 1" in told[0]


def test_what_a_cell_showed_itself_is_not_told_again(runs: Runs, client: LocalClient) -> None:
    assert said(runs("%%gpu --cpu\nx = 1")) == []
    assert said(runs("x")) == []


def test_other_peoples_jobs_are_not_told(runs: Runs, client: LocalClient) -> None:
    runs("import gpuqueue; gpuqueue.status()")
    from gpuqueue.client import default_client
    from gpuqueue.client.payload import script_payload
    from gpuqueue.client.request import options_from

    work = (script_payload(["true"]), options_from({"preset": "cpu"}))
    (job,) = default_client().submit([work], origin=Origin("notebook", "/other.ipynb", "kernel-1"))
    ended(client, job.id)
    assert said(runs("1 + 1")) == []


def test_the_setting_turns_it_off(runs: Runs, client: LocalClient, home: Home) -> None:
    home.config.write_text("notify_cells = false\n")
    runs("import gpuqueue; gpuqueue.submit(['true'], preset='cpu')")
    ended(client, 1)
    assert said(runs("1 + 1")) == []


def test_a_notebook_that_is_run_without_anybody_stays_as_it_is(
    home: Home, tmp_path: Path, client: LocalClient
) -> None:
    with notebook(tmp_path / "work") as book:
        book.ok("import gpuqueue; gpuqueue.submit(['true'], preset='cpu')")
        ended(client, 1)
        assert book.ok("None").outputs == []


def test_it_goes_with_the_extension(runs: Runs, client: LocalClient) -> None:
    runs("import gpuqueue; gpuqueue.submit(['true'], preset='cpu')")
    runs("%unload_ext gpuqueue")
    ended(client, 1)
    assert said(runs("1 + 1")) == []
