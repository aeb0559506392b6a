"""A workload replayed through ``gpuqueue.plan`` on a virtual clock.

Only two things happen: a job is submitted, a job ends. All that happens at one moment is taken in
first, ends before submissions, and then the scheduler is asked once, as the controller asks it.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuqueue.errors import GpuqueueError
from gpuqueue.model import Gpu, Job, JobKind, JobState, Origin, Placement
from gpuqueue.plan import (
    Card,
    Estimate,
    History,
    Policy,
    Snapshot,
    kind_of,
    likeness_of,
    never_fits,
    plan,
)
from gpuqueue.simulate.trace import TraceJob

__all__ = ["Estimates", "Outcome", "Replay", "replay"]

_HOUR = 3600.0
_DAY = 86_400.0


class Estimates(StrEnum):
    """What the scheduler believes of a job's run time."""

    EXACT = "exact"
    USER = "user"
    LEARNED = "learned"


@dataclass(slots=True)
class Outcome:
    """What was decided.

    ``start`` and ``gpus`` (indexes) are by job, ``latest`` are the promises by job, ``refused``
    the jobs that this machine can never run, with the reason. ``queue`` has (time, waiting jobs,
    GPUs' worth of work running) after each decision. ``start`` is a job's first; those in
    ``evicted`` were stopped so many times since, and ``end`` says when they had run in full.
    ``lost`` is the GPU seconds of work that they had to do again.
    """

    start: dict[int, float] = field(default_factory=dict)
    gpus: dict[int, tuple[int, ...]] = field(default_factory=dict)
    latest: dict[int, float] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    queue: list[tuple[float, int, float]] = field(default_factory=list)
    evicted: dict[int, int] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    lost: float = 0.0
    decisions: int = 0
    seconds: float = 0.0


def replay(
    jobs: Sequence[TraceJob],
    gpus: Sequence[Gpu],
    policy: Policy,
    estimates: Estimates = Estimates.EXACT,
    *,
    on_progress: Callable[[int], object] | None = None,
) -> Outcome:
    """Replay jobs, sorted by submission, on a machine that is empty at first.

    ``on_progress`` is called with the number of jobs that have been submitted.

    Raises
    ------
    GpuqueueError
        The scheduler left a job waiting on an empty machine.
    """
    run = Replay(jobs, gpus, policy, estimates)
    run.on_progress = on_progress
    return run.run()


