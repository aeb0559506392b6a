"""The files of a job's directory, and how they are written. Standard library only.

===================  ==========================================================================
``spec.json``        the payload and its surroundings as submitted (holds the environment: 0600)
``payload``          a pickled call, a cell's source and inputs, where the kind has one
``imports``          modules that a cell's notebook has imported, for its spare kernel
``<attempt>/``       one start of the job:
``  claim``          which runner has it; made by a hard link, so that only one can
``  begun``          made empty just before the payload starts; then names its process
``  log``            bytes as the job wrote them
``  outputs.jsonl``  a cell's outputs, one JSON line each
``  result``         what the payload gave back
``  exit.json``      how it ended; blank until it has, then written in place in one piece
``  run/``           a fresh directory for the job's own files (``GPUQUEUE_RUN_DIR``)
===================  ==========================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

__all__ = [
    "BEGUN",
    "CLAIM",
    "EXIT",
    "LOG",
    "OUTPUTS",
    "RESULT",
    "SPEC",
    "read_json",
    "reserve_exit",
    "sync_folder",
    "write_exit",
    "write_json",
]

SPEC = "spec.json"
CLAIM = "claim"
BEGUN = "begun"
LOG = "log"
OUTPUTS = "outputs.jsonl"
RESULT = "result"
EXIT = "exit.json"
_EXIT_ROOM = 4096


_flush = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file; None if there is no such file or it is not whole."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def write_json(path: str | os.PathLike[str], value: Any, *, flush: bool = True) -> None:
    """Write a JSON file, private to the user, whole or not at all, and onto the disk if asked."""
    partial = f"{os.fspath(path)}.part"
    handle = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.write(handle, json.dumps(value).encode())
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


def reserve_exit(folder: str) -> None:
    """Set aside room for the exit record while there is some.

    A full disk must not hide how a job ended. A blank file reads as "no record yet".
    """
    handle = os.open(os.path.join(folder, EXIT), os.O_CREAT | os.O_WRONLY, 0o600)
    with contextlib.suppress(OSError):
        os.write(handle, b" " * _EXIT_ROOM)
    os.close(handle)


def write_exit(folder: str, record: dict[str, Any], *, patient: bool = True) -> None:
    """Write the exit record into its room, in one piece, and onto the disk.

    In place rather than by a rename: the room is there, one flush of data is enough, and what is
    read in the middle of the write is no valid JSON and so no record. Waits for room if there is
    none, if ``patient``; gives up when the folder is gone.
    """
    text = json.dumps(record).encode()
    if len(text) > _EXIT_ROOM:
        text = json.dumps(record | {"reason": str(record.get("reason", ""))[:500]}).encode()
    while True:
        try:
            handle = os.open(os.path.join(folder, EXIT), os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.pwrite(handle, text.ljust(_EXIT_ROOM), 0)
                _flush(handle)
            finally:
                os.close(handle)
        except OSError:
            if not patient or not os.path.isdir(folder):
                return
            time.sleep(1)
        else:
            return
