"""Where state lives: per user and per host, and never on a network file system.

SQLite's write-ahead log needs shared memory between the processes that use it, and the lead's
lock needs locks that work; network file systems break both, often silently
(https://www.sqlite.org/wal.html, section 8).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.errors import StateDirectoryError

__all__ = ["Home", "file_system_type", "find_home", "is_network"]

_NETWORK = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "coda",
        "gfs",
        "gfs2",
        "ocfs2",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "9p",
        "glusterfs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "pvfs2",
        "orangefs",
        "afpfs",
        "webdav",
        "panfs",
        "wekafs",
    ]
)


@dataclass(frozen=True, slots=True)
class Home:
    """One state directory and the names in it."""

    root: Path

    @property
    def database(self) -> Path:
        """The store's SQLite file."""
        return self.root / "state.db"

    @property
    def jobs(self) -> Path:
        """The folder of job directories."""
        return self.root / "jobs"

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.root / "config.toml"

    @property
    def lock(self) -> Path:
        """Held by the lead for as long as it leads."""
        return self.root / "lead.lock"

    @property
    def wake(self) -> Path:
        """Named pipe that wakes the controller."""
        return self.root / "wake"

    @property
    def watchers(self) -> Path:
        """Folder of named pipes that the controller pokes when something changed."""
        return self.root / "watch"

    @property
    def log(self) -> Path:
        """What controllers that run in the background print."""
        return self.root / "controller.log"

    def job(self, job_id: int) -> Path:
        """Directory of one job."""
        return self.root / f"jobs/{job_id}"

    def attempt(self, job_id: int, attempt: int) -> Path:
        """Directory of one start of a job; attempts count from 1."""
        return self.root / f"jobs/{job_id}/{attempt}"


def file_system_type(path: Path) -> str:
    """Type of the file system that holds ``path``, in lower case; empty where unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        # a later line mounts over an earlier one at the same point
        if inside and len(point) >= len(best):
            best, kind = point, fields[2].lower()
    return kind


def is_network(path: Path) -> bool:
    """Whether a path is on a network file system, where no lock and no socket can be trusted."""
    return file_system_type(path) in _NETWORK


def _usable(root: Path) -> str:
    """Why ``root`` cannot hold state; empty if it can. Creates it."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        return f"cannot be created ({error.strerror or error})"
    kind = file_system_type(root)
    if kind in _NETWORK:
        return f"is on a network file system ({kind}), where locks and the database are not safe"
    if os.name == "posix":
        info = root.stat()
        if info.st_uid != os.geteuid():
            return "belongs to another user"
        if stat.S_IMODE(info.st_mode) & 0o077:
            # never lock others out of a directory that is not ours alone
            if not all(entry.name.startswith(_OURS) for entry in root.iterdir()):
                return f"is open to others and holds other files; use {root / 'gpuqueue'}"
            root.chmod(0o700)
    return _lockable(root)


_OURS = (
    "state.db",
    "jobs",
    "config.toml",
    "wake",
    "watch",
    "lead.lock",
    "controller.log",
    "memcap",
    "starting",
)


def _lockable(root: Path) -> str:
    if sys.platform == "win32":
        return ""
    import fcntl

    probe = None
    try:
        probe = os.open(root / f".probe-{os.getpid()}", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (28, 122):  # ENOSPC, EDQUOT: a full disk is told where it matters
            return ""
        return f"does not allow file locks ({error.strerror or error})"
    finally:
        if probe is not None:
            os.close(probe)
            (root / f".probe-{os.getpid()}").unlink(missing_ok=True)
    return ""


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname()) or "localhost"


def _candidates() -> list[Path]:
    import platformdirs

    found = []
    with contextlib.suppress(RuntimeError, KeyError):  # no HOME at all
        state = platformdirs.user_state_dir("gpuqueue", appauthor=False)
        found.append(Path(os.path.realpath(state)) / _host())
    if os.name == "posix":
        # /var/tmp is local and survives a reboot
        found.append(Path("/var/tmp") / f"gpuqueue-{os.geteuid()}" / _host())  # noqa: S108
    else:
        found.append(Path(tempfile.gettempdir()) / "gpuqueue" / _host())
    return found


_checked: dict[str, Home] = {}


def find_home(root: str | os.PathLike[str] | None = None) -> Home:
    """The state directory: ``root``, else ``GPUQUEUE_HOME``, else the user's own for this host.

    A default place on a network file system, or where locks do not work, is passed over for
    ``/var/tmp``. The directory is created with mode 0700.

    Raises
    ------
    StateDirectoryError
        The directory asked for cannot hold state, or no default can.
    """
    asked = os.fspath(root) if root else os.environ.get("GPUQUEUE_HOME", "")
    key = asked or "default"
    if key in _checked and _checked[key].root.is_dir():
        return _checked[key]
    if asked:
        # one spelling for one directory: processes are known by it
        path = Path(os.path.realpath(Path(asked).expanduser()))
        if why := _usable(path):
            raise StateDirectoryError(
                f"GPUQUEUE_HOME: {path} {why}. Set GPUQUEUE_HOME to a directory of your own on a "
                f"local disk, for example /var/tmp/gpuqueue-{os.environ.get('USER', 'me')}."
            )
        _checked[key] = Home(path)
        return _checked[key]
    tried = []
    for path in _candidates():
        why = _usable(path)
        if not why:
            _checked[key] = Home(path)
            return _checked[key]
        tried.append(f"{path} {why}")
    raise StateDirectoryError(
        "no place for gpuqueue's state: " + "; ".join(tried) + ". Set GPUQUEUE_HOME to a "
        "directory of your own on a local disk."
    )
