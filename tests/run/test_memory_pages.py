"""How a spare kernel keeps its memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

_PROGRAM = """
import ctypes, gc, os
from gpuqueue.run.memory import into_large_pages

kept = [str(i) * 10 for i in range(200_000)]
raw = bytearray(os.urandom(24 << 20))
copy = bytes(raw)
into_large_pages()
assert kept[777] == "777" * 10 and len(kept) == 200_000
assert raw == copy
child = os.fork()
if not child:
    raw[0] ^= 1
    os._exit(0 if raw[1:] == copy[1:] and raw != copy else 1)
assert os.waitpid(child, 0)[1] == 0
assert raw == copy  # what a fork writes is its own
print(open("/proc/self/smaps_rollup").read())
"""


def test_memory_in_large_pages_is_the_same_memory() -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    large = re.search(r"AnonHugePages: +(\d+) kB", done.stdout)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    offered = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if release < (6, 1) or not offered.exists() or "[never]" in offered.read_text():
        pytest.skip("this system has no such pages, or only for who asks otherwise")
    assert large is not None
    assert int(large[1]) > 8 << 10
