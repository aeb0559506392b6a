"""Whether a job that failed may be the victim of another: a fault ends all that share a server.

It is asked by whoever supervises the job, which must not import all of this: as a program that
prints a word where the server is in fault, and nothing where it is not or nobody can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuqueue.errors import MpsError
from gpuqueue.run.files import MPS, read_json
from gpuqueue.share.mps import daemon
from gpuqueue.share.mps.control import Control, Limits
from gpuqueue.share.mps.place import Place

__all__ = ["is_in_fault", "main"]

_HASTY = Limits(answer=1.5, lock=2.0)


def is_in_fault(folder: Path, limits: Limits = _HASTY) -> bool:
    """Whether the MPS server of a start of a job, known by its directory, is in fault now."""
    note = read_json(folder / MPS)
    if not isinstance(note, dict):
        return False
    place = Place(note["gpu"], Path(note["pipe"]).parent)
    try:
        if daemon.running(place) is None:
            return False
        with Control(place, limits=limits).session() as session:
            return any(session.faulty(server) for server in session.servers())
    except MpsError:
        return False


def main(words: Sequence[str]) -> int:
    """The program."""
    if is_in_fault(Path(words[0])):
        print("fault")
    return 0
