"""Stopping whole process trees where they are, and letting them go on. Standard library only.

A runner is a subreaper, so everything that its job has started is below it, whatever sessions and
process groups it has opened. SIGSTOP cannot be caught, but a process may fork while its parent's
siblings are being stopped, so the tree is looked at until nothing in it moves. Parents are stopped
before their children and go on after them: a shell that controls jobs would otherwise see a child
stop and take its prompt back.

The kernel's own freezer (cgroup v2) would do it in one step, where a cgroup has been delegated.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Collection, Iterable, Sequence

from gpuqueue.model import ProcessId
from gpuqueue.run.process import (
    Seen,
    alive,
    descendants,
    identify,
    process_table,
    send_signal,
)

__all__ = ["are_frozen", "freeze", "thaw", "was_frozen"]

_PATIENCE = 2.0
_PAUSE = 0.001
_STILL = "TtZX"
"""States in which a process runs none of its code: stopped, traced, ended."""
_SURE = 2
"""Looks in a row at which nothing may move: a fork may have been under way at the first."""


def freeze(
    runners: Sequence[ProcessId],
    patience: float = _PATIENCE,
    *,
    whole: Collection[ProcessId] = (),
) -> bool:
    """Stop everything below these processes, but not themselves; whether all of it stands still.

    Those of them that are in ``whole`` are stopped, too: notebooks' kernels, which have no runner.

    One that waits inside the kernel, for a disk or a driver, stops before it runs on; it counts as
    stopped. Harmless to repeat. Gives up after ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    asked: dict[ProcessId, bool] = {}
    quiet = 0
    while quiet < _SURE:
        moving = False
        for process, seen in _members(runners, whole):
            if seen.state in _STILL:
                continue
            if process not in asked:
                asked[process] = _send(process, signal.SIGSTOP)
                moving |= asked[process]
            elif seen.state != "D":
                moving |= asked[process]
        quiet = 0 if moving else quiet + 1
        if time.monotonic() > deadline:
            return False
        if moving:
            time.sleep(_PAUSE)
    return True


def thaw(runners: Sequence[ProcessId], *, whole: Collection[ProcessId] = ()) -> None:
    """Let everything below these processes go on, children before their parents."""
    for process, _ in reversed(_members(runners, whole)):
        _send(process, signal.SIGCONT)


def are_frozen(runners: Sequence[ProcessId], *, whole: Collection[ProcessId] = ()) -> bool:
    """Whether nothing below these processes runs."""
    return all(seen.state in f"{_STILL}D" for _, seen in _members(runners, whole))


def was_frozen(runner: ProcessId) -> bool:
    """Whether something below this process was stopped, and nothing below it runs."""
    states = {seen.state for _, seen in _members([runner])}
    return "T" in states and states <= set(f"{_STILL}D")


def _send(process: ProcessId, number: int) -> bool:
    # of another user, by sudo: it cannot be stopped, and is not waited for
    with contextlib.suppress(PermissionError):
        return send_signal(process, number)
    return False


def _members(
    runners: Iterable[ProcessId], whole: Collection[ProcessId] = ()
) -> list[tuple[ProcessId, Seen]]:
    """What is below these processes, parents before children; nothing below a stranger."""
    table = process_table()
    if table is None:
        return _members_elsewhere(runners, whole)
    children: dict[int, list[int]] = {}
    for pid, seen in table.items():
        children.setdefault(seen.parent, []).append(pid)
    found = []
    for runner in runners:
        queue = list(children.get(runner.pid, ())) if alive(runner) else []
        if runner in whole and runner.pid in table and alive(runner):
            found.append((runner, table[runner.pid]))
        for pid in queue:
            found.append((ProcessId(pid, table[pid].start, runner.boot), table[pid]))
            queue += children.get(pid, ())
    return found


def _members_elsewhere(
    runners: Iterable[ProcessId], whole: Collection[ProcessId]
) -> list[tuple[ProcessId, Seen]]:
    """The same through psutil, where there is no /proc."""
    import psutil

    states = {psutil.STATUS_STOPPED: "T", psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DISK_SLEEP: "D"}
    found = []
    for runner in runners:
        if not alive(runner):
            continue
        for pid in [*([runner.pid] if runner in whole else ()), *descendants(runner.pid)]:
            process = identify(pid)
            with contextlib.suppress(psutil.Error):
                state = states.get(psutil.Process(pid).status(), "S")
                if process is not None:
                    found.append((process, Seen(state, 0, process.start)))
    return found
