"""The worked examples run, and are stored as their authors wrote them: without outputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

import gpuqueue

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def stored(path: Path) -> str:
    """The notebook as git would commit it: people may have run the file itself, in JupyterLab."""
    name = path.relative_to(ROOT).as_posix()
    shown = subprocess.run(["git", "show", f":{name}"], cwd=ROOT, capture_output=True)
    if shown.returncode:  # not a git checkout, or a new file
        return path.read_text(encoding="utf-8")
    return shown.stdout.decode()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(path):
    notebook = nbformat.reads(stored(path), as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert not cell.source.endswith("\n")
    assert notebook.metadata.kernelspec.name == "python3"


def no_stranger_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")}


@pytest.mark.timeout(600)
def test_quickstart():
    """``make demo``: every job ended as it should, and its table says so."""
    env = no_stranger_settings()
    done = subprocess.run(
        [sys.executable, "scripts/demo.py"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("All as it should be")
    rows = re.findall(r"^(\d+) +(\w+) .* GPU (\d+) +(\d+\.\d+)s ", done.stdout, re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(1, 10))
    assert "model (Sequential)" in done.stdout
    assert "log: accuracy 0.9" in done.stdout

    executed = nbformat.read(ROOT / ".demo" / "quickstart.ipynb", as_version=4)
    cells = {cell.id: cell for cell in executed.cells if cell.cell_type == "code"}
    assert "accuracy 0.9" in text_of(cells["evaluate"])
    shown = text_of(cells["cell"])
    assert "training on" in shown
    assert shown.count("loss") == 4
    assert "warning" not in shown.lower()  # what the cell printed, and no noise of its kernel
    assert "4/4 done" in text_of(cells["sweep"])
    assert "<table>" in text_of(cells["sweep"])
    assert "failed" in text_of(cells["failure"])
    assert "TypeError" in text_of(cells["failure-log"])
    (error,) = [o for o in cells["failure-cell"].outputs if o["output_type"] == "error"]
    assert error["ename"] == "TypeError"
    assert "recent" in text_of(cells["status"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "needs"),
    [("torch", ()), ("lightning", ("lightning",)), ("trainer", ("transformers", "accelerate"))],
)
def test_evicted_in_the_middle_it_ends_equal_bit_by_bit(name, needs, home, tmp_path, monkeypatch):
    """The notebooks say so themselves; here they run, with the real libraries."""
    for library in needs:
        pytest.importorskip(library)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(ROOT / "notebooks" / f"resume_{name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "notebooks")}},
        # nobody but this user can reach a socket in that directory
        config=Config(ConnectionFileMixin={"transport": "ipc", "ip": str(tmp_path / "kernel")}),
    )
    client.execute()
    cells = {cell.id: text_of(cell) for cell in notebook.cells if cell.cell_type == "code"}
    assert "4 of 4 tensors are equal, bit by bit" in cells["compare"]
    whole, evicted, *_ = gpuqueue.jobs()[::-1]
    assert (whole.tag, whole.record.attempt, whole.state) == ("whole", 1, "succeeded")
    assert (evicted.tag, evicted.record.attempt, evicted.state) == ("evicted", 2, "succeeded")
    assert len(evicted.checkpoints) == 1
    assert evicted.checkpoints[0].name in cells["end"]


def text_of(cell: nbformat.NotebookNode) -> str:
    """All that a cell showed."""
    return "".join(
        output.get("text", "") + json.dumps(output.get("data", ""), ensure_ascii=False)
        for output in cell.outputs
    )


def test_script_of_the_quickstart_needs_no_queue():
    done = subprocess.run(
        [sys.executable, "train_digits.py", "--lr", "0.1", "--epochs", "2"],
        cwd=ROOT / "notebooks",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy 0." in done.stdout
    assert (
        "gpuqueue"
        not in (ROOT / "notebooks" / "train_digits.py").read_text().partition("import")[2]
    )
