"""Files that are looked after: every way in which one may change is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuqueue.run.watching import Watch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "m.py").write_text("1")
    os.link(folder / "m.py", tmp_path / "other.py")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (folder / "l.py").symlink_to(tmp_path / "other.py")
    return tmp_path


def _watched(path: Path) -> Watch:
    watch = Watch()
    watch.add([str(path)])
    if not watch.quiet():
        pytest.skip("nothing can be watched here")
    return watch


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda p: (p / "a/b/m.py").write_text("22"),
    "written by another name": lambda p: (p / "other.py").write_text("22"),
    "touched": lambda p: os.utime(p / "a/b/m.py", (5, 5)),
    "replaced": lambda p: (p / "new").write_text("") or (p / "new").replace(p / "a/b/m.py"),
    "removed": lambda p: (p / "a/b/m.py").unlink(),
    "moved": lambda p: (p / "a/b/m.py").rename(p / "a/b/n.py"),
    "its folder moved": lambda p: (p / "a/b").rename(p / "a/c"),
    "a folder above moved": lambda p: (p / "a").rename(p / "z"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_told_once(place: Path, change: Callable[[Path], object]) -> None:
    watch = _watched(place / "a" / "b" / "m.py")
    change(place)
    assert not watch.quiet()
    assert watch.quiet()


def test_links_on_the_way_are_looked_after(place: Path) -> None:
    watch = _watched(place / "link" / "b" / "l.py")
    (place / "other.py").write_text("22")
    assert not watch.quiet()
    (place / "link").unlink()
    assert not watch.quiet()
    (place / "a" / "b" / "l.py").unlink()
    assert not watch.quiet()


def test_what_happens_beside_it_is_not_told(place: Path) -> None:
    watch = _watched(place / "a" / "b" / "m.py")
    (place / "a" / "b" / "beside.py").write_text("")
    (place / "a" / "b" / "m.py").read_text()
    (place / "a" / "b" / "__pycache__").mkdir()
    assert watch.quiet()


def test_what_cannot_be_watched_is_never_quiet(place: Path) -> None:
    watch = _watched(place / "a" / "b" / "m.py")
    watch.add(["/proc/self/status"])
    assert not watch.quiet()
    assert not watch.quiet()
