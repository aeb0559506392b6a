"""Cells give under ``%%gpu`` what they give without it: the bench over notebooks written for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuqueue.paths import Home

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from transparency import compare  # noqa: E402 - it is no package

NOTEBOOKS = sorted((ROOT / "tests" / "notebooks_transparency").glob("*.py"))
NEEDS = {
    "training": "torch",
    "outputs": "matplotlib",
    "surroundings": "sklearn",
    "tables": "pandas",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("spare", [False, True], ids=["fresh", "spare"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_agrees(home: Home, path: Path, tmp_path: Path, *, spare: bool) -> None:
    if spare and not sys.platform.startswith("linux"):
        pytest.skip("spare kernels are for Linux")
    home.root.mkdir(mode=0o700, exist_ok=True)
    home.config.write_text(f"spare_kernels = {int(spare)}")
    pytest.importorskip(NEEDS.get(path.stem, "numpy"))
    alone = tmp_path / "notebook"
    alone.mkdir()
    (alone / path.name).write_bytes(path.read_bytes())
    found = compare(alone / path.name, spare=spare)
    assert found.reasons == {}
    assert found.agree == found.cells >= 5
