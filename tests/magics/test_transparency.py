"""Cells give under ``%%gpu`` what they give without it: the bench over notebooks written for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import clean_up

from gpuqueue.paths import Home

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from transparency import Plain  # noqa: E402 - it is no package

NOTEBOOKS = sorted((ROOT / "tests" / "notebooks_transparency").glob("*.py"))
NEEDS = {
    "libraries": "torch",
    "training": "torch",
    "outputs": "matplotlib",
    "surroundings": "sklearn",
    "tables": "pandas",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_agrees(home: Home, path: Path, tmp_path: Path) -> None:
    """In fresh processes and, on Linux, in those of a spare kernel."""
    pytest.importorskip(NEEDS.get(path.stem, "numpy"))
    home.root.mkdir(mode=0o700, exist_ok=True)
    alone = tmp_path / "notebook"
    alone.mkdir()
    (alone / path.name).write_bytes(path.read_bytes())
    plain = Plain(alone / path.name)
    for spare in (False, True) if sys.platform.startswith("linux") else (False,):
        home.config.write_text(f"spare_kernels = {int(spare)}")
        found = plain.compare(spare=spare)
        assert found.reasons == {}, f"spare kernel: {spare}"
        assert found.agree == found.cells >= 5
        clean_up(home)  # the next controller begins with the other setting
