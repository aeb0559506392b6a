"""The numbers of a replay, and its picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from gpuqueue.simulate.engine import Outcome
from gpuqueue.simulate.trace import TraceJob, load_of

__all__ = ["measure", "picture", "write_starts"]

_FLOOR = 10.0


def measure(jobs: Sequence[TraceJob], outcome: Outcome, gpus: int) -> dict[str, Any]:
    """Waiting, slowdown, use of the machine and promises; times in seconds.

    Bounded slowdown is ``max(1, (wait + run) / max(run, 10 s))``. Wide jobs take at least half of
    the GPUs. ``utilisation`` is work done between the first and the last submission over the
    capacity of that time. A promise is broken where a job started after the latest start that it
    was promised when it was first seen; what a preemptible job was told is none.
    """
    ran = [job for job in jobs if job.id in outcome.start]
    if not ran:
        return {"jobs": 0, "refused": len(outcome.refused)}
    start = dict(outcome.start)
    for job in ran:
        if job.id in outcome.evicted:
            start[job.id] = outcome.end[job.id] - max(1.0, job.run)
    wait = {job.id: start[job.id] - job.submit for job in ran}
    end = {job.id: start[job.id] + max(1.0, job.run) for job in ran}
    first, last = min(job.submit for job in ran), max(job.submit for job in ran)
    waits = sorted(wait.values())
    slowdowns = [max(1.0, (wait[job.id] + job.run) / max(job.run, _FLOOR)) for job in ran]
    wide = [wait[job.id] for job in ran if (job.request.gpus or 0) * 2 >= gpus]
    inside = sum(job.work * max(0.0, min(end[job.id], last) - start[job.id]) for job in ran)
    span = last - first
    bound = {job.id for job in ran if not job.request.preemptible}
    late = [outcome.start[key] - at for key, at in outcome.latest.items() if key in bound]
    loose = [wait[job.id] for job in ran if job.request.preemptible]
    firm = [wait[job.id] for job in ran if not job.request.preemptible]
    done = sum(job.work * max(1.0, job.run) for job in ran)
    return {
        "jobs": len(ran),
        "refused": len(outcome.refused),
        "wait_firm_mean_s": round(mean(firm), 1) if loose and firm else None,
        "wait_preemptible_mean_s": round(mean(loose), 1) if loose else None,
        "evictions": sum(outcome.evicted.values()) if loose else None,
        "lost_share": round(outcome.lost / (done + outcome.lost), 4) if loose and done else None,
        "load": round(load_of(jobs, gpus), 3),
        "wait_mean_s": round(mean(waits), 1),
        "wait_median_s": median(waits),
        "wait_p95_s": waits[max(0, -(-95 * len(waits) // 100) - 1)],
        "wait_max_s": waits[-1],
        "slowdown_mean": round(mean(slowdowns), 2),
        "wait_wide_mean_s": round(mean(wide), 1) if wide else None,
        "utilisation": round(inside / (gpus * span), 4) if gpus and span else None,
        "makespan_s": max(end.values()) - first,
        "promises": len(late),
        "promises_broken": sum(seconds > 0 for seconds in late),
        "longest_queue": max((length for _, length, _ in outcome.queue), default=0),
        "decisions": outcome.decisions,
        "ms_per_decision": round(1000 * outcome.seconds / max(1, outcome.decisions), 3),
    }


def write_starts(path: Path, outcome: Outcome) -> None:
    """Write what was decided as CSV: ``id,start,cards``, cards as ``0;3``."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "start", "cards"])
        for job, start in outcome.start.items():
            at = int(start) if start == int(start) else start
            rows.writerow([job, at, ";".join(map(str, outcome.gpus[job]))])


_WIDE, _HIGH, _MARGIN = 900, 150, 50


def picture(outcome: Outcome, gpus: int) -> str:
    """GPUs at work and jobs waiting over time, as an SVG image."""
    times = [at for at, _, _ in outcome.queue]
    waiting = [float(length) for _, length, _ in outcome.queue]
    working = [work for _, _, work in outcome.queue]
    height = 2 * (_HIGH + _MARGIN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE + 2 * _MARGIN}" '
        f'height="{height + 20}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _graph(times, working, float(gpus), 0, (f"GPUs at work (of {gpus})", "#4878a8")),
        _graph(times, waiting, max(waiting, default=1.0) or 1.0, 1, ("jobs waiting", "#c06030")),
        "</svg>",
    ]
    return "\n".join(parts)


def _graph(
    times: Sequence[float],
    values: Sequence[float],
    top: float,
    row: int,
    title_colour: tuple[str, str],
) -> str:
    title, colour = title_colour
    bottom = (row + 1) * (_HIGH + _MARGIN) - 10
    first, span = times[0], (times[-1] - times[0]) or 1.0
    # one point for each column of the picture: the mean over the time that falls into it
    columns = [0.0] * _WIDE
    for (at, after), value in zip(pairwise(times), values, strict=False):
        begin, end = (at - first) / span * _WIDE, (after - first) / span * _WIDE
        for column in range(int(begin), min(_WIDE - 1, int(end)) + 1):
            columns[column] += value * max(0.0, min(end, column + 1) - max(begin, column))
    points = [
        f"{_MARGIN + column},{bottom - min(1.0, value / top) * _HIGH:.1f}"
        for column, value in enumerate(columns)
    ]
    area = f"{_MARGIN},{bottom} {' '.join(points)} {_MARGIN + _WIDE - 1},{bottom}"
    return (
        f'<text x="{_MARGIN}" y="{bottom - _HIGH - 8}">{title}</text>'
        f'<polygon points="{area}" fill="{colour}"/>'
        f'<line x1="{_MARGIN}" y1="{bottom}" x2="{_MARGIN + _WIDE}" y2="{bottom}" stroke="black"/>'
        f'<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_MARGIN - 6}" y="{bottom - _HIGH + 10}" text-anchor="end">{top:g}</text>'
        f'<text x="{_MARGIN + _WIDE}" y="{bottom + 16}" text-anchor="end">'
        f"{span / 86400:.1f} days</text>"
    )
