import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuqueue import paths
from gpuqueue.errors import StateDirectoryError
from gpuqueue.paths import file_system_type, find_home


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("GPUQUEUE_HOME", raising=False)
    paths._checked.clear()
    yield
    paths._checked.clear()


def test_the_default_is_per_host_and_private(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    home = find_home()
    assert home.root.is_relative_to(tmp_path)
    assert home.root.name == paths._host()
    assert home.root.stat().st_mode & 0o077 == 0


def test_a_home_that_others_could_read_is_made_private(tmp_path):
    tmp_path.chmod(0o755)
    assert find_home(tmp_path).root.stat().st_mode & 0o077 == 0


def test_a_network_file_system_is_refused_when_asked_for_and_passed_over_else(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(
        paths,
        "file_system_type",
        lambda path: "nfs4" if str(path).startswith(f"{tmp_path}/") else "ext4",
    )
    with pytest.raises(StateDirectoryError, match=r"nfs4.*GPUQUEUE_HOME"):
        find_home(tmp_path / "x")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-local"
    monkeypatch.setattr(paths, "_candidates", lambda: [tmp_path / "y", elsewhere])
    assert find_home().root == elsewhere


def test_mount_points_with_odd_names(tmp_path, monkeypatch):
    table = "disk / ext4 rw 0 0\nserver:/x /mnt/my\\040share nfs4 rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: table)
    assert file_system_type(Path("/mnt/my share/a")) == "nfs4"
    assert file_system_type(Path("/mnt/my shares")) == "ext4"


NO_LOCKS = """
#include <errno.h>
#include <fcntl.h>
int flock(int fd, int how) { errno = ENOLCK; return -1; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_place_without_locks_is_refused_with_a_way_out(tmp_path):
    source, library = tmp_path / "n.c", tmp_path / "n.so"
    source.write_text(NO_LOCKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import gpuqueue; gpuqueue.submit(['true'])"],
        env={**os.environ, "LD_PRELOAD": str(library), "GPUQUEUE_HOME": str(tmp_path / "h")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "does not allow file locks" in done.stderr
    assert "Set GPUQUEUE_HOME to" in done.stderr
