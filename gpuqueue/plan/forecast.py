"""When waiting jobs are expected to start: the same rules, played forward in time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

from gpuqueue.model import Job, JobState
from gpuqueue.plan.board import Board, end_if_started
from gpuqueue.plan.passes import Shapes, run_pass
from gpuqueue.plan.types import Snapshot

__all__ = ["forecast"]


def forecast(snapshot: Snapshot, now: float, queue: Sequence[Job]) -> dict[int, float]:
    """Expected starts of the queued jobs, by id, in seconds since the epoch.

    Every job is taken to end as expected and to succeed; one that has outrun its estimate is
    taken to end at once; one of unknown run time never ends. What is used outside the queue stays
    as it is. A job without an entry starts only after something that nobody can foresee.

    Parameters
    ----------
    queue
        The jobs to look at, in queue order; jobs behind them cannot matter.
    """
    board = Board(snapshot, now)
    shapes = Shapes.of(snapshot)
    done = {job for job, state in snapshot.parents.items() if state is JobState.SUCCEEDED}
    ends = [(max(now, r.end), r.job) for r in board.residents.values() if r.end < inf]
    heapify(ends)
    starts: dict[int, float] = {}
    left = list(queue)
    at = now
    while left:
        ready = [job for job in left if done.issuperset(job.request.after)]
        begun = run_pass(board, ready, shapes, partial(end_if_started, snapshot, at)).starts
        for job, _ in begun:
            starts[job.id] = at
            if board.residents[job.id].end < inf:
                heappush(ends, (board.residents[job.id].end, job.id))
        if begun:
            left = [job for job in left if job.id not in starts]
        if not ends:
            break
        at = ends[0][0]
        while ends and ends[0][0] <= at:
            _, ended = heappop(ends)
            board.release(ended)
            done.add(ended)
    return starts