class Replay:
    """One replay; ``run`` plays it."""

    def __init__(
        self, jobs: Sequence[TraceJob], gpus: Sequence[Gpu], policy: Policy, estimates: Estimates
    ) -> None:
        self.trace = jobs
        self.by_id = {job.id: job for job in jobs}
        # a job that ran has seen its parents succeed, also those that are not in this trace
        wanted = {parent for job in jobs for parent in job.request.after}
        self.parents = {
            parent: JobState.QUEUED if parent in self.by_id else JobState.SUCCEEDED
            for parent in wanted
        }
        self.kinds = {job.id: kind_of(job.owner, job.command, job.request) for job in jobs}
        self.cards = tuple(Card(gpu) for gpu in gpus)
        self.gpus = tuple(gpus)
        self.index = {gpu.uuid: gpu.index for gpu in gpus}
        self.policy = policy
        self.estimates = estimates
        self.waiting: dict[int, Job] = {}
        self.running: dict[int, Job] = {}
        self.ends: list[tuple[float, int, int]] = []
        self.left = {job.id: max(1.0, job.run) for job in jobs}
        self.front = 0
        self.guesses: dict[int, Estimate] = {}
        self.history = History()
        self.past: deque[tuple[float, float, TraceJob]] = deque()
        self.latest: dict[int, float] = {}
        self.out = Outcome()
        self.on_progress: Callable[[int], object] | None = None
        self.work = 0.0

    def run(self) -> Outcome:
        """Play all of it."""
        number, trace, ends = 0, self.trace, self.ends
        while number < len(trace) or ends:
            now = min(
                trace[number].submit if number < len(trace) else float("inf"),
                ends[0][0] if ends else float("inf"),
            )
            while ends and ends[0][0] <= now:
                _, job_id, attempt = heapq.heappop(ends)
                if job_id in self.running and self.running[job_id].attempt == attempt:
                    self._end(job_id, now)
            while number < len(trace) and trace[number].submit <= now:
                self._submit(trace[number], number)
                number += 1
            while self.waiting and self._decide(now):
                pass
            self.out.queue.append((now, len(self.waiting), self.work))
            if self.on_progress is not None:
                self.on_progress(number)
        if self.waiting:
            stuck = ", ".join(map(str, list(self.waiting)[:5]))
            raise GpuqueueError(f"nothing runs and these jobs never started: {stuck}")
        return self.out

    def _submit(self, job: TraceJob, number: int) -> None:
        request = job.request
        if self.estimates is Estimates.EXACT:
            request = replace(request, eta=max(1.0, job.run))
        elif self.estimates is Estimates.LEARNED:
            self._guess(job)
            request = replace(request, eta=None)
        if reason := never_fits(request, self.gpus, self.policy):
            self.out.refused[job.id] = reason
            self._over(job.id)  # those that come after it are played without it
            return
        self.waiting[job.id] = Job(
            id=job.id, kind=JobKind.SCRIPT, state=JobState.QUEUED, request=request, tag="",
            owner=job.owner, command=job.command, cwd="/", origin=Origin(),
            submitted=job.submit, position=number,
        )  # fmt: skip

    def _guess(self, job: TraceJob) -> None:
        """Believe what earlier runs teach, else the user, else what other work of theirs took."""
        request = job.request
        # where the log has no estimate of the user's, it repeats the run time: not to be read
        told = request.eta if request.eta is not None and request.eta != job.run else None
        like = likeness_of(job.owner, request) if told is None else None
        guess = self.history.estimate(self.kinds[job.id], like=like)
        self.guesses[job.id] = guess or Estimate(told or _HOUR, learned=True, sound=False)

    def _end(self, job_id: int, now: float) -> None:
        self._leave(job_id, now)
        self._over(job_id)
        job = self.by_id[job_id]
        self.out.end[job_id] = now
        self.guesses.pop(job_id, None)
        kind = self.kinds[job_id]
        self.history.add(kind, job.run, job.peak, like=likeness_of(job.owner, job.request))
        if self.estimates is Estimates.LEARNED:
            # those that wait are believed to take what is known by now
            for other in self.waiting:
                if self.kinds[other] == kind:
                    self._guess(self.by_id[other])

    def _over(self, job_id: int) -> None:
        """Let go those that come after a job."""
        if job_id in self.parents:
            self.parents[job_id] = JobState.SUCCEEDED

    def _leave(self, job_id: int, now: float) -> Job:
        job = self.running.pop(job_id)
        trace = self.by_id[job_id]
        if self.policy.fair_share:
            self.past.append((now, now if job.started is None else job.started, trace))
        self.work -= trace.work
        return job

    def _evict(self, job_id: int, now: float) -> None:
        """Stop a job at once; it goes to the front of its priority, with what it has saved."""
        job = self._leave(job_id, now)
        ran = now - (now if job.started is None else job.started)
        every = self.policy.checkpoint
        lost = ran % every if every else ran
        self.left[job_id] = max(1.0, self.left[job_id] - (ran - lost))
        self.out.lost += lost * self.by_id[job_id].work
        self.out.evicted[job_id] = self.out.evicted.get(job_id, 0) + 1
        self.front -= 1
        request = job.request
        if self.estimates is Estimates.EXACT:
            request = replace(request, eta=self.left[job_id])
        self.waiting[job_id] = replace(
            job, state=JobState.QUEUED, request=request, started=None, placement=None,
            position=self.front,
        )  # fmt: skip

    def _decide(self, now: float) -> bool:
        """Carry out a plan; whether there is another to be made at this moment."""
        snapshot = self._snapshot(now)
        began = time.process_time()
        decision = plan(snapshot, now)
        self.out.seconds += time.process_time() - began
        self.out.decisions += 1
        for promise in decision.promises:
            self.latest[promise.job] = self.out.latest[promise.job] = promise.latest
        for start in decision.starts:
            self._start(start.job, start.placement, now)
        for stop in decision.evictions:
            self._evict(stop.job, now)
        return bool(decision.evictions)

    def _snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            self.cards,
            tuple(self.waiting.values()),
            tuple(self.running.values()),
            self.policy,
            parents=self.parents,
            estimates=self.guesses,
            latest=self.latest,
            usage=self._usage(now) if self.policy.fair_share else {},
        )

    def _usage(self, now: float) -> dict[str, float]:
        """GPU seconds of each owner in the last 24 hours."""
        used: dict[str, float] = {}
        begin = now - _DAY
        while self.past and self.past[0][0] <= begin:
            self.past.popleft()
        for end, start, job in (
            *self.past,
            *((now, job.started or now, self.by_id[job.id]) for job in self.running.values()),
        ):
            seconds = max(0.0, end - max(start, begin))
            used[job.owner] = used.get(job.owner, 0.0) + job.work * seconds
        return used

    def _start(self, job_id: int, placement: Placement, now: float) -> None:
        job = self.waiting.pop(job_id)
        trace = self.by_id[job_id]
        self.latest.pop(job_id, None)
        self.running[job_id] = replace(
            job, state=JobState.RUNNING, started=now, placement=placement, attempt=job.attempt + 1
        )
        self.out.start.setdefault(job_id, now)
        self.out.gpus[job_id] = tuple(self.index[uuid] for uuid in placement.gpus)
        self.work += trace.work
        heapq.heappush(self.ends, (now + self.left[job_id], job_id, job.attempt + 1))
