"""The runner: supervises one job, and only reports. Standard library only.

It claims the attempt, starts the payload in a session of its own, copies its output to the log,
ends what the payload leaves behind and writes the exit record. It knows its job directory and
nothing else. SIGTERM asks it to end the job, SIGINT to interrupt it; from another container, where
no signal comes from, the same is asked by ringing ``ask`` with the signal's number.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuqueue.model import ProcessId
from gpuqueue.run.farewell import Farewell, fault_of
from gpuqueue.run.files import ASIDE, ASK, LOG, SPEC, ExitFile, hold, read_json, take_claim
from gpuqueue.run.freezing import freeze, thaw
from gpuqueue.run.logfile import LogFile
from gpuqueue.run.process import adopt_orphans, descendants, identify, since_boot
from gpuqueue.run.unheard import killed_note
from gpuqueue.run.wake import Doorbell, ring

__all__ = ["DEFAULTED", "Post", "Runner"]

DEFAULTED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
"""Signals that a payload starts with as if nobody had touched them."""
_SHORT = 0.015
"""Seconds after which a payload that still runs is made known: most trivial jobs never are."""


def _posix_spawn(program: str, argv: list[str], env: dict[str, str], sink: int) -> int:
    """Start a program with no standard input and its output going to ``sink``; its pid."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, sink, 1),
        (os.POSIX_SPAWN_DUP2, sink, 2),
    ]
    try:
        return os.posix_spawn(
            program, argv, env, file_actions=actions, setsid=True, setsigmask=[],
            setsigdef=DEFAULTED,
        )  # fmt: skip
    except NotImplementedError:  # a system that cannot start a session this way
        return os.posix_spawn(
            program, argv, env, file_actions=actions, setpgroup=0, setsigmask=[],
            setsigdef=DEFAULTED,
        )  # fmt: skip


def _make_folder(path: str) -> None:
    """Make a folder and what is missing above it, all private to the user."""
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        _make_folder(os.path.dirname(path))
        _make_folder(path)
    except FileExistsError:
        pass


def _me() -> list[ProcessId]:
    found = identify(os.getpid())
    return [] if found is None else [found]


class Post:
    """What a runner's process sets up once, for however many attempts it looks after in turn.

    Attributes
    ----------
    me
        This process.
    ears
        Descriptor that can be read when a signal has come.
    runner
        Whom signals are for now; None between two attempts: nobody knows this process then, so
        whoever asks it to end means the process.
    """

    def __init__(self) -> None:
        os.setsid()
        me = identify(os.getpid())
        assert me is not None
        self.me: ProcessId = me
        self.runner: Runner | None = None
        self.ears, wakeup = os.pipe()  # Python makes pipes that no exec inherits
        os.set_blocking(self.ears, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._hear("cancel"))
        signal.signal(signal.SIGINT, lambda *_: self._hear("interrupt"))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        adopt_orphans()

    def _hear(self, what: str) -> None:
        if self.runner is None:
            os._exit(0)
        self.runner.ask(what)


