"""The files of a job's directory, and how they are written. Standard library only.

===================  ==========================================================================
``spec.json``        the payload and its surroundings as submitted (holds the environment: 0600)
``payload``          a pickled call, a cell's source and inputs, where the kind has one
``payload.N``        a large buffer of a cell's inputs, by itself; never written to again
``imports``          modules that a cell's notebook has imported, for its spare kernel
``<attempt>/``       one start of the job:
``  claim``          which runner has it: a symbolic link to nowhere, whose text says so
``  log``            bytes as the job wrote them; locked for as long as its runner lives
``  ask``            doorbell of the runner of a job that runs for longer than a moment
``  outputs.jsonl``  a cell's outputs, one JSON line each
``  result``         what the payload gave back
``  outcome.json``   what the payload told of itself: why it failed, how much device memory it used
``  result.N``       a large buffer of it, by itself; never written to again
``  exit.json``      made just before the payload starts, then names its process, then tells how
                     it ended; always written in place, in one piece
``  mps.json``       under which MPS daemon it is, where it has a share of a GPU's compute
``  stop``           made by a job that can save and step aside; two bytes: asked, heard
``  device.json``    made while its GPU memory is on the host, or on its way
``  progress.jsonl`` what ``checkpoint.log`` noted; older lines are in ``progress.old.jsonl``
``  saved``          how many seconds its last save took
``  run/``           a fresh directory for the job's own files (``GPUQUEUE_RUN_DIR``)
``checkpoints/``     the job's checkpoints, unless it was told another place; outlives attempts
===================  ==========================================================================
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from typing import Any

from gpuqueue.model import ProcessId

if sys.platform != "win32":  # where no containers share a directory
    import fcntl

__all__ = [
    "ASIDE",
    "ASK",
    "DEVICE",
    "EXIT",
    "LOG",
    "MPS",
    "OUTCOME",
    "OUTPUTS",
    "PROGRESS",
    "RESULT",
    "SAVED",
    "SPEC",
    "STOP",
    "TORN",
    "VOID",
    "ExitFile",
    "ask_no_more",
    "ask_to_stop",
    "has_begun",
    "has_heard",
    "hold",
    "is_held",
    "is_resumable",
    "is_settled",
    "read_claim",
    "read_exit",
    "read_json",
    "read_payload",
    "sync_folder",
    "take_claim",
    "write_json",
]

SPEC = "spec.json"
LOG = "log"
ASK = "ask"
ASIDE = "aside"
"""What a runner hears there, and records, when its program is to save and exit on SIGTERM."""
OUTPUTS = "outputs.jsonl"
RESULT = "result"
OUTCOME = "outcome.json"
EXIT = "exit.json"
MPS = "mps.json"
STOP = "stop"
DEVICE = "device.json"
PROGRESS = "progress.jsonl"
SAVED = "saved"
_CLAIM = "claim"
_EXIT_ROOM = 4096
_PIECE = 1 << 16

VOID = ProcessId(0, 0, "void")
"""Stands in an attempt's claim for "nobody may have this one"."""
TORN = ProcessId(0, 0, "torn")
"""Stands for a claim that cannot be read: a power cut took it."""


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file; None if there is no such file or it is not whole."""
    try:
        # an exit record is read for each job, and a file object costs as much as the rest
        handle = os.open(path, os.O_RDONLY)
        try:
            text = os.read(handle, _PIECE)
            while len(text) % _PIECE == 0 and (more := os.read(handle, _PIECE)):
                text += more
        finally:
            os.close(handle)
        return json.loads(text)
    except (OSError, ValueError):
        return None


def write_json(path: str | os.PathLike[str], value: Any, *, flush: bool = True) -> None:
    """Write a JSON file, private to the user, whole or not at all, and onto the disk if asked.

    Raises
    ------
    OSError
        There is no room, or no such folder; what was there before stays.
    """
    partial = f"{os.fspath(path)}.part"
    handle = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        rest = memoryview(json.dumps(value).encode())
        while rest:  # where room is short, less is written than was asked, and the next call fails
            rest = rest[os.write(handle, rest) :]
        if flush:
            os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    finally:
        os.close(handle)
    os.rename(partial, path)
    if flush:
        sync_folder(os.path.dirname(os.path.abspath(path)))


def sync_folder(path: str) -> None:
    """Make a rename in a folder lasting."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def take_claim(folder: str, mine: ProcessId) -> bool:
    """Take an attempt for a process; False if it is taken already.

    A symbolic link appears whole, for one taker only, and costs one call; browsers lock their
    profiles in the same way. Where there are none, a hard link to a file does it.

    Raises
    ------
    OSError
        There is no room, or no such folder.
    """
    path = os.path.join(folder, _CLAIM)
    try:
        os.symlink(f"{mine.pid} {mine.start} {mine.boot}", path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, None):
            raise
        return _link_claim(path, mine)
    return True


