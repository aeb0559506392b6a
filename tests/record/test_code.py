"""What is recorded of the code that a job ran."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import lead_process, until

import gpuqueue
from gpuqueue.cli.look import job_view
from gpuqueue.cli.text import show_text
from gpuqueue.client import LocalClient
from gpuqueue.paths import Home
from gpuqueue.record.facts import Code
from gpuqueue.record.git import ask_git, top_of
from gpuqueue.record.recorder import Recorder
from gpuqueue.record.versions import version_of, version_of_bytes, version_of_function
from gpuqueue.run.process import alive

SCRIPT = """
import gpuqueue.checkpoint as checkpoint
with checkpoint.atomic_path(checkpoint.checkpoint_dir() / "step1.pt") as path:
    path.write_text("weights")
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *who, "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one committed script, under an awkward name."""
    folder = tmp_path / "re po – ü"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def recorded(job: gpuqueue.Job) -> Code:
    assert job.wait(60) == 0, job.logs()
    return until(lambda: job.code, what="its code is recorded")


def test_a_job_in_a_changed_tree(tree: Path, home: Home, client: LocalClient) -> None:
    (tree / "train.py").write_text(SCRIPT + "# changed\n")
    job = gpuqueue.submit([sys.executable, "train.py"], cwd=tree, preset="cpu")
    code = recorded(job)
    assert code.commit == git(tree, "rev-parse", "HEAD")
    assert code.branch == git(tree, "rev-parse", "--abbrev-ref", "HEAD")
    assert code.dirty is True
    assert code.version == version_of_bytes((tree / "train.py").read_bytes())
    assert code.what == str(tree / "train.py")
    assert job.checkpoints == [job.directory / "checkpoints" / "step1.pt"]

    shown = job_view(client, job.record)
    assert shown["code"] == code.to_dict()
    assert shown["checkpoints"] == [str(job.checkpoints[0])]
    text = show_text(shown, time.time())
    assert f"{code.version} of " in text
    assert f"commit {code.commit[:12]} on main, with changes" in text
    assert "1, the last " in text


def test_clean_untracked_and_no_repository(tree: Path, home: Home, tmp_path: Path) -> None:
    def run(name: str, folder: Path) -> gpuqueue.Job:
        return gpuqueue.submit([sys.executable, name], cwd=folder, preset="cpu")

    clean = run("train.py", tree)
    code = recorded(clean)
    assert (code.dirty, code.note) == (False, "")
    (tree / "new.py").write_text("print()")
    assert recorded(run("train.py", tree)).dirty is False  # a file beside it is no change
    assert recorded(run("new.py", tree)).dirty is True  # but the commit does not have this script
    (tmp_path / "alone.py").write_text("print()")
    alone = recorded(run("alone.py", tmp_path))
    assert (alone.commit, alone.branch, alone.dirty) == (None, None, None)
    assert alone.version == version_of_bytes(b"print()")
    assert alone.note == "not in a git repository"


def test_each_attempt_tells_its_own(tree: Path, home: Home, client: LocalClient) -> None:
    job = gpuqueue.submit([sys.executable, "train.py"], cwd=tree, preset="cpu")
    first = recorded(job)
    (tree / "train.py").write_text("print(2)\n")
    again = recorded(job.retry())
    assert again.version != first.version
    assert recorded(job) == first


def test_it_can_be_turned_off(tree: Path, home: Home, client: LocalClient) -> None:
    home.config.write_text("record_code = false\n")
    first = gpuqueue.submit([sys.executable, "train.py"], cwd=tree, preset="cpu")
    first.wait(60)
    home.config.write_text("record_code = true\n")
    later: list[gpuqueue.Job] = []

    def taken_up() -> bool:  # with the controller's next look at the file
        later.append(gpuqueue.submit([sys.executable, "train.py"], cwd=tree, preset="cpu"))
        later[-1].wait(60)
        return any(job.code for job in later)

    until(taken_up)
    assert first.code is None


def test_a_controller_that_ends_has_recorded_what_it_started(
    tree: Path, home: Home, client: LocalClient
) -> None:
    job = gpuqueue.submit([sys.executable, "train.py"], cwd=tree, preset="cpu")
    until(lambda: job.record.attempt)
    lead = until(lambda: lead_process(home))
    os.kill(lead.pid, signal.SIGTERM)
    until(lambda: not alive(lead))
    assert job.code is not None
    assert job.code.commit


