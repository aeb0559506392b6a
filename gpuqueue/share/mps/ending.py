"""Ends a job's processes as MPS wants it: ``python -m gpuqueue.share.mps.ending DIRECTORY PID...``.

For whoever supervises a job and must not import all of this: the directory is that of this start of
the job, whose note says under which daemon it is. Each process is killed in any case; what went
otherwise is printed, a line each, and the exit code is then 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gpuqueue.errors import MpsError
from gpuqueue.model import ProcessId
from gpuqueue.run.files import MPS, read_json
from gpuqueue.run.process import identify
from gpuqueue.share.mps.clients import Ended, end
from gpuqueue.share.mps.control import Control, Limits
from gpuqueue.share.mps.place import Place

__all__ = ["end_job", "is_under_mps", "main"]


_HASTY = Limits(answer=3.0, lock=5.0)
"""Whoever waits for the program does so for less than these together and a client's."""


def is_under_mps(folder: Path) -> bool:
    """Whether this start of a job was put under MPS."""
    return (folder / MPS).exists()


def end_job(
    folder: Path, processes: Sequence[ProcessId], limits: Limits | None = None
) -> tuple[Ended, ...]:
    """End processes of a job that is under MPS.

    Raises
    ------
    MpsError
        It is not, so whoever asks ends them in the usual way.
    """
    note = read_json(folder / MPS)
    if not isinstance(note, dict):
        raise MpsError(f"{folder} is not under MPS.")
    place = Place(note["gpu"], Path(note["pipe"]).parent)
    return end(Control(place, limits=limits or Limits()), processes)


def main(words: Sequence[str]) -> int:
    """The program."""
    found = [process for word in words[1:] if (process := identify(int(word))) is not None]
    ended = end_job(Path(words[0]), found, _HASTY)
    said = [one.sentence for one in ended if one.sentence]
    for sentence in said:
        print(sentence)
    return 1 if said else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
