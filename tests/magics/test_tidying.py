"""A kernel gives back what its libraries keep of GPU memory, between cells, when it is asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import until

from gpuqueue.magics import activity, tidying
from gpuqueue.magics.tidying import Tidier, empty_caches
from gpuqueue.run.kernelshare import SHARE, TIDY, Busy, ask_to_tidy

if os.name != "posix":
    pytest.skip("named pipes", allow_module_level=True)


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which libraries have given back their caches; both are there and in use."""
    done: list[str] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: done.append("torch"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy", _cupy(done))
    return done


def _cupy(done: list[str]) -> object:
    class Device:
        here = -1

        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            Device.here = self.number

        def __exit__(self, *_: object) -> None:
            Device.here = -1

    pool = SimpleNamespace(free_all_blocks=lambda: done.append(f"cupy {Device.here}"))
    runtime = SimpleNamespace(getDeviceCount=lambda: 2)
    cuda = SimpleNamespace(runtime=runtime, Device=Device)
    return SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool)


def test_both_libraries_and_every_device(emptied: list[str]) -> None:
    assert empty_caches() == ["torch", "cupy"]
    assert emptied == ["torch", "cupy 0", "cupy 1"]


def test_one_that_has_not_begun_or_is_broken_loses_nothing(
    emptied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(sys.modules["cupy"], "cuda", None)
    assert empty_caches() == []
    assert emptied == []
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert empty_caches() == []


def test_it_is_done_between_cells_only_when_asked(
    emptied: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []
    look = tidying.is_busy

    def noted(folder: str) -> bool:
        looked.append(look(folder))
        return looked[-1]

    monkeypatch.setattr(tidying, "is_busy", noted)
    busy = Busy(tmp_path)
    busy.tell(busy=True)
    assert not ask_to_tidy(tmp_path)  # nobody listens
    tidier = Tidier(str(tmp_path))
    try:
        assert ask_to_tidy(tmp_path)
        until(lambda: looked == [True], what="it has heard, and a cell runs")
        busy.tell(busy=False)
        assert emptied == []
        assert ask_to_tidy(tmp_path)
        until(lambda: emptied == ["torch", "cupy 0", "cupy 1"])
    finally:
        tidier.close()
    until(lambda: not (tmp_path / TIDY).exists(), what="it listens no longer")
    assert not ask_to_tidy(tmp_path)


def test_a_kernel_listens_once_it_holds_a_share(
    emptied: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_note", "_file", "_tidier"):
        monkeypatch.setattr(activity, name, "" if name == "_note" else None)
    monkeypatch.setenv(SHARE, f'{{"job": 1, "folder": "{tmp_path}"}}')
    activity._cell_begins()
    activity._cell_ends()
    assert ask_to_tidy(tmp_path)
    until(lambda: "torch" in emptied)
    listens = activity._tidier
    for changed in range(3):  # what is noted beside it, as its size
        note = f'{{"job": 1, "folder": "{tmp_path}", "changed": {changed}}}'
        monkeypatch.setenv(SHARE, note)
        activity._cell_begins()
        activity._cell_ends()
        assert activity._tidier is listens
        emptied.clear()
        assert ask_to_tidy(tmp_path)
        until(lambda: "torch" in emptied)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv(SHARE, f'{{"job": 2, "folder": "{other}"}}')
    activity._cell_begins()
    activity._cell_ends()
    until(lambda: not ask_to_tidy(tmp_path), what="it listens for its own share alone")
    assert ask_to_tidy(other)
    activity._tidier.close()
    activity._file.close()