def _link_claim(path: str, mine: ProcessId) -> bool:
    partial = f"{path}-{os.getpid()}"
    handle = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.write(handle, f"{mine.pid} {mine.start} {mine.boot}".encode())
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        os.close(handle)
        os.unlink(partial)
    return True


def read_claim(folder: str | os.PathLike[str]) -> ProcessId | None:
    """Who has taken an attempt; ``VOID`` if nobody may, None if nobody has."""
    path = os.path.join(folder, _CLAIM)
    try:
        try:
            text = os.readlink(path)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            with open(path, encoding="utf-8") as file:
                text = file.read()
        pid, start, boot = text.split()
        return ProcessId(int(pid), int(start), boot)
    except ValueError:
        return TORN
    except OSError:
        return None


def hold(handle: int) -> None:
    """Lock an open log as the runner of its attempt; the kernel lets go when the process ends."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)


def is_held(folder: str | os.PathLike[str]) -> bool:
    """Whether a runner that has an attempt, or is about to take it, lives in any container."""
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(os.path.join(folder, LOG), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(handle)
    return False


class ExitFile:
    """The writing end of an attempt's exit record; making it says that the payload begins.

    A full disk must not hide how a job ended: the room is there from the first write on, and each
    record takes the place of the one before it. One that is read in the middle of a write is no
    valid JSON and so no record.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file = os.open(os.path.join(folder, EXIT), os.O_CREAT | os.O_WRONLY, 0o600)

    def _put(self, text: str) -> None:
        os.pwrite(self._file, text.encode().ljust(_EXIT_ROOM), 0)

    def name(self, payload: ProcessId | None) -> None:
        """Say which process the payload is, for when the runner is killed."""
        me = payload and {"pid": payload.pid, "start": payload.start, "boot": payload.boot}
        try:
            self._put(json.dumps({"payload": me}))
        except OSError:
            # a length says as much and takes no room, see is_settled
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, _EXIT_ROOM)

    def end(self, record: dict[str, Any], *, patient: bool = True) -> bool:
        """Write how it ended; whether it can be read now.

        Waits for room, if ``patient``, unless the folder is gone. It is not flushed: until
        somebody has recorded the end, and flushed that, it has not ended for anybody.
        """
        text = json.dumps(record)
        if len(text) > _EXIT_ROOM:
            text = json.dumps(record | {"reason": str(record.get("reason", ""))[:500]})
        while True:
            try:
                self._put(text)
            except OSError:
                if not patient or not os.path.isdir(self._folder):
                    return False
                time.sleep(1)
            else:
                return os.fstat(self._file).st_nlink > 0  # the job may have removed it

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read_exit(folder: str | os.PathLike[str]) -> Any:
    """How an attempt ended; None while there is no record of it."""
    record = read_json(os.path.join(folder, EXIT))
    return record if record and "ended" in record else None


def has_begun(folder: str | os.PathLike[str]) -> bool:
    """Whether an attempt's payload may have begun."""
    return os.path.exists(os.path.join(folder, EXIT))


def is_settled(folder: str | os.PathLike[str]) -> bool:
    """Whether an attempt's runner has named its payload: from then on it looks after no other."""
    try:
        return os.stat(os.path.join(folder, EXIT)).st_size > 0
    except OSError:
        return False


def read_payload(folder: str | os.PathLike[str]) -> ProcessId | None:
    """The payload's process, if the runner had time to name it and has not ended."""
    named = (read_json(os.path.join(folder, EXIT)) or {}).get("payload")
    return ProcessId(**named) if named else None


def is_resumable(folder: str | os.PathLike[str]) -> bool:
    """Whether an attempt has said that it can save and step aside (``gpuqueue.checkpoint``)."""
    return os.path.exists(os.path.join(folder, STOP))


def ask_to_stop(folder: str | os.PathLike[str]) -> bool:
    """Ask an attempt to save and exit; False if it is not resumable, or that cannot be written.

    The job may be asked any number of times. One that has ended takes no notice.
    """
    return _set_stop(folder, b"\1")


def ask_no_more(folder: str | os.PathLike[str]) -> bool:
    """Take the asking back; False where the job has heard of it, or cannot be asked at all."""
    if not is_resumable(folder) or has_heard(folder) or not _set_stop(folder, b"\0"):
        return False
    if has_heard(folder):  # just then: what it was told stays so
        _set_stop(folder, b"\1")
        return False
    return True


def _set_stop(folder: str | os.PathLike[str], value: bytes) -> bool:
    try:
        handle = os.open(os.path.join(folder, STOP), os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(handle, value)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def has_heard(folder: str | os.PathLike[str]) -> bool:
    """Whether the attempt knows that it is to stop; if it exits with 0, it has stepped aside."""
    try:
        with open(os.path.join(folder, STOP), "rb") as file:
            return file.read(2)[1:] == b"\1"
    except OSError:
        return False
