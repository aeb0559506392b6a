"""Importing libraries ahead, and noticing when that no longer holds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuqueue.run import preload
from gpuqueue.run.preload import Preloaded, Unfit, packed, unpacked
from gpuqueue.run.watching import Watch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")


class Place:
    """A folder of installed libraries and one of the user's own."""

    def __init__(self, folder: Path) -> None:
        self.installed, self.own = folder / "installed", folder / "own"
        self.installed.mkdir()
        self.own.mkdir()

    def install(self, name: str, source: str) -> Path:
        return self._write(self.installed / f"{name}.py", source)

    def write(self, name: str, source: str) -> Path:
        return self._write(self.own / f"{name}.py", source)

    def _write(self, path: Path, source: str) -> Path:
        path.write_text(source)
        past = time.time() - 100  # what is as new as the import itself is not trusted
        os.utime(path, (past, past))
        return path

    def preloaded(self, *names: str) -> Preloaded:
        made = Preloaded(
            [str(self.own), str(self.installed), *sys.path], str(self.own / "none"), Watch()
        )
        made.add(list(names))
        return made


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path)
    real = preload._library_places()
    monkeypatch.setattr(
        preload, "_library_places", lambda: (os.path.join(made.installed, ""), *real)
    )
    before = set(sys.modules)
    yield made
    for name in set(sys.modules) - before:
        if name.startswith("preloaded_"):
            del sys.modules[name]


def test_names_travel() -> None:
    assert unpacked(packed(["numpy", "numpy.linalg"])) == ["numpy", "numpy.linalg"]
    assert unpacked(packed([])) == [""] or unpacked(packed([])) == []


def test_what_is_unchanged_is_fit(place: Place) -> None:
    place.install("preloaded_one", "K = 1")
    path = list(sys.path)
    made = place.preloaded("preloaded_one")
    made.check()
    assert sys.modules["preloaded_one"].K == 1
    assert sys.path == path


def test_a_changed_file_is_noticed(place: Place) -> None:
    file = place.install("preloaded_one", "K = 1")
    made = place.preloaded("preloaded_one")
    file.write_text("K = 22")
    with pytest.raises(Unfit, match="has changed"):
        made.check()
    file.unlink()
    with pytest.raises(Unfit, match="is gone"):
        made.check()


def test_a_file_that_changes_meanwhile_is_noticed(place: Place) -> None:
    place.install("preloaded_one", "K = 1").touch()
    os.utime(place.installed / "preloaded_one.py", (time.time() + 5, time.time() + 5))
    with pytest.raises(Unfit, match="as it was imported"):
        place.preloaded("preloaded_one")


def test_a_module_of_the_users_that_comes_before_it_is_noticed(place: Place) -> None:
    place.install("preloaded_one", "K = 1")
    made = place.preloaded("preloaded_one")
    place.write("preloaded_two", "K = 2")
    made.check()
    (place.own / "preloaded_one").mkdir()  # such a folder comes after a module
    made.check()
    (place.own / "preloaded_one" / "__init__.py").touch()
    with pytest.raises(Unfit, match="comes before"):
        made.check()


def test_nothing_of_the_users_own_is_brought_in(place: Place) -> None:
    place.write("preloaded_own", "K = 3")
    place.install("preloaded_one", "import preloaded_own")
    with pytest.raises(Unfit, match=r"preloaded_own is the user's own"):
        place.preloaded("preloaded_one")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit", "SystemExit"),
        ("import tempfile\nfolder = tempfile.mkdtemp()", "makes .* as it is imported"),
        ("import tempfile\nh, path = tempfile.mkstemp()", "makes .* as it is imported"),
    ],
)
def test_a_library_that_cannot_be_shared(
    place: Place, source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    place.install("preloaded_one", source)
    with pytest.raises(Unfit, match=words):
        place.preloaded("preloaded_one")


def test_a_library_that_opens_a_gpu(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    device = place.own / "nvidiactl"
    device.touch()
    monkeypatch.setattr(preload, "_ACCELERATORS", (str(device),))
    place.install("preloaded_one", f"file = open({str(device)!r})")
    with pytest.raises(Unfit, match="opens"):
        place.preloaded("preloaded_one")
    sys.modules["preloaded_one"].file.close()


def test_what_the_notebook_no_longer_has(place: Place) -> None:
    place.install("preloaded_one", "K = 1")
    place.install("preloaded_two", "K = 2")
    made = place.preloaded("preloaded_one")
    made.add(["preloaded_one", "preloaded_two"])
    with pytest.raises(Unfit, match="no longer"):
        made.add(["preloaded_two"])
