"""Another share or memory for a job that waits or runs: ``resize``."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuqueue.client.local import LocalClient
from gpuqueue.client.request import Options, check_together
from gpuqueue.errors import InvalidRequest, NotAllowedNow
from gpuqueue.model import TERMINAL, IntentKind
from gpuqueue.units import format_bytes, format_share, parse_bytes, parse_share

__all__ = ["Resized", "resize"]

_EVENT = "resized"
_NAMES = {"compute": "share", "memory": "mem"}


@dataclass(frozen=True, slots=True)
class Resized:
    """What came of a resize.

    Attributes
    ----------
    job
        The job's number.
    share, memory
        What it has of each GPU now, in thousandths and in bytes, or asks for where it waits.
    applied
        From when that holds, for ``share`` and ``mem`` as far as they were changed: ``now``, ``at
        its next start``, or ``admitted only`` where it is counted and nothing holds the job to it.
    over
        Bytes by which it uses more of a GPU than it has now; nothing new is given to it where its
        memory is capped.
    problem
        Why what holds it could not be told of the new size; empty if it was.
    settled
        Whether it is done; else a controller will do it or refuse it.
    """

    job: int
    share: int | None
    memory: int | None
    applied: Mapping[str, str] = field(default_factory=dict)
    over: int = 0
    problem: str = ""
    settled: bool = True

    @property
    def message(self) -> str:
        """The same for people."""
        if not self.settled:
            return f"job {self.job}: it is noted, and done or refused as soon as a controller can"
        has = []
        if self.share:
            has.append(f"share {format_share(self.share)}{self._when('share')}")
        if self.memory:
            has.append(f"mem {format_bytes(self.memory)}{self._when('mem')}")
        words = f"job {self.job} has {', '.join(has)}"
        if self.over:
            words += f"; it uses {format_bytes(self.over)} more than that"
        return f"{words}; {self.problem}" if self.problem else words

    def _when(self, name: str) -> str:
        return f" ({self.applied[name]})" if name in self.applied else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.job, "share": self.share, "memory": self.memory,
            "applied": dict(self.applied), "over": self.over, "problem": self.problem,
            "settled": self.settled, "message": self.message,
        }  # fmt: skip

    def __repr__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.message)}</pre>"


def resize(
    client: LocalClient,
    job_id: int,
    *,
    share: str | float | None = None,
    mem: str | float | None = None,
) -> Resized:
    """Give a job another share of each of its GPUs, another memory, or both.

    Raises
    ------
    InvalidRequest
        Neither is given, one cannot be read, or the job has no share of a GPU.
    DoesNotFit
        This machine could never hold a job of that size.
    NotAllowedNow
        It has ended, or there is no room: the sentence says what is free. It keeps its size.
    """
    if share is None and mem is None:
        raise InvalidRequest("share", "write the share or the mem that the job is to have")
    thousandths = None if share is None else parse_share(share)
    memory = None if mem is None else parse_bytes(mem, "mem")
    job = client.job(job_id)
    if job.state in TERMINAL:
        raise NotAllowedNow(f"job {job_id} has already ended")
    was = job.wants
    wanted = replace(
        was,
        share=was.share if thousandths is None else thousandths,
        memory=was.memory if memory is None else memory,
    )
    check_together(wanted)
    client.check_fit(Options(wanted))
    since = client.store.last_event()
    wish = client.wish(IntentKind.RESIZE, {"share": thousandths, "memory": memory}, job_id)
    if wish.done is None:
        return Resized(job_id, wanted.share, wanted.memory, settled=False)
    for event in client.store.events(since, job_id=job_id):
        if event.kind == _EVENT and event.data.get("wish") == wish.id:
            told = event.data
            applied = {_NAMES[name]: word for name, word in told["applied"].items()}
            return Resized(
                job_id, told["share"], told["memory"], applied, told["over"], told["problem"]
            )
    return Resized(job_id, wanted.share, wanted.memory)
