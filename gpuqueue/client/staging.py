"""The files of jobs to be, written whole before any lock is taken."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuqueue.client.payload import Payload
from gpuqueue.errors import NoSpace
from gpuqueue.paths import Home
from gpuqueue.run.files import SPEC, sync_folder

__all__ = ["place", "staged"]

_numbers = itertools.count()

_SOON = 64 << 20
"""Bytes from which on a payload may be flushed later, if it asks for that."""


@contextlib.contextmanager
def staged(
    home: Home, payloads: Sequence[Payload], specs: Sequence[str]
) -> Iterator[list[Path | None]]:
    """Write the job directories under names of their own, before any lock is taken.

    A payload without files needs none: its spec goes into the store.
    """
    folders: list[Path | None] = []
    try:
        for payload, spec in zip(payloads, specs, strict=True):
            if not payload.files:
                folders.append(None)
                continue
            name = f".new-{os.getpid()}-{threading.get_ident()}-{next(_numbers)}"
            folder = home.jobs / name
            folder.mkdir(mode=0o700)
            folders.append(folder)
            for file_name, content in payload.files.items():
                _write(folder / file_name, content, flush=payload.flush or _size(content) < _SOON)
            _store_large(folder, payload)
            _write(folder / SPEC, spec.encode(), flush=False)
            sync_folder(str(folder))
        yield folders
        if any(folders):
            sync_folder(str(home.jobs))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and not isinstance(error, NoSpace):
            raise NoSpace(
                errno.ENOSPC,
                f"no space left on the disk of {home.root}; nothing was queued. Free "
                "some space and submit again, or set GPUQUEUE_HOME to another disk.",
            ) from error
        raise
    finally:
        for folder in filter(None, folders):
            if folder.exists():
                shutil.rmtree(folder, ignore_errors=True)


def place(home: Home, folder: Path | None, job_id: int) -> None:
    """Give what was staged its name: the directory of that job."""
    target = home.job(job_id)
    if os.path.lexists(target):
        # left by a submit that was cut off, or by a database that is gone: not ours to delete
        target.rename(target.with_name(f"{target.name}.left-{time.time_ns()}"))
    if folder is not None:
        folder.rename(target)


def _size(content: bytes | Sequence[Any]) -> int:
    pieces = [content] if isinstance(content, bytes) else list[Any](content)
    return sum(memoryview(piece).nbytes for piece in pieces)


def _write(path: Path, content: bytes | Sequence[Any], *, flush: bool) -> None:
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb") as file:
        for piece in [content] if isinstance(content, bytes) else list[Any](content):
            file.write(piece)
        if flush:
            file.flush()
            os.fsync(handle)


def _store_large(folder: Path, payload: Payload) -> None:
    flush = payload.flush or sum(large.size for large in payload.large.values()) < _SOON
    for name, large in payload.large.items():
        large.store(str(folder / name), flush=flush)
