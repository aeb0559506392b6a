"""Stopping and continuing process trees, whatever they do to get away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import until

from gpuqueue.model import ProcessId
from gpuqueue.run.freezing import are_frozen, freeze, thaw
from gpuqueue.run.process import descendants, identify, process_table

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# A subreaper like a runner; below it a program, its child, a daemon that has forked twice into a
# session of its own, and one that forks all the time. Each that lasts counts in a file of its own.
FAMILY = r"""
import os, subprocess, sys, time
from gpuqueue.run.process import adopt_orphans

def count(name):
    number = 0
    while True:
        number += 1
        with open(name + ".new", "w") as file:
            file.write(str(number))
        os.rename(name + ".new", name)
        time.sleep(0.001)

def fork(work, *args):
    if os.fork() == 0:
        os.setsid()
        work(*args)
        os._exit(0)

def program():
    fork(fork, count, "daemon")
    if os.fork() == 0:
        count("child")
    if os.fork() == 0:
        while True:
            if os.fork() == 0:
                time.sleep(0.002)
                os._exit(0)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
    count("program")

adopt_orphans()
fork(program)
while True:
    os.wait()
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[ProcessId, Path]]:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    runner = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path)
    found = identify(runner.pid)
    assert found is not None
    until(lambda: all((tmp_path / name).exists() for name in ("daemon", "child", "program")))
    yield found, tmp_path
    for _ in range(3):
        for pid in (*descendants(runner.pid), runner.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    runner.wait()


def counts(folder: Path) -> list[int]:
    return [int((folder / name).read_text()) for name in ("daemon", "child", "program")]


def states(runner: ProcessId) -> set[str]:
    table = process_table() or {}
    return {table[pid].state for pid in descendants(runner.pid) if pid in table}


def test_all_of_a_tree_stands_still_and_goes_on(family: tuple[ProcessId, Path]) -> None:
    runner, folder = family
    for _ in range(5):
        assert freeze([runner])
        assert are_frozen([runner])
        before, members = counts(folder), set(descendants(runner.pid))
        assert states(runner) == {"T"}
        assert len(members) >= 4
        time.sleep(0.05)  # nothing may happen in it: there is nothing to wait for
        assert counts(folder) == before
        assert set(descendants(runner.pid)) == members
        assert (process_table() or {})[runner.pid].state not in "Tt"
        thaw([runner])
        until(lambda then=before: all(a > b for a, b in zip(counts(folder), then, strict=True)))
        assert not are_frozen([runner])


def test_a_stranger_with_its_number_is_left_alone(family: tuple[ProcessId, Path]) -> None:
    runner, folder = family
    for other in (replace(runner, start=runner.start - 1), replace(runner, boot="another")):
        assert freeze([other])
        assert "T" not in states(runner)
        before = counts(folder)
        until(lambda then=before: all(a > b for a, b in zip(counts(folder), then, strict=True)))


def test_a_shell_with_job_control_does_not_notice(tmp_path: Path) -> None:
    # an interactive shell that saw its child stop would say "Stopped" and go on
    (tmp_path / "line.sh").write_text("sh waits.sh; echo over > over; sleep 600; true\n")
    (tmp_path / "waits.sh").write_text("touch up; until test -e go; do sleep 0.02; done\n")
    code = "import pty; pty.spawn(['bash', '--norc', '-i', 'line.sh'])"
    shell = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    found = identify(shell.pid)
    assert found is not None
    try:
        until((tmp_path / "up").exists)
        assert freeze([found])
        (tmp_path / "go").touch()
        thaw([found])
        until(lambda: [_name(pid) for pid in descendants(shell.pid)] == ["bash", "sleep"])
        assert (tmp_path / "over").exists()
        assert not are_frozen([found])
    finally:
        for pid in (*descendants(shell.pid), shell.pid):
            os.kill(pid, signal.SIGKILL)
        shell.wait()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
