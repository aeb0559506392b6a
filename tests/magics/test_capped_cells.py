"""Cells under a memory cap, from a fresh process and from a spare kernel that was there before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import until
from notebook_kernel import Notebook, notebook
from test_spare_kernels import WHENCE, configure, forked_kernels, ready

from gpuqueue.client import LocalClient
from gpuqueue.control.holding import FACT
from gpuqueue.paths import Home

sys.path.insert(0, str(Path(__file__).parents[1] / "share"))

from share_cards import HERE, ONE, drivers, needs_compiler

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers"]

CELL = f"""
import cudalike as cuda
context = cuda.use() and None
print(cuda.alloc(64 * cuda.MIB + 1), cuda.alloc(cuda.MIB) > 0, "gpuqueue.run.spare " in {WHENCE})
"""
FREE = """
import cudalike as cuda
context = cuda.use() and None
print(cuda.alloc(640 * cuda.MIB) > 0)
"""


@pytest.fixture
def book(
    home: Home, drivers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: LocalClient
) -> Iterator[Notebook]:
    configure(home, spare_memory="256M", spare_idle=600)
    (tmp_path / "card").write_bytes(bytes(4096))
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", f"24G/uuid={ONE}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(drivers))
    monkeypatch.setenv("FAKE_CUDA_CARD", str(tmp_path / "card"))
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    client.wake("hold")
    told = until(lambda: (client.store.fact(FACT) or {}).get("standings"), 120)
    assert told["memory"] == "capped"
    with notebook(tmp_path / "work") as made:
        yield made
    until(lambda: not forked_kernels(home), what="nothing of the spare kernel is left")


def test_a_cell_of_a_spare_kernel_is_capped_as_any(book: Notebook, home: Home) -> None:
    assert book.gpu(CELL, "--mem 64M").stream() == "-2 True False\n"

    def served() -> bool:
        until(lambda: ready(home), what="a spare kernel is ready")
        said = book.gpu(CELL, "--mem 64M").stream()
        assert said in ("-2 True True\n", "-2 True False\n")
        return said.endswith("True True\n")

    until(served, 120, "a cell came to the spare kernel")
    # the same spare kernel serves cells that have no cap, and what they are told stays with them
    until(lambda: ready(home))
    assert book.gpu(FREE).stream() == "True\n"
    assert book.ok("import os; print(os.environ.get('LD_PRELOAD'))").stream() == "None\n"
    assert book.gpu("print(os.environ.get('GPUQUEUE_MEMCAP'))").stream() == "None\n"
