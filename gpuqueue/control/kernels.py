"""Notebook kernels that hold a share of a GPU: from their grant to their end.

A kernel has no runner. Its owner speaks through the files of ``run/kernelshare.py``; what is
here sees to it that a share is given back whatever becomes of the owner, and never before the
kernel's process has gone.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gpuqueue.control.outcome import Outcome, void
from gpuqueue.control.turn import Turn, unfrozen
from gpuqueue.model import Job, JobKind, JobState, ProcessId
from gpuqueue.paths import Home
from gpuqueue.plan import Plan, refusal
from gpuqueue.run.farewell import Farewell
from gpuqueue.run.files import TORN, VOID, read_claim
from gpuqueue.run.kernelshare import (
    has_let_go,
    is_busy,
    is_coming_up,
    is_released,
    is_restarting,
    lives,
    own_share,
    process_in,
    read_grant,
    read_kernel,
    write_grant,
)
from gpuqueue.run.process import (
    descendants,
    environment_of,
    identify,
    is_elsewhere,
    process_table,
    send_signal,
)
from gpuqueue.settings import SettingsFile
from gpuqueue.store import Store, plain

__all__ = ["KernelFollower", "give_grant", "idles", "refuse_kernels"]

_UNTAKEN = 60.0
"""Seconds after which a grant that nobody has taken is void; an owner waits for ten at most."""
_REVIVAL = 15.0
"""Seconds in which an owner that lives may start a kernel that has died again."""
_COMING_UP = 10.0
"""Seconds in which a kernel that has been started again is not taken for busy."""
_OF_JOBS = frozenset(
    {
        "GPUQUEUE_JOB_ID", "GPUQUEUE_ATTEMPT_DIR", "GPUQUEUE_RUN_DIR", "GPUQUEUE_RESUME",
        "PYTHONUNBUFFERED",
    }
)  # fmt: skip
"""What a job is told and a kernel is not: it is no job, and what it submits is no part of one."""


def give_grant(folder: Path, job: Job, env: dict[str, str]) -> None:
    """Say what a kernel starts with."""
    variables = {name: value for name, value in env.items() if name not in _OF_JOBS}
    write_grant(folder, {"env": variables, "placement": plain(job.placement)})


def refuse_kernels(turn: Turn, decision: Plan) -> bool:
    """End the kernels that a plan does not start: they start now or not at all; whether any were.

    The plan was made with them in the queue, so the rest of it should be looked at once more.
    """
    starting = {start.job for start in decision.starts}
    refused = [
        job
        for job in turn.jobs.values()
        if job.kind is JobKind.KERNEL and job.state is JobState.QUEUED and job.id not in starting
    ]
    for job in refused:
        turn.move(
            job, "ended", state=JobState.CANCELLED, ended=turn.now, reason=refusal(decision, job)
        )
    return bool(refused)


def idles(home: Home, job: Job) -> bool:
    """Whether a job is a notebook's kernel in which no cell runs.

    One that starts again is let come up, whether or not it will tell.
    """
    if job.kind is not JobKind.KERNEL:
        return False
    folder = home.attempt(job.id, job.attempt)
    return not is_busy(folder) or is_coming_up(folder, job.started, _COMING_UP)


class Grants(Protocol):
    """What makes grants: the controller's ``Starter``."""

    def press(self, turn: Turn, job: Job) -> None:
        """Once more, where nothing has come of it."""
        ...

    def again(self, turn: Turn, job: Job) -> None:
        """Anew, where the job has another size now."""
        ...


