"""How much work a job does: each second, and for each hour of a whole GPU that it holds.

Device memory says little about how well a GPU is used; what a job gets done for what it holds does.
A job tells that by ``gpuqueue.checkpoint.log``: its step, and rates that it has measured itself,
under names such as ``samples_per_second``, ``tokens/s`` or ``throughput``. What it held is in the
usage records, so a resize counts from its moment on and a frozen job counts nothing.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpuqueue.client.books import compute_in, overlap
from gpuqueue.client.progress import notes
from gpuqueue.control.machine import CARDS
from gpuqueue.run.files import PROGRESS
from gpuqueue.store import Stay

if TYPE_CHECKING:
    from gpuqueue.client.local import LocalClient
    from gpuqueue.model import Job

__all__ = ["Rate", "rates", "rates_of", "throughput"]

_HOUR = 3600.0
_STEPS = "steps"
_RATE = re.compile(r"(?:.*[/_])?(?P<what>[^/_]+)(?:_per_(?:s|sec|second)|/s|/sec)|throughput")


@dataclass(frozen=True, slots=True)
class Rate:
    """How much of something a job does.

    Attributes
    ----------
    name
        What: ``steps``, or the word of the job's own metric, ``samples`` of ``samples_per_second``.
    per_second
        Of the time in which it was not frozen.
    per_gpu_hour
        For an hour of a whole GPU: at half of a GPU twice what it does in an hour. None for a job
        that holds no GPU.
    """

    name: str
    per_second: float
    per_gpu_hour: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Span:
    """A time of an attempt: how long it ran in it, and for how much of a GPU; in seconds."""

    ran: float
    compute: float

    def rate(self, name: str, done: float) -> Rate | None:
        if self.ran <= 0 or not math.isfinite(done):
            return None
        each = done * _HOUR / self.compute if self.compute > 0 else None
        return Rate(name, done / self.ran, each)


def rates(
    found: Sequence[Mapping[str, Any]],
    stays: Sequence[Stay],
    cards: Mapping[str, Mapping[str, Any]],
    now: float,
) -> list[Rate]:
    """What an attempt does, of its notes and its usage records; empty where it tells too little.

    Steps are counted from the first note that has one to the highest. A rate that the job has
    measured is averaged over time: each value is that of the time since the one before it.
    """

    def span(begin: float, end: float) -> _Span:
        ran: dict[str, float] = {}
        compute = 0.0
        for stay in stays:
            seconds = overlap(stay, begin, end)
            ran[stay.gpu] = ran.get(stay.gpu, 0.0) + (0.0 if stay.frozen else seconds)
            compute += compute_in(stay, seconds, cards.get(stay.gpu, {}))
        return _Span(max(ran.values(), default=end - begin), compute)

    told = [note for note in found if note["at"] <= now]
    steps = [(note["at"], note["step"]) for note in told if _is_number(note["step"])]
    made = []
    if steps:
        (begin, first), (end, last) = steps[0], max(steps, key=lambda each: (each[1], -each[0]))
        if last > first and (rate := span(begin, end).rate(_STEPS, last - first)):
            made.append(rate)
    for metric, name in _measured(told).items():
        values = [
            (note["at"], note["metrics"][metric])
            for note in told
            if _is_number(note["metrics"].get(metric))
        ]
        begin, end = told[0]["at"], values[-1][0]
        mean = _mean(values, begin)
        # one note alone has no time of its own: the size that it had just then is what counts
        over = span(begin, end) if end > begin else span(end - 1.0, end)
        if rate := over.rate(name, mean * over.ran):
            made.append(rate)
    return made


def _measured(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Metrics that are rates, with what they are rates of."""
    named: dict[str, str] = {}
    for note in found:
        for metric, value in note["metrics"].items():
            if metric not in named and _is_number(value) and (word := _RATE.fullmatch(metric)):
                named[metric] = word["what"] or metric
    words = list(named.values())
    # where two are of the same thing, as train_samples/s and eval_samples/s, each keeps its name
    return {
        metric: word if words.count(word) == 1 and word != _STEPS else metric
        for metric, word in named.items()
    }


def _mean(values: Sequence[tuple[float, float]], begin: float) -> float:
    times = [begin, *(at for at, _ in values)]
    weights = [max(0.0, after - before) for before, after in itertools.pairwise(times)]
    if not any(weights):
        weights = [1.0] * len(values)
    total = sum(weights)
    return sum(w * value for w, (_, value) in zip(weights, values, strict=True)) / total


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def throughput(client: LocalClient, job: Job, attempt: int | None = None) -> list[Rate]:
    """What a start of a job does or did: the latest, or that of a number."""
    number = attempt or max(1, job.attempt)
    return rates_of(client, job, notes(client.home.attempt(job.id, number) / PROGRESS))


def rates_of(client: LocalClient, job: Job, found: Sequence[Mapping[str, Any]]) -> list[Rate]:
    """The same of notes that were read already."""
    if not found:
        return []
    stays = client.store.stays(0.0, job=job.id)
    return rates(found, stays, client.store.fact(CARDS) or {}, time.time())
