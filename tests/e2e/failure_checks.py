"""What must hold after any kill, checked for each job against its audit and the list of kills."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from failure_choices import Make
from failure_processes import Killed

from gpuqueue.model import TERMINAL, Event, Job, JobState
from gpuqueue.paths import Home
from gpuqueue.run.files import read_claim
from gpuqueue.store import Store

__all__ = ["Audit", "Broken", "Evidence", "check_job", "check_store", "timeline"]

_ARROWS = {
    "": {"queued"},
    "queued": {"queued", "starting", "cancelled"},
    "starting": {"running", "queued", "cancelled"},
    "running": {"running", "evicting", "queued", "succeeded", "failed", "cancelled"},
    "evicting": {"evicting", "queued", "succeeded", "failed", "cancelled"},
}


class Broken(AssertionError):
    """An invariant that does not hold."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What the programs of one job wrote: (attempt, pid, number) of each kind of line."""

    begins: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[tuple[int, int, int]] = field(default_factory=list)
    saves: list[tuple[int, int, int]] = field(default_factory=list)
    clashes: list[tuple[int, int, int]] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> Mapping[str, Audit]:
        """Audits by token."""
        found: dict[str, Audit] = defaultdict(cls)
        for line in text.splitlines():
            word, token, attempt, pid, *more = line.split()
            audit = found[token]
            where = {
                "begin": audit.begins, "end": audit.ends, "saved": audit.saves,
                "clash": audit.clashes,
            }[word]  # fmt: skip
            number = int(more[0]) if more and more[0].isdigit() else 0
            where.append((int(attempt), int(pid), number))
        return found


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one job."""

    make: Make
    job: Job
    events: list[Event]
    audit: Audit
    parents: list[Job]
    cancelled: bool


def _must(holds: object, words: str) -> None:
    if not holds:
        raise Broken(words)


def check_job(seen: Evidence, home: Home, kills: Iterable[Killed]) -> None:
    """See that an ended job ended as it must.

    Raises
    ------
    Broken
        It did not.
    """
    by_pid = {killed.process.pid: killed for killed in kills}
    _check_runs(seen)
    _check_events(seen)
    _check_parents(seen)
    lost = _lost_attempts(seen, home, by_pid)
    _check_requeues(seen, lost)
    _check_end(seen, lost, by_pid)
    job = seen.job
    if job.started is not None and job.ended is not None:
        _must(job.submitted <= job.started + 1e-3, "it started before it was submitted")
        _must(job.started <= job.ended, "it ended before it started")


def _lost_attempts(seen: Evidence, home: Home, kills: Mapping[int, Killed]) -> set[int]:
    """Attempts whose runner we have killed."""
    found = set()
    for attempt in range(1, seen.job.attempt + 1):
        claim = read_claim(home.attempt(seen.job.id, attempt))
        if claim is not None and claim.pid in kills and kills[claim.pid].process == claim:
            found.add(attempt)
    return found


def _check_runs(seen: Evidence) -> None:
    attempts = [attempt for attempt, _, _ in seen.audit.begins]
    _must(len(attempts) == len(set(attempts)), "one attempt began twice")
    if not seen.make.restartable:
        _must(len(attempts) <= 1, "it ran twice, and is not restartable")
    _must(not seen.audit.clashes, "it was given a GPU that another still held")
    reached = 0
    for attempt, _, at in seen.audit.begins:
        if seen.make.kind == "resumable":
            earlier = [number for other, _, number in seen.audit.saves if other < attempt]
            reached = max([reached, *earlier])
            _must(at >= reached, f"it went on from {at}, and had saved {reached}")


def _check_events(seen: Evidence) -> None:
    state, kinds = "", [event.kind for event in seen.events]
    _must(kinds[:1] == ["submitted"], f"its first event is {kinds[:1]}")
    state = "queued"
    for before, event in zip(seen.events, seen.events[1:], strict=False):
        _must(event.seq > before.seq, "its events are out of order")
        if event.kind == "code":
            continue  # what was found out beside it, which may come late
        after = event.data.get("state", state)
        _must(after in _ARROWS.get(state, ()), f"it went from {state} to {after}")
        state = after
    _must(state == seen.job.state, f"its events end with {state}, it is {seen.job.state}")


def _check_parents(seen: Evidence) -> None:
    starts = [event.at for event in seen.events if event.kind == "starting"]
    for parent in seen.parents:
        if starts:
            _must(parent.state is JobState.SUCCEEDED, f"it started, and job {parent.id} failed")
            _must((parent.ended or 0) <= starts[0], f"it started before job {parent.id} had ended")


def _check_requeues(seen: Evidence, lost: set[int]) -> None:
    attempt, evicted = 0, False
    begun = {number for number, _, _ in seen.audit.begins}
    for event in seen.events:
        attempt += event.kind == "starting"
        evicted |= event.kind == "evicting"
        if event.kind != "requeued":
            continue
        reason = event.data.get("reason", "")
        if "lost" in reason:
            _must(attempt in lost, f"attempt {attempt} was put back as lost, and nobody killed it")
            _must(
                seen.make.restartable or attempt not in begun, "it was put back though it had begun"
            )
        elif "could not be started" in reason:  # made void for a cancel by a lead that was killed
            _must(attempt not in begun, "it began, and was put back as if it had not")
        else:
            _must(evicted, f"attempt {attempt} was put back without an eviction: {reason!r}")
        evicted = False


def _check_end(seen: Evidence, lost: set[int], kills: Mapping[int, Killed]) -> None:
    job, make, last = seen.job, seen.make, seen.job.attempt
    began = [pid for attempt, pid, _ in seen.audit.begins if attempt == last]
    ended = any(attempt == last for attempt, _, _ in seen.audit.ends)
    if job.state is JobState.CANCELLED:
        fallen = any(parent.state is not JobState.SUCCEEDED for parent in seen.parents)
        _must(seen.cancelled or fallen, f"nobody cancelled it: {job.reason}")
    elif job.state is JobState.SUCCEEDED:
        _must(job.returncode == 0, f"it succeeded with exit code {job.returncode}")
        _must(make.code == 0, f"it succeeded, and its program ends with {make.code}")
        _must(began and ended, "it succeeded, and its program did not come to its end")
    elif job.returncode is None:
        _must("lost" in job.reason, f"it failed without an exit code: {job.reason}")
        _must(last in lost, "it is called lost, and nobody killed its runner")
    elif not (job.returncode == make.code and began and ended):
        # of its processes one was killed: the program itself, before or after it began (until then
        # it looks like its runner), or what a cell runs in
        meanwhile = [
            killed
            for killed in kills.values()
            if killed.kind in ("payload", "spare", "runner")
            and (job.started or 0) - 0.1 <= killed.at <= (job.ended or 0) + 0.1
        ]
        _must(
            any(pid in kills for pid in began) or meanwhile,
            f"exit code {job.returncode} was recorded, its own is {make.code}: {job.reason}",
        )
        if make.kind != "cell":
            _must(job.returncode == -9, f"exit code {job.returncode} instead of {make.code}")


def check_store(home: Home) -> None:
    """See that the database is whole and that no GPU was ever promised beyond what it has."""
    with sqlite3.connect(home.database) as db:
        answer = db.execute("PRAGMA integrity_check").fetchone()
        _must(answer == ("ok",), f"the database is damaged: {answer}")
        keys = db.execute("SELECT key FROM jobs GROUP BY key HAVING count(*) > 1").fetchall()
        _must(not keys, f"several jobs for one key: {keys}")
        held = db.execute(
            "SELECT gpu, since, until, compute, memory, whole, job FROM placements"
        ).fetchall()
    db.close()
    store = Store(home.database)
    limits = {gpu["uuid"]: gpu["memory"] for gpu in store.fact("machine")["gpus"]}
    store.close()
    for gpu in {row[0] for row in held}:
        _sweep(gpu, [row[1:] for row in held if row[0] == gpu], limits[gpu])


def _sweep(gpu: str, held: list[tuple[float, float, int, int, int, int]], memory: int) -> None:
    """Go through the times at which a GPU changed hands; who leaves goes before who comes."""
    steps: list[tuple[float, int, tuple[int, int, int, int]]] = []
    for since, until, compute, size, whole, job in held:
        steps.append((since, 1, (compute, size, whole, job)))
        if until is not None:
            steps.append((until, 0, (compute, size, whole, job)))
    here: list[tuple[int, int, int, int]] = []
    for _, comes, grant in sorted(steps):
        if not comes:
            if grant in here:
                here.remove(grant)
            continue
        here.append(grant)
        jobs = [job for _, _, _, job in here]
        _must(sum(part[0] for part in here) <= 1000, f"{gpu}: compute beyond 1 for jobs {jobs}")
        _must(sum(part[1] for part in here) <= memory, f"{gpu}: memory beyond its own, {jobs}")
        _must(len(here) == 1 or not any(p[2] for p in here), f"{gpu}: beside a whole, {jobs}")


def timeline(seen: Evidence, kills: Iterable[Killed], home: Home) -> str:
    """What happened to one job, in order, with the kills around it."""
    start = seen.job.submitted - 1
    end = (seen.job.ended or time.time()) + 1
    lines = [
        (event.at, f"event {event.seq} {event.kind} {dict(event.data)}") for event in seen.events
    ]
    lines += [(k.at, f"killed {k.kind} {k.process.pid}") for k in kills if start <= k.at <= end]
    told = "\n".join(f"  {at - start:8.3f}  {words}" for at, words in sorted(lines))
    claims = {
        attempt: read_claim(home.attempt(seen.job.id, attempt))
        for attempt in range(1, seen.job.attempt + 1)
    }
    log = home.log.read_text(errors="replace")[-1500:] if home.log.exists() else ""
    return (
        f"{seen.make}\n{seen.job}\n{told}\n  {seen.audit}\n  parents "
        f"{[(p.id, str(p.state)) for p in seen.parents]}, cancelled {seen.cancelled}\n"
        f"  claims {claims}\n{log}"
    )


def ended(jobs: Iterable[Job]) -> bool:
    """Whether all have ended."""
    return all(job.state in TERMINAL for job in jobs)
