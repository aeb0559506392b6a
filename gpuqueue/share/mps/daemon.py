"""The MPS daemon of one GPU: started when it is needed, noticed when it is stuck, ended when idle.

There is one for each GPU and user. A fault in one process ends all that share its server, so a
daemon over several GPUs would spread it; and a server belongs to one user, so another user's
processes would wait, as if hanging, for the end of all of this one's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gpuqueue.errors import MpsError, MpsSilent
from gpuqueue.model import ProcessId
from gpuqueue.run.files import read_json, write_json
from gpuqueue.run.process import (
    alive,
    descendants,
    environment_of,
    identify,
    marked,
    send_signal,
)
from gpuqueue.share.mps import book
from gpuqueue.share.mps.control import PIPE, Session, readable
from gpuqueue.share.mps.place import Place

__all__ = ["end_if_idle", "ensure", "kill", "running", "users"]

log = logging.getLogger("gpuqueue")

_PID_FILE = "nvidia-cuda-mps-control.pid"
_PAUSE = 0.01
_OWN = "nvidia-cuda-mps"


def running(place: Place) -> ProcessId | None:
    """The daemon's process, if one runs."""
    value = read_json(place.note)
    with contextlib.suppress(TypeError):
        process = ProcessId(**(value or {}))
        if alive(process):
            return process
    return _named(place)


def _named(place: Place) -> ProcessId | None:
    """The process that the daemon's own file names, if that is a daemon of this place."""
    try:
        pid = int((place.pipe / _PID_FILE).read_text(encoding="ascii", errors="replace"))
    except (OSError, ValueError):
        return None
    process = identify(pid)
    if process is None or not alive(process):
        return None
    # after a reboot the number may be anybody's
    return process if environment_of(pid).get(PIPE) == str(place.pipe) else None


def _is_own(pid: int) -> bool:
    """Whether a process is one of MPS itself: its daemon, its server, its control program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # it has just ended
    # before a script there are the words of its interpreter
    return any(Path(os.fsdecode(word)).name.startswith(_OWN) for word in words.split(b"\0")[:3])


def users(place: Place) -> tuple[int, ...]:
    """Pids of living processes that were started to use this daemon, whether they do or not.

    They are told by their environment, so it works beside a daemon that does not answer. One that
    was there before it got its share is not among them; see `gpuqueue.share.mps.book.living`.
    """
    return tuple(pid for pid in marked(PIPE, str(place.pipe)) if not _is_own(pid))


def ensure(session: Session, asker: Path | None = None) -> bool:
    """Have a daemon that answers; whether it was started now.

    One that is stuck, or whose server is in fault, is replaced where nothing uses the GPU through
    it. ``asker`` is the directory of the job that it is for, which does not use it yet.

    Raises
    ------
    MpsError
        There is none, or it is stuck and in use; the sentence says what will become of it.
    """
    place = session.place
    found = running(place)
    if found is None:
        _start(session)
        return True
    try:
        session.check()
        broken = [server for server in session.servers() if session.faulty(server)]
        if not broken:
            return False
        wrong = f"the MPS server of {place.gpu} (pid {broken[0]}) is in fault"
    except MpsError as error:
        wrong = f"the MPS daemon of {place.gpu} (pid {found.pid}) is stuck: {error}"
    if held := _in_use(place, asker):
        raise MpsSilent(
            f"{wrong[0].upper()}{wrong[1:].rstrip('.')}. It is replaced when what uses it has "
            f"ended ({held})."
        )
    log.warning("%s; nothing uses it, so it is replaced", wrong)
    kill(session)
    _start(session)
    return True


def _in_use(place: Place, asker: Path | None) -> str:
    """What uses a daemon, for a sentence; empty if nothing does."""
    pids = users(place)
    names = list(map(str, pids or book.living(place, asker)))
    more = " and others" if len(names) > 5 else ""
    return f"{'pid' if pids else 'job in'} {', '.join(names[:5])}{more}" if names else ""


def _start(session: Session) -> None:
    place = session.place
    # what an earlier daemon left, of another boot perhaps, only keeps a new one from starting
    shutil.rmtree(place.pipe, ignore_errors=True)
    place.note.unlink(missing_ok=True)
    for path in place.log.glob("*.log"):  # they would only grow; the last one's is kept
        path.replace(path.with_suffix(".old"))
    place.pipe.mkdir(mode=0o700)
    session.run("", "-d", limit=session.limits.start)
    deadline = time.monotonic() + session.limits.start
    wrong = ""
    while time.monotonic() < deadline:
        process = _named(place)
        try:
            session.check()
        except MpsError as error:
            wrong = str(error)
        else:
            if process is not None:
                write_json(place.note, asdict(process), flush=False)
                return
            wrong = f"It answers, and {place.pipe / _PID_FILE} does not name it."
        time.sleep(_PAUSE)
    kill(session)
    said = readable(place.log / "control.log")
    raise MpsSilent(
        f"An MPS daemon was started for {place.gpu} and was not there within "
        f"{session.limits.start:g} s. {wrong}{f' Its log ends with: {said}' if said else ''}"
    )


def _wait(condition: Callable[[], bool], limit: float) -> bool:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True


def _family(place: Place) -> list[ProcessId]:
    """The processes of MPS itself: a daemon, its server, one that has only just begun."""
    found = {pid for pid in marked(PIPE, str(place.pipe)) if _is_own(pid)}
    if (process := running(place)) is not None:
        found |= {process.pid, *descendants(process.pid)}
    return list(filter(None, map(identify, sorted(found))))


def kill(session: Session) -> None:
    """End a daemon that cannot be asked to, and its server."""
    family = _family(session.place)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for member in family:
            send_signal(member, number)
        if _wait(lambda: not any(map(alive, family)), session.limits.end):
            break
    else:
        raise MpsError(
            f"The MPS daemon of {session.place.gpu} (pid {family[0].pid}) cannot be ended; it "
            "waits in the driver. The GPU may have to be reset."
        )
    _clear(session.place)


def _clear(place: Place) -> None:
    shutil.rmtree(place.pipe, ignore_errors=True)
    place.note.unlink(missing_ok=True)


def end_if_idle(session: Session) -> bool:
    """End the daemon if no job is on it and nothing uses it; whether there is none any more."""
    place = session.place
    if running(place) is None:
        if not book.shares(place):
            _clear(place)
        return True
    if book.shares(place) or users(place):
        return False
    family = _family(place)
    try:
        # one whose environment cannot be read; those that have just ended may still be listed
        if any(alive(client) for client in filter(None, map(identify, session.all_clients()))):
            return False
        session.ask("quit", limit=session.limits.end)
    except MpsError as error:
        log.warning("an idle MPS daemon is killed, for it did not end when asked: %s", error)
    if _wait(lambda: not any(map(alive, family)), session.limits.end):
        _clear(place)
    else:
        kill(session)
    return True