class KernelFollower:
    """Takes in what owners have left. What it remembers is only since when it has waited.

    Parameters
    ----------
    starter
        Makes ready what an owner waits for.
    end
        Records that an attempt has ended.
    """

    def __init__(
        self,
        home: Home,
        store: Store,
        settings: SettingsFile,
        starter: Grants,
        end: Callable[[Turn, Job, Outcome], None],
    ) -> None:
        self._home = home
        self._store = store
        self._settings = settings
        self._starter = starter
        self._end = end
        self._since: dict[tuple[int, str], float] = {}
        self._farewells: dict[int, Farewell] = {}
        self._leaving: list[Farewell] = []

    def follow(self, turn: Turn, job: Job, *, look: bool) -> bool:
        """See how far a kernel is; whether anything changed for the plan."""
        folder = self._home.attempt(job.id, job.attempt)
        self._leaving = [each for each in self._leaving if not each.said(())]  # none stays a zombie
        if job.state is JobState.STARTING:
            owner = read_claim(folder)
            if owner is None:
                return self._await_owner(turn, job, folder, look=look)
            if owner in (VOID, TORN):
                return self._over(turn, job, _cancelled("it was given up before its kernel began"))
            kernel = read_kernel(folder)
            if kernel is None:
                return self._await_kernel(turn, job, folder, owner, look=look)
            job = turn.move(job, "started", state=JobState.RUNNING, process=kernel,
                            started=turn.now)  # fmt: skip
        return self._look_at(turn, job, folder, look=look)

    # -- before it runs ----------------------------------------------------------------------

    def _await_owner(self, turn: Turn, job: Job, folder: Path, *, look: bool) -> bool:
        """Nobody has taken the grant yet."""
        if read_grant(folder) is None:
            self._starter.press(turn, job)
        if not look:
            return False
        owner = self._asker(job)
        gone = owner is not None and not lives(folder, owner)
        if (gone or self._waited(job, "owner") > _UNTAKEN) and void(folder):
            why = "who asked for it has gone" if gone else "nobody came for it"
            return self._over(turn, job, _cancelled(why))
        return False

    def _await_kernel(
        self, turn: Turn, job: Job, folder: Path, owner: ProcessId, *, look: bool
    ) -> bool:
        """Its owner is starting the kernel, or could not, or was killed in the middle of it."""
        released = is_released(folder)
        there = lives(folder, owner)
        if not released and (not look or (there and not has_let_go(folder))):
            return False
        if released and released["detached"]:
            return self._over(turn, job, _ended())
        if _unnamed(job.id, folder):
            return False  # the kernel was started, and notices itself that its owner has gone
        gave_up = released or there
        why = "its kernel could not be started" if gave_up else "its server ended as it started"
        return self._over(turn, job, _failed(why))

    def _asker(self, job: Job) -> ProcessId | None:
        text = self._store.spec(job.id)
        spec: Any = json.loads(text) if text else None
        return process_in(spec.get("owner")) if isinstance(spec, dict) else None

    # -- while it runs -----------------------------------------------------------------------

    def _look_at(self, turn: Turn, job: Job, folder: Path, *, look: bool) -> bool:
        named = read_kernel(folder)
        if named is not None and named != job.process:
            # what free mode has frozen went with the process before; this one may be idle
            thawed: dict[str, Any] = {}
            if job.state is JobState.FROZEN:
                thawed = {"state": JobState.RUNNING, "reason": "", **unfrozen(job, turn.now)}
            job = turn.move(job, "restarted", process=named, **thawed)
            self._forget(job)
        released = is_released(folder)
        if released and released["detached"]:
            return self._over(turn, job, _ended())
        restarting = is_restarting(folder)
        if not (look or released or restarting) or job.process is None:
            return False
        if lives(folder, job.process):
            self._forget(job, "revival")
            if (
                job.asked == "cancel"
                and self._waited(job, "end") > self._settings.current.grace
                and self._may_kill(job.id, job.process, folder)
            ):
                _kill(job.process)
            return False
        if job.asked == "cancel":
            return self._over(turn, job, _cancelled("cancelled; its kernel was ended"))
        if released:
            outcome = _failed("its kernel died") if released["died"] else _ended()
            return self._over(turn, job, outcome)
        owner = read_claim(folder)
        there = owner is not None and owner != job.process and lives(folder, owner)
        revivable = there and not has_let_go(folder)
        if revivable and restarting:
            self._renew(turn, job, folder)
        if revivable and (restarting or self._waited(job, "revival") <= _REVIVAL):
            return False
        return self._over(turn, job, _failed("its kernel died" if there else _ABANDONED))

    def _may_kill(self, job: int, kernel: ProcessId, folder: Path) -> bool:
        """Whether what comes before the kill of a kernel under MPS is done; begins it."""
        if is_elsewhere(kernel):
            return True  # its number is somebody else's here
        if job not in self._farewells:
            self._farewells[job] = Farewell(str(folder))
        return self._farewells[job].said([kernel.pid, *descendants(kernel.pid)])

    def _renew(self, turn: Turn, job: Job, folder: Path) -> None:
        """Grant anew what a kernel that is about to start again has got since it started."""
        grant = read_grant(folder)
        if grant is None or grant["placement"] != plain(job.placement):
            self._starter.again(turn, job)
            turn.notes.append((job.id, "granted", {}))  # whoever waits for it looks again

    def _over(self, turn: Turn, job: Job, outcome: Outcome) -> bool:
        self._forget(job)
        self._end(turn, job, outcome)
        return True

    def _waited(self, job: Job, what: str) -> float:
        now = time.monotonic()
        return now - self._since.setdefault((job.id, what), now)

    def _forget(self, job: Job, *whats: str) -> None:
        for what in whats or ("owner", "revival", "end"):
            self._since.pop((job.id, what), None)
        if not whats and job.id in self._farewells:
            self._leaving.append(self._farewells.pop(job.id))


_ABANDONED = "its kernel is gone, and so is the process that looked after it"


def _ended() -> Outcome:
    return Outcome(JobState.SUCCEEDED, None, "")


def _failed(why: str) -> Outcome:
    return Outcome(JobState.FAILED, None, why)


def _cancelled(why: str) -> Outcome:
    return Outcome.cancelled(why)


def _kill(kernel: ProcessId) -> None:
    """End a kernel that does not end when asked, and what it has started.

    Not one of another container: its number means somebody else here.
    """
    if is_elsewhere(kernel):
        return
    below = [identify(pid) for pid in descendants(kernel.pid)]
    for process in (kernel, *filter(None, below)):
        send_signal(process, signal.SIGKILL)


def _unnamed(job: int, folder: Path) -> bool:
    """Whether a kernel lives that was started for a share and never named."""
    for pid, seen in (process_table() or {}).items():
        if seen.state in "ZX":
            continue
        told = own_share(environment_of(pid))
        if told.get("job") == job and told.get("folder") == str(folder):
            return True
    return False
