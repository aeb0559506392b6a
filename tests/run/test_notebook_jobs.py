"""Whole notebooks as jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import until

import gpuqueue
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.run.notebook import inject


def make(path: Path, *sources: str, tags: dict[int, list[str]] | None = None) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for index, words in (tags or {}).items():
        cells[index].metadata["tags"] = words
    cells.insert(0, nbformat.v4.new_markdown_cell("# Title"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def output_of(job: gpuqueue.Job) -> Any:
    return nbformat.read(job.directory / "1" / "run" / "output.ipynb", as_version=4)


def test_a_notebook_with_parameters(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "note books"
    folder.mkdir()
    path = make(
        folder / "t.ipynb", "lr = 1; n = 2", "import os\nprint(lr, n, os.getcwd())",
        tags={0: ["parameters"]},
    )  # fmt: skip
    job = gpuqueue.submit(path, lr=0.5)
    assert job.wait() == 0, job.logs()
    notebook = output_of(job)
    assert notebook.cells[3].outputs[0].text == f"0.5 2 {folder}\n"
    assert notebook.cells[2].metadata.tags == ["injected-parameters"]
    assert job.result() == job.directory / "1" / "run" / "output.ipynb"
    assert "cell 3/3 done" in job.logs()
    # the notebook itself is as it was
    assert len(nbformat.read(path, as_version=4).cells) == 3


def test_a_failing_cell_is_named_and_what_came_before_is_kept(home: Home, tmp_path: Path) -> None:
    path = make(tmp_path / "t.ipynb", "print('one')", "1 / 0", "print('never')")
    job = gpuqueue.submit(path)
    assert job.wait() == 1
    assert job.reason == "cell 2 of 3: ZeroDivisionError: division by zero"
    cells = output_of(job).cells
    assert cells[1].outputs[0].text == "one\n"
    assert cells[2].outputs[0].ename == "ZeroDivisionError"
    assert cells[3].outputs == []


def test_an_interrupt_reaches_the_cell_and_progress_can_be_seen(home: Home, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = make(
        tmp_path / "t.ipynb", "print('one')",
        f"import time\nopen({str(mark)!r}, 'w').close()\ntime.sleep(600)", "print('never')",
    )  # fmt: skip
    job = gpuqueue.submit(path)
    until(mark.exists)
    assert output_of(job).cells[1].outputs[0].text == "one\n"
    job.interrupt()
    assert job.wait() == 130
    assert job.state is JobState.CANCELLED
    assert "cell 2 of 3: KeyboardInterrupt" in job.reason
    assert output_of(job).cells[2].outputs[0].ename == "KeyboardInterrupt"


def test_a_kernel_that_dies(home: Home, tmp_path: Path) -> None:
    job = gpuqueue.submit(make(tmp_path / "t.ipynb", "import os; os.kill(os.getpid(), 9)"))
    assert job.wait() == 1
    assert "cell 1 of 1" in job.reason
    assert "SIGKILL" in job.reason


@pytest.mark.parametrize(
    "value",
    [1, 0.5, float("inf"), "a'\"\n\\", None, True, [1, [float("-inf")]], {"k": {"n": [None]}}],
)
def test_parameters_are_written_as_python(value: Any) -> None:
    notebook = nbformat.v4.new_notebook()
    inject(notebook, {"x": json.loads(json.dumps(value))})
    space: dict[str, Any] = {}
    exec(notebook.cells[0].source, space)
    assert space["x"] == value


def test_where_parameters_go() -> None:
    new = nbformat.v4.new_code_cell
    notebook = nbformat.v4.new_notebook(
        cells=[new("a"), new("b", metadata={"tags": ["parameters"]})]
    )
    inject(notebook, {})
    assert len(notebook.cells) == 2
    inject(notebook, {"x": 1})
    assert [cell.source for cell in notebook.cells] == ["a", "b", "# Parameters\nx = 1"]
    inject(notebook, {"x": 2})
    assert [cell.source for cell in notebook.cells] == ["a", "b", "# Parameters\nx = 2"]
    nbformat.validate(notebook)


def test_it_needs_no_short_paths(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / ("deep " * 30)
    folder.mkdir()
    job = gpuqueue.submit(make(folder / "t.ipynb", "x = 1"))
    assert job.wait() == 0, job.logs()
    assert os.path.isfile(job.result())
