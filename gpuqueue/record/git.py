"""What git says of a folder, without touching it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

__all__ = ["Tree", "ask_git", "is_tracked", "top_of"]

_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Tree:
    """A repository's state. ``problem`` is why nothing is known of it."""

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    problem: str = ""


def top_of(folder: str) -> str:
    """The folder with the ``.git`` above or at a folder; empty if there is none."""
    folder = os.path.abspath(folder)
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above


def ask_git(top: str) -> Tree:
    """The commit and branch of a repository, and whether a tracked file differs."""
    words = ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = _git(top, *words)
    except FileNotFoundError:
        return Tree(problem="git is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Tree(problem=f"git did not answer ({type(error).__name__})")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason"]
        return Tree(problem=f"git: {said[0]}")
    lines = done.stdout.decode(errors="replace").splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    commit, branch = heads.get("branch.oid"), heads.get("branch.head")
    return Tree(
        commit=None if commit == "(initial)" else commit,
        branch=None if branch == "(detached)" else branch,
        dirty=any(not line.startswith("# ") for line in lines),
        problem="there is no commit yet" if commit == "(initial)" else "",
    )


def is_tracked(top: str, path: str) -> bool:
    """Whether git knows a file. True where it cannot tell."""
    try:
        return _git(top, "ls-files", "--error-unmatch", "--", path).returncode != 1
    except (OSError, subprocess.TimeoutExpired):
        return True


def _git(top: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        # a look must neither refresh the index, nor start what a repository names as its monitor
        ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", top, *words],
        env=env | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT,
        check=False,
    )
