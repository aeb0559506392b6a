"""When to take the GPUs back without being asked: a program of the person's own uses one heavily.

Deciding is pure: what is seen, who has the GPUs, the rules and the time come in, what to do comes
out. ``programs_of`` is the part that looks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpuqueue.control.machine import Machine
from gpuqueue.model import ACTIVE, Job, Mode, ProcessId
from gpuqueue.run.process import children_map, descendants, identify
from gpuqueue.settings import Settings
from gpuqueue.units import format_bytes

__all__ = [
    "AUTOMATIC",
    "PERSON",
    "Program",
    "Rules",
    "Verdict",
    "Watched",
    "decide",
    "is_heavy",
    "programs_of",
    "rules_of",
]

PERSON = "person"
AUTOMATIC = "automatic"
"""Values of ``Mode.by``: who has taken the GPUs."""

_OURS = (b"GPUQUEUE_ATTEMPT_DIR=", b"GPUQUEUE_SHARE=")
"""What the environment of a job, and of a kernel with a share of a GPU, holds."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the person's own that uses GPUs.

    ``names`` are what it may be called in the settings; ``memory`` is bytes on all GPUs together,
    None where the driver does not tell.
    """

    process: ProcessId
    names: tuple[str, ...]
    memory: int | None

    def __str__(self) -> str:
        size = "" if self.memory is None else f", {format_bytes(self.memory)}"
        return f"{self.names[0] if self.names else 'a program'} (pid {self.process.pid}{size})"


@dataclass(frozen=True, slots=True)
class Rules:
    """What counts, and for how long: ``after`` and ``resume_after`` in seconds, memory in bytes."""

    enabled: bool
    apps: tuple[str, ...]
    ignore: tuple[str, ...]
    memory: int
    after: float
    resume_after: float


@dataclass(frozen=True, slots=True)
class Watched:
    """Since when there has been a heavy program, and since when there has been none."""

    busy_since: float | None = None
    quiet_since: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do now: ``free`` for ``program``, ``resume``, or nothing.

    ``latched`` is what is left of ``Mode.latched``.
    """

    action: str = ""
    program: str = ""
    latched: tuple[ProcessId, ...] = ()


def is_heavy(program: Program, rules: Rules) -> bool:
    """Whether a program should have the GPUs to itself.

    One that is listed needs to use a GPU at all, any other more than ``memory``; what is to be
    ignored never counts, unless it is listed by name, too.
    """
    if _is_named(program, rules.apps):
        return True
    if _is_named(program, rules.ignore):
        return False
    return program.memory is not None and program.memory > rules.memory


def _is_named(program: Program, patterns: Iterable[str]) -> bool:
    wanted = [pattern.lower() for pattern in patterns]
    return any(fnmatchcase(name.lower(), pattern) for name in program.names for pattern in wanted)


def decide(
    watched: Watched, programs: Sequence[Program], mode: Mode, rules: Rules, now: float
) -> tuple[Watched, Verdict]:
    """Take one look in; ``now`` is seconds on a clock that only goes forward.

    What a person has taken is given back by a person only. What a person has given back while a
    heavy program was there stays with the queue until that program has left the GPUs.
    """
    heavy = sorted((p for p in programs if is_heavy(p, rules)), key=lambda p: -(p.memory or 0))
    there = {program.process for program in programs}
    latched = tuple(process for process in mode.latched if process in there)
    if mode.normal:
        if not rules.enabled or latched or not heavy:
            return Watched(), Verdict(latched=latched)
        since = now if watched.busy_since is None else watched.busy_since
        if now - since >= rules.after:
            return Watched(), Verdict("free", str(heavy[0]), latched)
        return Watched(busy_since=since), Verdict(latched=latched)
    if mode.by != AUTOMATIC or heavy:
        return Watched(), Verdict(latched=latched)
    since = now if watched.quiet_since is None else watched.quiet_since
    action = "resume" if now - since >= rules.resume_after else ""
    return Watched(quiet_since=since), Verdict(action, latched=latched)


def rules_of(settings: Settings) -> Rules:
    """The rules that the settings tell."""
    return Rules(
        settings.auto_free,
        tuple(settings.auto_free_apps),
        tuple(settings.auto_free_ignore),
        settings.size("auto_free_memory"),
        settings.auto_free_after,
        settings.auto_resume_after,
    )


def programs_of(machine: Machine, jobs: Iterable[Job]) -> list[Program]:
    """The programs on the GPUs that are this user's and not the queue's own."""
    held: dict[int, int | None] = {}
    for reading in machine.readings:
        for process in reading.processes:
            before, more = held.get(process.pid, 0), process.memory
            held[process.pid] = None if before is None or more is None else before + more
    if not held:
        return []
    ours = _of_jobs(jobs)
    return [
        Program(_identity(pid), _names(pid), memory)
        for pid, memory in held.items()
        if pid not in ours and not _is_managed(pid) and _may_be_mine(pid)
    ]


def _of_jobs(jobs: Iterable[Job]) -> set[int]:
    children = children_map()
    ours: set[int] = set()
    for job in jobs:
        if job.state in ACTIVE and job.process is not None:
            ours |= {job.process.pid, *descendants(job.process.pid, children)}
    return ours


def _identity(pid: int) -> ProcessId:
    # a pid of another namespace has no identity here; its number has to do
    return identify(pid) or ProcessId(pid, 0, "")


def _is_managed(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(entry.startswith(_OURS) for entry in file.read().split(b"\0"))
    except OSError:
        return False


def _may_be_mine(pid: int) -> bool:
    """False where it is known to be another user's: on a shared machine that is no sign."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except (OSError, AttributeError):
        return True


def _names(pid: int) -> tuple[str, ...]:
    """What a program is called: its file's name, and what it calls itself (cut at 15 letters)."""
    names: dict[str, None] = {}
    with contextlib.suppress(OSError):
        names[os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")] = None
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file,
    ):
        names[file.read().strip()] = None
    return tuple(name for name in names if name)
