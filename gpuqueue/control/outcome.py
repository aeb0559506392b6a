"""How a started job ended, as told by the files its runner left."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.model import Job, JobKind, JobState, ProcessId
from gpuqueue.run.files import CLAIM, EXIT, read_json
from gpuqueue.run.process import boot_id, marked

__all__ = ["Outcome", "outcome_of", "signal_name", "sweep", "void"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to record about a job that ended; ``again`` puts it back into the queue."""

    state: JobState
    returncode: int | None
    reason: str
    started: float | None = None
    ended: float | None = None
    again: bool = False

    @classmethod
    def lost(cls, process: ProcessId, *, again: bool) -> Outcome:
        """The runner is gone and left no exit record."""
        if process.boot != boot_id():
            why = "interrupted: the machine restarted while it ran"
        else:
            why = "lost: its runner was killed, and the job with it"
        return cls(JobState.FAILED, None, why, again=again)

    @classmethod
    def again_because(cls, why: str) -> Outcome:
        """It did not begin and goes back into the queue."""
        return cls(JobState.FAILED, None, why, again=True)


def void(folder: Path) -> bool:
    """Claim an attempt that nobody has claimed, so that no runner ever can; whether it is void."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mine = folder / f".void-{os.getpid()}"
    mine.write_text(json.dumps({"pid": 0, "start": 0, "boot": ""}))
    try:
        os.link(mine, folder / CLAIM)
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def outcome_of(folder: Path, job: Job) -> Outcome | None:
    """The outcome that an attempt's exit record tells; None while there is no record."""
    record = read_json(folder / EXIT)
    if record is None:
        return None
    code = record.get("returncode")
    started, ended = record.get("started"), record.get("ended")
    if record.get("asked") == "cancel":
        return Outcome(JobState.CANCELLED, code, "cancelled while it ran", started, ended)
    if code == 0:
        return Outcome(JobState.SUCCEEDED, 0, "", started, ended)
    told = ""
    if job.kind is not JobKind.SCRIPT:
        told = (read_json(folder / "outcome.json") or {}).get("reason", "")
    interrupted = record.get("asked") == "interrupt"
    reason = record.get("reason") or told or _words(code)
    state = JobState.CANCELLED if interrupted else JobState.FAILED
    return Outcome(state, code, f"interrupted: {reason}" if interrupted else reason, started, ended)


def _words(code: int | None) -> str:
    if code is None:
        return "it could not be started"
    if code >= 0:
        return f"exit code {code}"
    words = f"ended by {signal_name(-code)} (signal {-code})"
    if -code == signal.SIGKILL:
        words += "; most often the machine was out of memory and the system ended it"
    return words


def sweep(folder: Path, patience: float = 5.0) -> bool:
    """End every process that still belongs to an attempt whose runner is gone.

    They are known by the attempt's directory in their environment. Returns whether all are gone.
    """
    deadline = time.monotonic() + patience
    while pids := marked("GPUQUEUE_ATTEMPT_DIR", str(folder)):
        for pid in pids:
            if pid == os.getpid():
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