class Runner:
    """One attempt at one job.

    Parameters
    ----------
    order
        What the controller says: ``job`` (number), ``job_dir``, ``attempt_dir``, ``env`` (added
        to the payload's environment), ``wake`` (the controller's doorbell), ``grace`` (seconds
        between asking and ending), ``save`` (the same for what a program leaves behind that was
        asked to step aside), ``save_signal`` (by what it was asked), ``log_limit`` (bytes), and the
        text of ``spec`` where that is not in a file.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.order = order
        self.folder: str = order["attempt_dir"]
        self.payload = 0
        self.status: int | None = None
        self.asked = ""
        self.deadline: float | None = None
        self.reason = ""
        self._exit: ExitFile | None = None
        self._known_at: float | None = None
        self._told = self._insisted = False
        self._recorded = False
        self._log: LogFile | None = None
        self._bell: Doorbell | None = None
        self._farewell = Farewell(self.folder)

    # -- claim -------------------------------------------------------------------------------

    def claim(self, me: ProcessId | None = None) -> bool:
        """Take the attempt for this process; False if another runner has it.

        The lock comes first: who sees the claim from another container, where the process has no
        number, sees the lock as well.
        """
        _make_folder(os.path.join(self.folder, "run"))
        self._log = LogFile(os.path.join(self.folder, LOG), self.order.get("log_limit", 0))
        hold(self._log.fileno())
        me = me or identify(os.getpid())
        assert me is not None
        return take_claim(self.folder, me)

    # -- life --------------------------------------------------------------------------------

    def run(self, post: Post | None = None, on_end: Callable[[], object] = lambda: None) -> bool:
        """Do all of it. Returns when the job and everything it started has ended.

        Returns whether this process may look after another attempt: nobody has been told that
        this one's runner is this process, so no signal that is meant for it can come any more, and
        its record is written, so nobody will look for its process. ``on_end`` is called then,
        before anybody hears of the end.
        """
        post = post or Post()
        post.runner = self
        if not self.claim(post.me):
            post.runner = None
            self.let_go()
            on_end()
            return True
        began = since_boot()
        output = self._start()
        self._known_at = time.monotonic() + _SHORT
        assert self._log is not None
        self._supervise(output, self._log, post.ears)
        self._log.finish()
        self._record(began, self._log)
        self.let_go()
        free = self._recorded and self._known_at is not None and not self.asked
        if free:
            post.runner = None
            on_end()
        ring(self.order["wake"], f"exit {self.order['job']}")
        return free

    def let_go(self) -> None:
        """Let go of the attempt: its record is written, or it is another's."""
        if self._log is not None:
            self._log.close()

    def ask(self, what: str) -> None:
        """Ask for the job's end: ``cancel``, ``interrupt`` or, with no time limit, ``aside``."""
        if what == "cancel" and self.deadline is None:
            self.deadline = time.monotonic() + self.order["grace"]
            if self.status is None:
                self.asked = what
                self._signal_payload(signal.SIGTERM)
        elif what == "interrupt" and self.status is None:
            self.asked = self.asked or what
            self._interrupt()
        elif what == ASIDE and self.status is None and not self.asked:
            self.asked = what
            self._signal_payload(self._gently)

    @property
    def _gently(self) -> signal.Signals:
        """By what the job is asked to end."""
        saves = self.asked == ASIDE
        return signal.Signals[self.order.get("save_signal", "SIGTERM") if saves else "SIGTERM"]

    def _interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.payload:
                os.killpg(self.payload, signal.SIGINT)

    def _signal_payload(self, number: int) -> None:
        if self.payload:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.payload, number)
                os.kill(self.payload, signal.SIGCONT)

    # -- payload -----------------------------------------------------------------------------

    def _start(self) -> int:
        """Fork the payload; returns the end of the pipe from which its output comes."""
        spec = self._spec()
        output, sink = os.pipe()
        if spec is None:
            self.reason = "what was submitted is gone or damaged"
            self.status = -1
            os.close(sink)
            return output
        env = {**spec["env"], **self.order["env"]}
        self._exit = ExitFile(self.folder)
        if self.asked:
            self.status = -1
            self.reason = "before it began"
        else:
            self._spawn(spec, env, sink)
        os.close(sink)
        return output

    def _spec(self) -> Any:
        if text := self.order.get("spec"):
            return json.loads(text)
        return read_json(os.path.join(self.order["job_dir"], SPEC))

    def _spawn(self, spec: Mapping[str, Any], env: dict[str, str], sink: int) -> None:
        """Start the payload in a session of its own, its output going into the pipe.

        posix_spawn does not copy this process's memory first, so it costs a third of a fork.
        """
        what, where = "its working directory", spec["cwd"]
        umask = None
        try:
            os.chdir(spec["cwd"])
            what, where = "its program", spec["program"]
            if "umask" in spec:
                umask = os.umask(spec["umask"])
            env["PWD"] = spec["cwd"]
            self.payload = self._begin(spec, env, sink)
        except (OSError, ValueError) as error:
            self.status = -1
            words = error.strerror if isinstance(error, OSError) else str(error)
            self.reason = f"could not start: {what} ({where}): {words}"
            return
        finally:
            with contextlib.suppress(OSError):
                os.chdir("/")
            if umask is not None:
                os.umask(umask)
        if self.asked == "cancel":  # it came between the check and the spawn
            self._signal_payload(signal.SIGTERM)
        elif self.asked:
            self._interrupt()

    def _begin(self, spec: Mapping[str, Any], env: dict[str, str], sink: int) -> int:
        """Start the payload's process; its pid."""
        return _posix_spawn(spec["program"], spec["argv"], env, sink)

    def _make_known(self) -> None:
        """Name the payload's process, which also sets aside room for the exit record, and ring."""
        self._known_at = None
        with contextlib.suppress(OSError):  # there is no room for it: signals do without
            self._bell = Doorbell(Path(self.folder, ASK))
        if self._exit is not None:
            self._exit.name(identify(self.payload) if self.payload else None)
        ring(self.order["wake"], f"claim {self.order['job']}")

    # -- supervision -------------------------------------------------------------------------

    def _supervise(self, output: int, log: LogFile, ears: int) -> None:
        """Copy output and reap until the payload and all it started are gone."""
        poller = select.poll()
        poller.register(output, select.POLLIN)
        poller.register(ears, select.POLLIN)
        open_output = True
        gone = self._reap()
        while open_output or not gone:
            # once all are gone only what is still in the pipe counts, whoever holds its other end
            ready = poller.poll(0 if gone else self._patience(log))
            if gone and all(handle != output for handle, _ in ready):
                break
            if self._known_at is not None and time.monotonic() >= self._known_at and not gone:
                self._make_known()
                if self._bell is not None:
                    poller.register(self._bell.fileno(), select.POLLIN)
            for handle, _ in ready:
                if handle == output:
                    data = os.read(output, 1 << 16)
                    if data:
                        log.write(data)
                    else:
                        poller.unregister(output)
                        open_output = False
                elif handle == ears:
                    with contextlib.suppress(BlockingIOError):
                        os.read(handle, 4096)
                else:
                    self._answer()
            gone = self._reap()
            if not gone:
                self._press()
            log.settle()
        os.close(output)
        if self._bell is not None:
            self._bell.close(remove=True)

    def _answer(self) -> None:
        """Do what was asked at the doorbell."""
        assert self._bell is not None
        for line in self._bell.wait(0):
            if line == str(int(signal.SIGTERM)):
                self.ask("cancel")
            elif line == str(int(signal.SIGINT)):
                self.ask("interrupt")
            elif line == ASIDE:
                self.ask(ASIDE)
            elif line == str(int(signal.SIGSTOP)):
                freeze(_me())
            elif line == str(int(signal.SIGCONT)):
                thaw(_me())

    def _patience(self, log: LogFile) -> float | None:
        """Milliseconds to sleep at most; None until something happens."""
        if self._known_at is not None:
            return max(0.0, self._known_at - time.monotonic()) * 1000
        if self.deadline is not None:
            left = (self.deadline - time.monotonic()) * 1000
            return min(200.0, left + 1) if left > 0 else 50.0
        return 1000.0 if log.behind else None

    def _reap(self) -> bool:
        """Collect ended children; whether none is left. Orphans count: they are ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                break
            if pid == self.payload:
                self.status = status
        if self.status is not None and self.deadline is None:
            # the payload ended by itself and left others behind: its GPUs are not free yet
            # they may be what saves, where it was a shell that has died of the asking
            time_left = "save" if self.asked == ASIDE else "grace"
            self.deadline = time.monotonic() + self.order[time_left]
        return False

    def _press(self) -> None:
        """Ask what is left to end, then end it, when somebody asked or the payload is gone."""
        if self.deadline is None:
            return
        late = time.monotonic() >= self.deadline
        if not late and self.status is None:
            return  # the payload has been asked and may take its grace
        if not late and self._told:
            return
        self._told = True
        pids = descendants(os.getpid())
        if late and not self._farewell.said(pids):
            return
        if late and self.status is None and not self._insisted:
            self._insisted = True
            assert self._log is not None
            self._log.write(killed_note(self.payload, self.order["grace"], len(pids) - 1))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else self._gently)
                if not late:
                    os.kill(pid, signal.SIGCONT)

    # -- exit --------------------------------------------------------------------------------

    def _record(self, began: float, log: LogFile) -> None:
        returncode = None
        if self.payload and self.status is not None:
            returncode = os.waitstatus_to_exitcode(self.status)
        ended = time.time()
        record = {
            "returncode": returncode,
            "started": ended - (since_boot() - began),  # the clock may have been set meanwhile
            "ended": ended,
            "asked": self.asked,
            "reason": self.reason,
            "log_dropped": log.dropped,
        }
        if returncode and not self.asked and (fault := fault_of(self.folder)):
            record["fault"] = fault
        with contextlib.suppress(OSError):  # the folder is gone
            file = self._exit or ExitFile(self.folder)
            self._recorded = file.end(record)
            file.close()
