"""Notebooks for a replay: kernels that hold shares for all of it, and compute now and then.

Cells are drawn: how long one computes, and how long nobody runs one after it, both log-normal, as
people's pauses are short mostly and now and then very long. The mean gap follows from the part of
the time in which a notebook is to be busy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from random import Random

from gpuqueue.errors import InvalidRequest
from gpuqueue.model import Gpu, Job, JobKind, JobState, Loan, Origin, Placement, Request
from gpuqueue.plan import Card, Policy, Snapshot, plan, refusal
from gpuqueue.units import parse_bytes, parse_share

__all__ = ["Habits", "kernels_of"]

_SPEC = re.compile(r"(?P<count>\d{1,4})x(?P<share>[\d./%]+)(?::(?P<memory>[\d.]+\s*[a-zA-Z]*))?")
_FIRST = -1
"""Notebooks have numbers below zero, so that those of the trace stay as they are."""
_OFTEN, _SPREAD = 10.0, 1.5
"""Seconds that half of all cells compute at the most, and the spread (sigma) of its logarithm."""
_PAUSES = 2.0
"""The spread of the logarithm of the gaps between cells."""


class Habits:
    """How long cells are, and the gaps between them, in seconds.

    Parameters
    ----------
    busy
        The part of the time in which a notebook computes, above 0 and below 1.
    seed
        The same seed draws the same.
    """

    def __init__(self, busy: float, seed: int) -> None:
        if not 0 < busy < 1:
            raise InvalidRequest("busy", f"{busy} is not between 0 and 1")
        self._random = Random(seed)  # noqa: S311 - nothing here is a secret
        mean = _OFTEN * exp(_SPREAD**2 / 2)
        gap = mean * (1 - busy) / busy
        self._gap = log(gap) - _PAUSES**2 / 2

    def cell(self) -> float:
        """How long the next cell computes."""
        return max(0.1, self._random.lognormvariate(log(_OFTEN), _SPREAD))

    def gap(self) -> float:
        """How long nothing is run after it."""
        return max(0.1, self._random.lognormvariate(self._gap, _PAUSES))


def kernels_of(spec: str, gpus: Sequence[Gpu], policy: Policy) -> list[Job]:
    """The kernels of ``16x0.25`` or ``16x0.25:10G``, as the scheduler lets them in one by one.

    Without a memory they are given half of the GPUs' between them.

    Raises
    ------
    InvalidRequest
        It is no such text, or there is no room for so many.
    """
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise InvalidRequest("notebooks", f"{spec!r} is not such as 16x0.25 or 16x0.25:10G")
    share = parse_share(match["share"], "notebooks")
    sizes = [gpu.memory for gpu in gpus if gpu.memory is not None]
    memory = min(sizes, default=0) * share // (2 * policy.overcommit)
    if match["memory"]:
        memory = parse_bytes(match["memory"], "notebooks")
    cards = tuple(Card(gpu) for gpu in gpus)
    made: list[Job] = []
    for number in range(int(match["count"])):
        job = Job(
            id=_FIRST - number, kind=JobKind.KERNEL, state=JobState.QUEUED,
            request=Request(gpus=1, share=share, memory=memory), tag=f"n{number}.ipynb", owner="",
            command="", cwd="/", origin=Origin(), submitted=0.0, position=number,
        )  # fmt: skip
        found = plan(Snapshot(cards, (job,), tuple(made), policy), 0.0)
        if not found.starts:
            why = refusal(found, job).splitlines()[0]
            raise InvalidRequest("notebooks", f"{number} of them fit. {why}")
        made.append(_begun(job, found.starts[0].placement, borrows=found.starts[0].borrows))
    return made


def _begun(job: Job, placement: Placement, *, borrows: bool) -> Job:
    away = tuple((grant.gpu, grant.compute) for grant in placement.grants)
    loan = Loan(borrows=True, away=away) if borrows else None
    return replace(job, state=JobState.RUNNING, placement=placement, started=0.0, loan=loan)
