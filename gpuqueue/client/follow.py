"""Reading what a job wrote, from the beginning, as it comes."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.client.local import LocalClient
from gpuqueue.model import TERMINAL

__all__ = ["follow_file", "follow_log", "tail", "tail_from"]

_CHUNK = 1 << 16
_QUICK, _SLOW = 0.02, 0.25


def follow_file(client: LocalClient, job_id: int, name: str, *, start: int = 0) -> Iterator[bytes]:
    """Chunks of a file in the job's attempt, as it grows, until the job has ended.

    The first ``start`` bytes of the present attempt's file are passed over.

    If the job is put back into the queue and starts again, the new attempt's file follows.
    Yields ``b""`` now and then while nothing comes, so that the caller can look elsewhere.
    """
    attempt, pause = client.job(job_id).attempt, _QUICK
    offset = start
    path: Path | None = client.home.attempt(job_id, attempt) / name if attempt else None
    with client.watch() as watch:
        while True:
            job = client.job(job_id)
            if job.attempt != attempt:
                attempt, offset = job.attempt, 0
                path = client.home.attempt(job_id, attempt) / name
            data = _read(path, offset) if path is not None else b""
            if data:
                offset += len(data)
                pause = _QUICK
                yield data
                continue
            if job.state in TERMINAL:
                return
            yield b""
            watch.wait(pause if attempt else 1.0)
            pause = min(pause * 1.5, _SLOW)


def _read(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(_CHUNK)
    except FileNotFoundError:
        return b""


def follow_log(client: LocalClient, job_id: int, *, start: int = 0) -> Iterator[str]:
    """The log as text, as it comes, until the job has ended. Bytes that are not UTF-8 show as �."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for data in follow_file(client, job_id, "log", start=start):
        if text := decoder.decode(data):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def tail(path: Path, lines: int | None) -> str:
    """The last lines of a log, or all of it; empty where there is none yet."""
    if lines is None:
        try:
            return path.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return ""
    return tail_from(path, lines)[0]


def tail_from(path: Path, lines: int) -> tuple[str, int]:
    """The last lines of a log, and the offset in bytes at which they end."""
    try:
        with open(path, "rb") as file:
            data, start = b"", file.seek(0, os.SEEK_END)
            end = start
            # one more newline than lines, for the one that ends the last line
            while start > 0 and data.count(b"\n") <= lines:
                step = min(_CHUNK, start)
                start -= step
                file.seek(start)
                data = file.read(step) + data
    except FileNotFoundError:
        return "", 0
    kept = data.splitlines(keepends=True)[-lines:] if lines > 0 else []
    return b"".join(kept).decode(errors="replace"), end
