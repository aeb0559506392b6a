"""The files of a job's directory where there is little room."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuqueue.run.files import read_json, write_json

# a limit on a file's size cuts a write short as a disk does that is nearly full
_NEARLY_FULL = """
import resource, signal, sys
from gpuqueue.run.files import write_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    write_json(sys.argv[1], {"env": "x" * 20000}, flush=False)
except OSError:
    sys.exit(3)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on a file's size")
def test_what_has_no_room_as_a_whole_leaves_what_was_there(tmp_path):
    path = tmp_path / "spec.json"
    write_json(path, {"a": 1})
    assert (
        subprocess.run([sys.executable, "-c", _NEARLY_FULL, str(path)], check=False).returncode == 3
    )
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
