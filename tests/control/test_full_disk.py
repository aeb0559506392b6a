"""The disk of the state directory is full: exit codes are kept, and all goes on once it is not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import clean_up, until

import gpuqueue
from gpuqueue import paths
from gpuqueue.client import LocalClient, default_client
from gpuqueue.errors import JobFailed, NoSpace, NotAllowedNow
from gpuqueue.model import JobState
from gpuqueue.paths import Home, find_home
from gpuqueue.run.files import read_exit

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a tmpfs"),
    pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root to make a disk"),
]

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A state directory on a disk of 16 MiB."""
    root = tmp_path / "small"
    root.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(root)]
    if subprocess.run(words, check=False).returncode != 0:
        pytest.skip("this root may not mount, as in many containers")
    monkeypatch.setenv("GPUQUEUE_HOME", str(root))
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "24G,24G")
    monkeypatch.delenv("GPUQUEUE_ATTEMPT_DIR", raising=False)
    paths._checked.clear()
    home = find_home()
    try:
        yield home
        (root / "fill").unlink(missing_ok=True)
        clean_up(home)
    finally:
        paths._checked.clear()
        default_client_of(home)
        subprocess.run(["umount", "-l", str(root)], check=True)


def default_client_of(home: Home) -> None:
    from gpuqueue.client import local

    if client := local._clients.pop((os.getpid(), str(home.root)), None):
        client.close()


def fill(home: Home, *, but: int = 0) -> None:
    """Leave ``but`` bytes."""
    with open(home.root / "fill", "ab", buffering=0) as file:
        size = MIB
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    if but:
        os.truncate(home.root / "fill", (home.root / "fill").stat().st_size - but)


def empty(home: Home) -> None:
    (home.root / "fill").unlink()


def waits_for(folder: Path, end: str) -> list[str]:
    return ["sh", "-c", f"until [ -e '{folder}/go' ]; do sleep 0.05; done; {end}"]


def test_a_running_job_keeps_its_exit_code_and_the_person_is_told(
    small: Home, tmp_path: Path
) -> None:
    job = gpuqueue.submit(waits_for(tmp_path, "echo done; exit 7"))
    until(lambda: job.state is JobState.RUNNING)
    fill(small)
    (tmp_path / "go").touch()
    until(lambda: read_exit(small.attempt(job.id, 1)), what="its end is written all the same")
    told = gpuqueue.status().warning
    assert str(small.root) in told
    assert "full" in told
    until(lambda: refused(), what="a submit is refused")
    assert not list(small.jobs.glob(".new*"))
    empty(small)
    assert job.wait(60) == 7
    assert "full" not in gpuqueue.status().warning
    assert gpuqueue.submit(["sh", "-c", "exit 3"]).wait(60) == 3
    assert until(lambda: not default_client().store.live())


def refused() -> bool:
    """Whether a submit is; the database may have room within its pages for a while."""
    try:
        gpuqueue.submit(["true"])
    except NoSpace as error:
        return "nothing was queued" in str(error)
    return False


def test_what_was_accepted_before_starts_once_after(small: Home, tmp_path: Path) -> None:
    small.config.write_text("gpus = [0]\n")
    first = gpuqueue.submit(waits_for(tmp_path, "exit 4"), gpus=1)
    until(lambda: first.state is JobState.RUNNING)
    jobs = [
        gpuqueue.submit(["sh", "-c", f"echo x >>'{tmp_path}/ran-{n}'; exit {n}"], gpus=1)
        for n in range(3)
    ]
    fill(small)
    (tmp_path / "go").touch()
    until(lambda: read_exit(small.attempt(first.id, 1)))
    deadline = time.monotonic() + 3
    until(lambda: time.monotonic() > deadline)  # some turns of a controller that has no room
    empty(small)
    assert first.wait(60) == 4
    for number, job in enumerate(jobs):
        assert job.wait(60) == number
        assert (tmp_path / f"ran-{number}").read_text() == "x\n"


def test_a_result_that_has_no_room_is_a_failure_that_says_so(small: Home, tmp_path: Path) -> None:
    def big(go: str) -> bytes:
        while not os.path.exists(go):
            time.sleep(0.05)
        return b"x" * (20 << 20)

    job = gpuqueue.submit(big, str(tmp_path / "go"))
    until(lambda: job.state is JobState.RUNNING)
    fill(small, but=2 * MIB)
    (tmp_path / "go").touch()
    assert job.wait(60) == 1
    assert job.state is JobState.FAILED
    assert "No space left" in job.reason
    assert str(small.attempt(job.id, 1)) in job.reason
    with pytest.raises((JobFailed, OSError)):
        job.result()


CHECKPOINTS = """
import os, sys, time
from gpuqueue import checkpoint
go, size = sys.argv[1:]
folder = checkpoint.checkpoint_dir()
with checkpoint.atomic_path(folder / "step1.pt") as path:
    path.write_bytes(b"1" * 1000)
print("saved", flush=True)
while not os.path.exists(go):
    time.sleep(0.05)
for step in range(3):
    checkpoint.log(step, loss=1.0)
try:
    with checkpoint.atomic_path(folder / "step2.pt") as path:
        path.write_bytes(b"2" * int(size))
except OSError as error:
    print("no room:", error.errno, flush=True)
found = checkpoint.latest_checkpoint(folder)
left = [name for name in os.listdir(folder) if name != "step1.pt"]
sys.exit(5 if found.name == "step1.pt" and not left else 6)
"""


def test_a_checkpoint_that_has_no_room_leaves_the_last_one(small: Home, tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(CHECKPOINTS)
    words = [sys.executable, str(program), str(tmp_path / "go"), str(20 << 20)]
    job = gpuqueue.submit(words)
    until(lambda: "saved" in job.logs())
    fill(small)
    (tmp_path / "go").touch()
    until(lambda: read_exit(small.attempt(job.id, 1)))
    empty(small)
    assert job.wait(60) == 5


def test_a_wish_that_has_no_room_is_refused_and_can_be_repeated(
    small: Home, tmp_path: Path
) -> None:
    job = gpuqueue.submit(waits_for(tmp_path, "true"))
    until(lambda: job.state is JobState.RUNNING)
    fill(small)

    def no_room() -> bool:
        try:
            job.cancel()
        except NoSpace:
            return True
        return job.done()

    until(no_room)
    empty(small)
    with contextlib.suppress(NotAllowedNow):  # one of those before has been heard
        job.cancel()
    job.wait(60)
    assert job.state is JobState.CANCELLED


def test_a_lead_starts_and_goes_on_where_there_is_no_room(small: Home, tmp_path: Path) -> None:
    from conftest import leads_of

    job = gpuqueue.submit(waits_for(tmp_path, "exit 9"))
    until(lambda: job.state is JobState.RUNNING)
    client = LocalClient(small)
    fill(small)
    for pid in leads_of(small):
        os.kill(pid, 9)
    (tmp_path / "go").touch()
    until(lambda: read_exit(small.attempt(job.id, 1)))
    empty(small)
    assert client.wait(job.id, 60).returncode == 9
    client.close()
