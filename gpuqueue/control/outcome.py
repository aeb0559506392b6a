"""How a started job ended, as told by the files its runner left."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.control.evicting import BROKEN, EVICT, FREE
from gpuqueue.model import Job, JobKind, JobState, ProcessId
from gpuqueue.run.farewell import FAULT, Farewell
from gpuqueue.run.files import (
    ASIDE,
    OUTCOME,
    VOID,
    has_heard,
    read_exit,
    read_json,
    read_payload,
    take_claim,
)
from gpuqueue.run.process import (
    alive,
    descendants,
    identify,
    is_elsewhere,
    marked,
    same_boot,
    send_signal,
    session_of,
)

__all__ = ["Outcome", "is_loss", "outcome_of", "signal_name", "sweep", "void"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to record about a job that ended.

    ``again`` puts it back into the queue, with ``aside`` at the head of its priority.
    """

    state: JobState
    returncode: int | None
    reason: str
    started: float | None = None
    ended: float | None = None
    again: bool = False
    aside: bool = False

    @classmethod
    def lost(cls, process: ProcessId, *, again: bool) -> Outcome:
        """The runner is gone and left no exit record."""
        why = _KILLED if same_boot(process) else _RESTARTED
        if is_elsewhere(process):
            why = _REMOVED
        return cls(JobState.FAILED, None, why, again=again)

    @classmethod
    def cancelled(cls, why: str) -> Outcome:
        """It was cancelled before it began."""
        return cls(JobState.CANCELLED, None, why)

    @classmethod
    def stepped_aside(cls, why: str) -> Outcome:
        """It made room, and goes on when it comes to it again."""
        return cls(JobState.FAILED, None, why, again=True, aside=True)

    @classmethod
    def again_because(cls, why: str) -> Outcome:
        """It did not begin and goes back into the queue."""
        return cls(JobState.FAILED, None, why, again=True)


_RESTARTED = "interrupted: the machine restarted while it ran"
_KILLED = "lost: its runner was killed, and the job with it"
_REMOVED = "lost: the container that it ran in has ended, or its runner there was killed"


def is_loss(reason: str) -> bool:
    """Whether a job was put back for what came from outside: its runner gone, a fault of MPS."""
    return reason in (_RESTARTED, _KILLED, _REMOVED) or FAULT in reason


def void(folder: Path) -> bool:
    """Claim an attempt that nobody has claimed, so that no runner ever can; whether it is void."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return take_claim(str(folder), VOID)
    except OSError:  # no room to say so
        return False


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def outcome_of(folder: Path, job: Job) -> Outcome | None:
    """The outcome that an attempt's exit record tells; None while there is no record."""
    record = read_exit(folder)
    if record is None:
        return None
    code = record.get("returncode")
    started, ended = record.get("started"), record.get("ended")
    if record.get("asked") == "cancel":
        if job.asked in _ASIDE:
            # whatever its exit code: a program may save its state and end well on SIGTERM
            return Outcome.stepped_aside(f"{_ASIDE[job.asked]}was stopped{_for_whom(job)}")
        return Outcome(JobState.CANCELLED, code, "cancelled while it ran", started, ended)
    if record.get("asked") == ASIDE and code != 0:
        return Outcome.stepped_aside(f"{_ASIDE.get(job.asked, '')}was stopped{_for_whom(job)}")
    if code == 0 and (record.get("asked") == ASIDE or has_heard(folder)):
        evicted = _ASIDE.get(job.asked, "")
        return Outcome.stepped_aside(f"{evicted}saved its state and stepped aside{_for_whom(job)}")
    if code == 0:
        return Outcome(JobState.SUCCEEDED, 0, "", started, ended)
    told = ""
    if job.kind is not JobKind.SCRIPT:
        told = (read_json(folder / OUTCOME) or {}).get("reason", "")
    interrupted = record.get("asked") == "interrupt"
    reason = record.get("reason") or told or _words(code)
    if fault := record.get("fault"):
        reason = f"{reason}; {fault}"
    state = JobState.CANCELLED if interrupted else JobState.FAILED
    return Outcome(state, code, f"interrupted: {reason}" if interrupted else reason, started, ended)


_ASIDE = {EVICT: "", FREE: "evicted: ", BROKEN: "evicted: "}


def _for_whom(job: Job) -> str:
    if job.asked == FREE:
        return " for free mode"
    if job.asked == BROKEN:
        return ", as its GPU memory could not be brought back"
    return " for a job of higher priority" if job.asked == EVICT else ", as it was asked"


def _words(code: int | None) -> str:
    if code is None:
        return "it could not be started"
    if code >= 0:
        return f"exit code {code}"
    words = f"ended by {signal_name(-code)} (signal {-code})"
    if -code == signal.SIGKILL:
        words += "; most often the machine was out of memory and the system ended it"
    return words


def sweep(folder: Path, patience: float = 0.3) -> bool:
    """End every process that still belongs to an attempt whose runner is gone.

    They are known by the attempt's directory in their environment and by the payload's session.
    Returns whether all are gone; call it again until they are, the GPUs are not free before.
    """
    deadline = time.monotonic() + patience
    while pids := _members(folder):
        farewell = _farewells.setdefault(folder, Farewell(str(folder)))
        if farewell.said([process.pid for process in pids]):
            for process in pids:
                send_signal(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    if over := _farewells.pop(folder, None):
        over.collect()
    return True


_farewells: dict[Path, Farewell] = {}
"""Of the attempts that are being swept."""


def _members(folder: Path) -> list[ProcessId]:
    found = {pid for pid in marked("GPUQUEUE_ATTEMPT_DIR", str(folder)) if pid != os.getpid()}
    payload = read_payload(folder)
    if payload is not None and alive(payload):
        # it may have overwritten its environment to show a title
        found |= {payload.pid, *session_of(payload.pid), *descendants(payload.pid)}
    return [process for pid in found if (process := identify(pid)) is not None and alive(process)]
