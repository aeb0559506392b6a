"""Who leads: whoever holds the lock in the state directory runs the controller."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time

from filelock import FileLock, Timeout

from gpuqueue.control.controller import Controller
from gpuqueue.control.launch import python_command
from gpuqueue.control.leading import LEAD, lead_of
from gpuqueue.errors import AutostartError, GpuqueueError
from gpuqueue.paths import Home
from gpuqueue.run.kernelshare import without_share
from gpuqueue.run.process import identify
from gpuqueue.run.wake import ring
from gpuqueue.settings import in_job
from gpuqueue.store import Store

__all__ = ["Lead", "ensure_lead", "lead_of", "spawn_headless"]

log = logging.getLogger("gpuqueue")

_STANDBY = 1.0
_STARTS_WITHIN = 2.0
_APPEND = os.O_CREAT | os.O_WRONLY | os.O_APPEND
_GIVE_UP = 5.0


class Lead(threading.Thread):
    """Stands by for the lock, and runs the controller while holding it.

    Parameters
    ----------
    kind
        ``jupyter`` (a server's extension), ``serve`` (a server that is nothing else) or
        ``headless``.
    url
        Where people find this host's pages; empty where nothing listens.
    idle_exit
        End by itself after the setting's number of seconds without a job.
    """

    def __init__(self, home: Home, *, kind: str, url: str = "", idle_exit: bool = False) -> None:
        super().__init__(name="gpuqueue-lead", daemon=True)
        self.home = home
        self.kind = kind
        self.url = url
        self.idle_exit = idle_exit
        self.problem = ""
        self._stopping = threading.Event()
        self._controller: Controller | None = None

    @property
    def leading(self) -> bool:
        """Whether this process leads now."""
        return self._controller is not None

    def run(self) -> None:
        """Stand by, lead, stand by again, until ``stop``."""
        if in_job():
            # what leads must outlive the job that it would be part of
            self.problem = "this runs inside a job and does not lead"
            return
        lock = FileLock(self.home.lock, mode=0o600)
        given_up = time.monotonic() + _GIVE_UP
        while not self._stopping.is_set():
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if self.idle_exit and time.monotonic() > given_up:
                    return  # somebody else leads, for good
                self._stopping.wait(_STANDBY)
                continue
            except OSError as error:
                self._note(error)
                self._stopping.wait(_STANDBY)
                continue
            try:
                if not self._stopping.is_set():
                    self._lead()
                    self.problem = ""
            except (GpuqueueError, OSError) as error:
                self._note(error)
            except Exception:
                log.exception("gpuqueue: the controller failed; starting it again")
            finally:
                lock.release()
            if not self._stopping.is_set():
                self._stopping.wait(_STANDBY)

    def _note(self, error: Exception) -> None:
        if str(error) != self.problem:
            self.problem = str(error)
            log.error("gpuqueue: %s", error)

    def _lead(self) -> None:
        controller = Controller(self.home)
        try:
            self._publish(controller.store, leading=True)
            self._controller = controller
            (self.home.root / "starting").unlink(missing_ok=True)
            if self._stopping.is_set():
                return  # asked while there was no controller yet to be told
            if self.idle_exit:
                threading.Thread(
                    target=self._end_when_idle, args=(controller,), daemon=True
                ).start()
            controller.run()
        finally:
            self._controller = None
            with contextlib.suppress(GpuqueueError):
                self._publish(controller.store, leading=False)
            controller.close()

    def _publish(self, store: Store, *, leading: bool) -> None:
        from gpuqueue.about import __version__

        me = identify(os.getpid())
        assert me is not None
        store.set_fact(
            LEAD,
            {
                "pid": me.pid,
                "start": me.start,
                "boot": me.boot,
                "kind": self.kind,
                "url": self.url,
                "since": time.time(),
                "version": __version__,
                "leading": leading,
            },
        )

    def _end_when_idle(self, controller: Controller) -> None:
        while self._controller is controller and not self._stopping.wait(5.0):
            limit = controller.settings.current.idle_exit
            if not limit or time.monotonic() - controller.idle_since < limit:
                continue
            # whoever rings after this finds nobody and starts a lead; whoever rang before has
            # its job in the store by now
            controller.bell.close()
            if not controller.store.live():
                self.stop()
            else:
                controller.stop()  # lead again with a new bell

    def stop(self, timeout: float = 10.0, *, leave_behind: bool = False) -> None:
        """Stop leading or standing by; ``leave_behind`` hands live jobs to a headless lead."""
        self._stopping.set()
        controller = self._controller
        if controller is not None:
            controller.stop()
        if threading.current_thread() is not self and self.is_alive():
            self.join(timeout)
        if leave_behind:
            store = Store(self.home.database, patience=2.0)
            try:
                if store.live() and lead_of(store) is None:
                    spawn_headless(self.home)
            finally:
                store.close()


def spawn_headless(home: Home) -> None:
    """Start a controller in the background that outlives this process.

    Raises
    ------
    AutostartError
        It could not be started.
    """
    if not _first_to_start(home):
        return
    try:
        with os.fdopen(os.open(home.log, _APPEND, 0o600), "ab") as output:
            subprocess.Popen(
                python_command("gpuqueue.control.headless"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/" if os.name == "posix" else None,
                env={**without_share(os.environ), "GPUQUEUE_HOME": str(home.root)},
                start_new_session=True,
                creationflags=getattr(subprocess, "DETACHED_PROCESS", 0),
            )
    except OSError as error:
        raise AutostartError(
            f"no controller is running and none could be started ({error}). Start one with "
            "`jupyter gpuqueue serve`."
        ) from error


def _first_to_start(home: Home) -> bool:
    """Whether nobody else has started a controller in the last moments: a burst needs only one."""
    mark = home.root / "starting"
    with contextlib.suppress(OSError):
        if abs(time.time() - mark.stat().st_mtime) < _STARTS_WITHIN:
            return False
    with contextlib.suppress(OSError):
        mark.touch(0o600)
    return True


def ensure_lead(home: Home, *, autostart: bool, line: str) -> bool:
    """Ring the controller, or start one if nobody answers; whether one has heard it."""
    if ring(home.wake, line):
        return True
    if not autostart:
        return False
    if sys.platform == "win32":
        store = Store(home.database)
        try:
            if lead_of(store) is not None:
                return False
        finally:
            store.close()
    spawn_headless(home)
    return False
