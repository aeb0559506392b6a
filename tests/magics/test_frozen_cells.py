"""A cell of the notebook under free mode."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import until
from notebook_kernel import Notebook, Ran, notebook

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.client.freeing import free, resume
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.run.freezing import are_frozen
from gpuqueue.run.process import descendants

CELL = """
import os, pathlib, time
number = 0
while not pathlib.Path('go').exists():
    number += 1
    pathlib.Path('new').write_text(str(number))
    os.rename('new', 'count')
    time.sleep(0.005)
number
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def book(home: Home, folder: Path) -> Iterator[Notebook]:
    with notebook(folder) as made:
        yield made


def test_it_stands_still_says_so_and_goes_on(
    book: Notebook, client: LocalClient, folder: Path
) -> None:
    book.ok("%load_ext gpuqueue")
    for number in (1, 2, 3):  # the later ones may come to the notebook's spare kernel
        (folder / "count").unlink(missing_ok=True)
        (folder / "go").unlink(missing_ok=True)
        freezer = threading.Thread(target=_freeze_and_go_on, args=(book, client, folder, number))
        freezer.start()
        ran = book.gpu(CELL)
        freezer.join()
        assert ran.error is None
        assert int(ran.result or 0) > 0
        assert ran.stream("stderr") == (
            f"gpuqueue: job {number} is frozen by free mode; it goes on after %gpu resume\n"
            f"gpuqueue: job {number} goes on\n"
        )
        assert client.job(number).frozen > 0


def _freeze_and_go_on(book: Notebook, client: LocalClient, folder: Path, number: int) -> None:
    until((folder / "count").exists)
    until(lambda: client.job(number).state is JobState.RUNNING)
    free(client)
    job = client.job(number)
    assert job.state is JobState.FROZEN
    assert job.process is not None
    assert are_frozen([job.process])
    assert len(descendants(job.process.pid)) >= 2
    then = (folder / "count").read_text()
    until(lambda: "is frozen" in _shown(book))
    assert (folder / "count").read_text() == then
    resume(client)
    until(lambda: (folder / "count").read_text() != then)
    until(lambda: "goes on\n" in _shown(book))
    (folder / "go").touch()


def _shown(book: Notebook) -> str:
    """What the cell that runs shows by now."""
    return Ran(book._client.nb.cells[-1].outputs).stream("stderr")


def test_one_that_is_frozen_can_be_interrupted(
    book: Notebook, client: LocalClient, folder: Path
) -> None:
    def frozen() -> bool:
        if client.store.mode().normal and (folder / "count").exists():
            free(client)
        return "is frozen" in _shown(book)

    ran = book.run_interrupted(f"%%gpu\n{CELL}", frozen)
    assert ran.error is not None
    assert ran.error[0] == "KeyboardInterrupt"
    until(lambda: client.job(1).state is JobState.CANCELLED)
    assert "job 1 goes on" not in ran.stream("stderr")


def test_the_words(book: Notebook, client: LocalClient) -> None:
    client.wait(gpuqueue.submit(["true"]).id, 60)  # a controller runs
    ran = book.ok("%gpu free --soft")
    assert ran.result is not None
    assert ran.result.startswith("The GPUs are yours.")
    assert client.store.mode().soft
    assert book.ok("%gpu").result.startswith("free mode since")  # type: ignore[union-attr]
    refused = book.run("%gpu free now")
    assert refused.error is not None
    assert "now" in refused.error[1]
    assert "again" in (book.ok("%gpu resume").result or "")
    assert client.store.mode().normal


def test_a_kernel_of_an_agent_is_refused(
    home: Home, folder: Path, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDECODE", "1")
    with notebook(folder) as book:
        ran = book.run("%gpu free")
    assert ran.error is not None
    assert "for the person at this machine" in ran.error[1]
    assert client.store.mode().normal
