"""Where the MPS daemon of a GPU has its files: short, private, on a local disk.

The daemon makes UNIX sockets in its pipe directory, whose whole path must stay below 108 bytes, and
the state directory may be as long as it likes. So they are in ``/var/tmp``, in a folder of this
user's own, under a short name made of the GPU's UUID. Everything of this user that uses the GPU
finds the same daemon there, whichever state directory it has.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.errors import MpsError
from gpuqueue.paths import is_network

__all__ = ["LONGEST", "Place", "is_ours", "place_of"]

LONGEST = 75
"""Bytes of a pipe directory's path; what the daemon adds to it must fit into a socket's 107."""


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one GPU's daemon; ``gpu`` is its UUID.

    The lock and the notes stay when the pipe directory is made anew.
    """

    gpu: str
    root: Path

    @property
    def pipe(self) -> Path:
        """``CUDA_MPS_PIPE_DIRECTORY``."""
        return self.root / "pipe"

    @property
    def log(self) -> Path:
        """``CUDA_MPS_LOG_DIRECTORY``."""
        return self.root / "log"

    @property
    def lock(self) -> Path:
        """Held by whoever talks with the daemon, which serves one at a time."""
        return self.root / "lock"

    @property
    def note(self) -> Path:
        """Which process the daemon is."""
        return self.root / "daemon.json"

    @property
    def jobs(self) -> Path:
        """Which jobs are on it; see `gpuqueue.share.mps.book`."""
        return self.root / "jobs"


def _roots() -> list[Path]:
    user = os.geteuid()
    # /var/tmp is local, survives this user's logout, and is cleaned of what is old much later
    return [Path(f"/var/tmp/gpuqueue-{user}-mps"), Path(f"/tmp/gpuqueue-{user}-mps")]  # noqa: S108


def _wrong(folder: Path) -> str:
    """Why a folder cannot hold a daemon's files; empty if it can. Makes it."""
    if len(os.fsencode(folder)) > LONGEST - len("/0123456789ab/pipe"):
        return "is too long a path for the sockets of MPS"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        return f"cannot be made ({error.strerror or error})"
    if not stat.S_ISDIR(info.st_mode):
        return "is not a folder"
    if info.st_uid != os.geteuid():
        return f"belongs to another user (uid {info.st_uid})"
    if info.st_mode & 0o077:
        folder.chmod(0o700)  # it is ours, so nobody else has any business there
    if is_network(folder):
        return "is on a network file system"
    return ""


def place_of(gpu: str, root: Path | None = None) -> Place:
    """Where the daemon of a GPU has its files; the folder is there afterwards, with mode 0700.

    Parameters
    ----------
    gpu
        The GPU's UUID.
    root
        The folder for all of this user's daemons; None is the usual one.

    Raises
    ------
    MpsError
        No folder will do.
    """
    tried = []
    for base in _roots() if root is None else [root]:
        name = hashlib.sha256(gpu.encode()).hexdigest()[:12]
        why = _wrong(base) or _wrong_inside(base / name)
        if not why:
            return Place(gpu, base / name)
        tried.append(f"{base} {why}")
    raise MpsError(f"There is no place for the files of MPS: {'; '.join(tried)}.")


def _wrong_inside(folder: Path) -> str:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "log").mkdir(mode=0o700, exist_ok=True)
        (folder / "jobs").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return f"cannot be written ({error.strerror or error})"
    return ""


def is_ours(pipe: str, root: Path | None = None) -> bool:
    """Whether a pipe directory, as some environment names it, is of a daemon of gpuqueue's."""
    if not pipe:
        return False
    above = Path(os.path.normpath(pipe)).parents
    return any(base in above for base in (_roots() if root is None else [root]))
