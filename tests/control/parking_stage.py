"""A machine on which GPU memory can be moved to the host, and jobs that hold some."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import until
from stub_checkpoint import Stub

from gpuqueue.client import default_client
from gpuqueue.control.proving import PROOF
from gpuqueue.run.process import descendants

__all__ = ["holds", "is_proven", "library", "stub"]

SOURCE = Path(__file__).parent.parent / "run" / "fake_device_state.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    words = ["cc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(SOURCE)]
    subprocess.run(words, check=True)
    return folder


@pytest.fixture
def stub(home, tmp_path, library, monkeypatch):
    """A machine on which it works, once that has been tried."""
    made = Stub(tmp_path / "stub")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(made.procs))
    return made


def is_proven():
    fact = default_client().store.fact(PROOF)
    assert fact is None or fact["proof"]["problem"] == "", fact
    return fact


def holds(job, stub, size=6 * 1024, gpu=0):
    """The job's program has so many MiB of a GPU, and the queue knows; its pid."""
    until(is_proven)
    stub.procs.write_text("")  # what it was tried with has ended
    (pid,) = descendants(job.record.process.pid)
    stub.hold(pid, gpu, size)
    until(lambda: (default_client().machine().used or {}).get(job.id))
    return pid