def test_a_function_and_a_command_line(home: Home) -> None:
    def add(x: int) -> int:
        return x + 1

    job = gpuqueue.submit(add, 1, preset="cpu")
    code = recorded(job)
    assert (code.version, code.what) == (version_of_function(add), "function")
    assert recorded(gpuqueue.submit(add, 2, preset="cpu")).version == code.version
    line = recorded(gpuqueue.submit("true", preset="cpu"))
    assert (line.version, line.what) == (None, "")


def spec(kind: str, **more: object) -> dict[str, object]:
    return {"kind": kind, **more}


def test_the_version_is_of_the_code_alone(tmp_path: Path) -> None:
    def version(cells: list[dict[str, object]]) -> str | None:
        (tmp_path / "payload").write_text(json.dumps({"cells": cells}))
        return version_of(spec("notebook"), str(tmp_path))[0]

    code = {"cell_type": "code", "source": "x = 1", "outputs": []}
    plain = version([code])
    assert version([{**code, "outputs": [{"text": "1"}]}]) == plain
    assert version([{**code, "source": ["x ", "= 1"]}]) == plain
    assert version([{"cell_type": "markdown", "source": "words"}, code]) == plain
    assert version([{**code, "source": "x = 2"}]) != plain
    cell, what, _ = version_of(spec("cell", source="y = 1"), "")
    assert (cell, what) == (version_of_bytes(b"y = 1"), "cell")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/usr/bin/python3", "-u", "-W", "error", "a.py", "b.py"], "a.py"),
        (["python", "-m", "a"], ""),
        (["python", "-c", "a.py"], ""),
        (["/bin/bash", "-x", "a.py"], "a.py"),
        (["/bin/sh", "-c", "python a.py"], ""),
        (["./a.py"], "./a.py"),
        (["/bin/ls", "a.py"], ""),
        (["torchrun", "--nproc", "2", "a.py"], "a.py"),
        (["python", "-m", "torch.distributed.run", "a.py"], "a.py"),
        (["/usr/bin/env", "X=1", "python", "a.py", "b.py"], "a.py"),
    ],
)
def test_which_script_a_command_runs(argv: list[str], name: str, tmp_path: Path) -> None:
    for script in ("a.py", "b.py"):
        (tmp_path / script).write_text(script)
    _, _, path = version_of(spec("script", argv=argv, cwd=str(tmp_path)), "")
    assert path == (os.path.join(tmp_path, name) if name else "")


def test_git_is_only_looked_at(tree: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    git(tree, "config", "core.fsmonitor", f"touch '{ran}'; false")
    os.utime(tree / "train.py", (1, 1))  # a status of git's own would note that in its index
    before = (tree / ".git" / "index").read_bytes()
    found = ask_git(str(tree))
    assert (found.dirty, found.problem) == (False, "")
    assert (tree / ".git" / "index").read_bytes() == before
    assert not ran.exists()


def test_odd_repositories(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert top_of(str(tree / "deep" / "er")) == str(tree)
    beside = tmp_path / "beside"
    git(tree, "worktree", "add", "-q", str(beside), "-b", "topic")
    assert top_of(str(beside)) == str(beside)
    assert ask_git(str(beside)).branch == "topic"
    git(tree, "checkout", "-q", "--detach")
    assert (ask_git(str(tree)).branch, ask_git(str(tree)).dirty) == (None, False)
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert ask_git(str(empty)).problem == "there is no commit yet"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ".git").write_text("gitdir: /nowhere\n")
    assert ask_git(str(broken)).problem.startswith("git: ")
    monkeypatch.setenv("PATH", "")
    assert ask_git(str(tree)).problem == "git is not installed"


def test_many_starts_ask_git_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "gpuqueue.record.recorder.ask_git", lambda top: asked.append(top) or ask_git(top)
    )
    recorder = Recorder()
    text = json.dumps(spec("script", argv=["python", "train.py"], cwd=str(tree)))
    for job in range(200):
        recorder.ask(job, "", text)
    found: dict[int, Code] = {}
    until(lambda: found.update(recorder.take()) or len(found) == 200)
    recorder.close()
    assert {code.dirty for code in found.values()} == {False}
    assert len(asked) <= 2


def test_a_script_that_is_gone_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.ask(1, "", json.dumps(spec("script", argv=["python", "gone.py"], cwd=str(tree))))
    recorder.ask(2, str(tree), None)
    found: dict[int, Code] = {}
    until(lambda: found.update(recorder.take()) or len(found) == 2)
    recorder.close()
    assert found[1].version is None
    assert found[1].commit
    assert found[2].note == "what was submitted is gone"
