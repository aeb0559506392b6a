"""Ending processes that use a GPU through MPS, in the one order that is supported.

A signal to a process with work on the GPU can leave the server, and with it every other process
on it, broken. So the daemon is asked first to let go of it (``terminate_client``), for which it
must be able to run; then it is killed. The daemon may never answer that: then the process is killed
all the same, and the daemon is replaced when nothing else uses it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from gpuqueue.errors import MpsError
from gpuqueue.model import ProcessId
from gpuqueue.run.process import alive, send_signal
from gpuqueue.share.mps.control import Control, Session

__all__ = ["Ended", "end"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process was ended.

    Attributes
    ----------
    released
        The daemon had let go of it first, or did not have it.
    sentence
        What went otherwise; empty if nothing did.
    """

    pid: int
    released: bool
    sentence: str = ""


def end(control: Control, processes: Sequence[ProcessId]) -> tuple[Ended, ...]:
    """End processes for good; those that MPS has, in its own way first.

    It takes at most the limits for the lock, two answers and one client, and always kills. After
    the first command that is not answered the daemon is not asked again.
    """
    for process in processes:
        send_signal(process, signal.SIGCONT)  # a stopped one can never be let go of
    trouble = {process.pid: "the daemon was not asked" for process in processes}
    try:
        with control.session() as session:
            owner = {pid: server for server in session.servers() for pid in session.clients(server)}
            for process in processes:
                trouble[process.pid] = (
                    _let_go(session, owner[process.pid], process) if process.pid in owner else ""
                )
    except MpsError as error:
        trouble = {pid: why and str(error) for pid, why in trouble.items()}
    for process in processes:
        send_signal(process, signal.SIGKILL)
    return tuple(Ended(pid, not why, _said(why)) for pid, why in trouble.items())


def _let_go(session: Session, server: int, process: ProcessId) -> str:
    """Have the daemon let go of a client; why it has not, empty if it has."""
    session.ask(f"terminate_client {server} {process.pid}", limit=session.limits.client)
    if alive(process) and process.pid in session.clients(server):  # silence is no success
        return f"MPS on {session.place.gpu} still has it after it was told to let go."
    return ""


def _said(trouble: str) -> str:
    return trouble and f"It was killed while MPS had it; others on the GPU may fail. {trouble}"
