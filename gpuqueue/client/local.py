"""The client that works on the store of this host directly, with or without a controller."""

from __future__ import annotations

import contextlib
import errno
import getpass
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuqueue.client.payload import Payload
from gpuqueue.client.request import Options, check_kind
from gpuqueue.client.rights import agent_of
from gpuqueue.client.watch import Watch
from gpuqueue.control.lead import ensure_lead, lead_of
from gpuqueue.control.machine import (
    Machine,
    machine_of,
    managed_gpus,
    policy_of,
    snapshot_of,
    usage_of,
)
from gpuqueue.errors import DoesNotFit, GpuqueueError, NoSpace, NotAllowedNow
from gpuqueue.model import TERMINAL, Intent, IntentKind, Job, JobKind, JobState, Origin
from gpuqueue.paths import Home, find_home
from gpuqueue.plan import Plan, Wait, never_fits, plan, refusal
from gpuqueue.run.files import LOG, SPEC, read_json, sync_folder
from gpuqueue.settings import SettingsFile, may_autostart
from gpuqueue.store import RESCUE, Draft, Store

__all__ = ["LocalClient", "default_client", "origin_here"]

_APPLY = 2.0
_SAME = 2.0
_DAY = 86_400.0


def origin_here() -> Origin:
    """Where this process submits from."""
    path, agent = os.environ.get("JPY_SESSION_NAME", ""), agent_of()
    if path or "ipykernel" in sys.modules:
        return Origin("notebook", path, f"kernel-{os.getpid()}", agent)
    script = getattr(sys.modules.get("__main__"), "__file__", "") or ""
    return Origin("python", os.path.abspath(script) if script else "", f"pid-{os.getpid()}", agent)


class LocalClient:
    """Submit, ask and wait on one state directory. Safe to use from several threads."""

    def __init__(
        self, home: Home | None = None, *, on_wait: Callable[[str], None] | None = None
    ) -> None:
        self.home = home or find_home()
        self.store = Store(self.home.database, on_wait=on_wait)
        self._settings = SettingsFile(self.home.config)
        self._numbers = itertools.count()
        self._looking = threading.Lock()
        self._look: tuple[tuple[int, int], float, Sequence[Job], Plan] | None = None
        self.home.jobs.mkdir(mode=0o700, exist_ok=True)

    @property
    def settings(self) -> Any:
        """The settings in force."""
        self._settings.refresh()
        return self._settings.current

    @property
    def settings_warning(self) -> str:
        """Why the settings file as it is now is not used; empty when all is well."""
        return self._settings.warning

    def repaired(self) -> str:
        """What to say of a database that was damaged, for as long as the old files are there."""
        fact = self.store.fact(RESCUE)
        if not fact:
            return ""
        if (self.home.root / fact["aside"]).exists():
            return f"{fact['words']}. Delete them when you need them no more"
        return str(fact["words"]) if 0 <= time.time() - fact["at"] < _DAY else ""

    # -- submit ------------------------------------------------------------------------------

    def submit(
        self,
        work: Sequence[tuple[Payload, Options]],
        *,
        origin: Origin | None = None,
        owner: str | None = None,
        retry_of: int | None = None,
        flush: bool = True,
    ) -> list[Job]:
        """Queue jobs, all or none, and wake the controller.

        Without ``flush`` it does not wait for the disk: the controller flushes what it takes in
        before it acts on it. A power cut within that turn, some milliseconds, could take the jobs.

        Raises
        ------
        DoesNotFit
            This machine can never run one of them or, with ``wait=False``, not now.
        NoSpace
            The disk is full. Nothing was queued.
        """
        machine = machine_of(self.store, self.settings)
        for payload, options in work:
            check_kind(options.request, payload.kind)
            self.check_fit(options, machine, payload.kind)
        where = _shown_origin(origin or origin_here())
        who = _shown(owner or _user())
        specs = [json.dumps(payload.spec()) for payload, _ in work]
        drafts = [
            Draft(
                kind=payload.kind,
                request=options.request,
                tag=_shown(options.tag or payload.tag),
                owner=who,
                command=_shown(payload.command),
                cwd=_shown(payload.cwd),
                origin=where,
                spec=spec,
                key=options.key,
                retry_of=retry_of,
                to_front=options.to_front,
            )
            for (payload, options), spec in zip(work, specs, strict=True)
        ]
        with self._staged([payload for payload, _ in work], specs) as staged:
            refused = heard = False
            try:
                jobs = self.store.submit(
                    drafts, lambda i, number: self._place(staged[i], number), flush=flush
                )
            except GpuqueueError:
                refused = True
                raise
            finally:
                # an interrupt may come between the commit and here
                heard = not refused and self.wake("submit")
            if not (flush or heard):
                self.store.flush()
        for job, (payload, _) in zip(jobs, work, strict=True):
            for name, large in payload.large.items():
                large.note(str(self.home.job(job.id) / name))
        return jobs

    def check_fit(
        self,
        options: Options,
        machine: Machine | None = None,
        kind: JobKind = JobKind.SCRIPT,
    ) -> None:
        """Refuse what this machine can never run or, with ``wait=False``, cannot start now.

        Raises
        ------
        DoesNotFit
            It says what the machine has.
        """
        settings = self.settings
        machine = machine or self.machine()
        gpus = managed_gpus(settings, machine.gpus)
        policy = policy_of(settings, machine.gpus)
        if sentence := never_fits(options.request, gpus, policy):
            why = "" if gpus or not machine.problem else f". {machine.problem}"
            raise DoesNotFit("request", f"{sentence}{why}")
        if options.request.require:
            from gpuqueue.client.demands import check_demands

            check_demands(self, options.request)
        if not options.wait:
            trial = Job(
                id=2**62, kind=kind, state=JobState.QUEUED, request=options.request,
                tag="", owner="", command="", cwd="", origin=Origin(), submitted=0, position=2**62,
            )  # fmt: skip
            jobs = [*self.store.live(), trial]
            parents = self.store.states(options.request.after)
            now = time.time()
            usage = usage_of(self.store, settings, machine, now)
            mode = self.store.mode()
            decision = plan(snapshot_of(jobs, parents, machine, settings, usage, mode=mode), now)
            if all(start.job != trial.id for start in decision.starts):
                if kind is JobKind.KERNEL:
                    raise DoesNotFit("wait", refusal(decision, trial))
                wait = decision.waits.get(trial.id)
                why = wait.sentence if wait else "the machine is busy"
                raise DoesNotFit("wait", f"cannot start now: {why}")

    @contextlib.contextmanager
    def _staged(
        self, payloads: Sequence[Payload], specs: Sequence[str]
    ) -> Iterator[list[Path | None]]:
        """Write the job directories under names of their own, before any lock is taken.

        A payload without files needs none: its spec goes into the store.
        """
        folders: list[Path | None] = []
        try:
            for payload, spec in zip(payloads, specs, strict=True):
                if not payload.files:
                    folders.append(None)
                    continue
                name = f".new-{os.getpid()}-{threading.get_ident()}-{next(self._numbers)}"
                folder = self.home.jobs / name
                folder.mkdir(mode=0o700)
                folders.append(folder)
                for file_name, content in payload.files.items():
                    _write(
                        folder / file_name, content, flush=payload.flush or _size(content) < _SOON
                    )
                _store_large(folder, payload)
                _write(folder / SPEC, spec.encode(), flush=False)
                sync_folder(str(folder))
            yield folders
            if any(folders):
                sync_folder(str(self.home.jobs))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and not isinstance(error, NoSpace):
                raise NoSpace(
                    errno.ENOSPC,
                    f"no space left on the disk of {self.home.root}; nothing was queued. Free "
                    "some space and submit again, or set GPUQUEUE_HOME to another disk.",
                ) from error
            raise
        finally:
            for folder in filter(None, folders):
                if folder.exists():
                    shutil.rmtree(folder, ignore_errors=True)

    def _place(self, staged: Path | None, job_id: int) -> None:
        target = self.home.job(job_id)
        if os.path.lexists(target):
            # left by a submit that was cut off, or by a database that is gone: not ours to delete
            target.rename(target.with_name(f"{target.name}.left-{time.time_ns()}"))
        if staged is not None:
            staged.rename(target)

    def wake(self, line: str) -> bool:
        """Ring the controller, or start one if the settings allow it; whether one heard it."""
        return ensure_lead(self.home, autostart=may_autostart(self.settings), line=line)

    # -- ask ---------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job:
        """One job as it is now."""
        return self.store.job(job_id)

    def lead(self) -> Any:
        """Who leads now; None if nobody does."""
        return lead_of(self.store)

    def machine(self) -> Machine:
        """The machine as the controller last saw it."""
        return machine_of(self.store, self.settings)

    def plan(self, jobs: Sequence[Job] | None = None) -> Plan:
        """What the scheduler would decide this moment: the source of every explanation."""
        live = self.store.live() if jobs is None else jobs
        wanted = {parent for job in live for parent in job.request.after}
        parents = self.store.states(wanted) if wanted else {}
        now, machine, settings = time.time(), self.machine(), self.settings
        usage = usage_of(self.store, settings, machine, now)
        mode = self.store.mode()
        return plan(snapshot_of(live, parents, machine, settings, usage, mode=mode), now)

    def looked(self) -> tuple[Sequence[Job], Plan]:
        """The jobs that have not ended and the plan, for whoever only shows them.

        Several looks within a moment share them, as long as nothing has changed: of a long queue
        either takes a good part of a second.
        """
        with self._looking:
            # the number first: what happens meanwhile makes the next look a new one
            state, now = (self.store.last_event(), id(self.settings)), time.monotonic()
            known = self._look
            if known is None or known[0] != state or now - known[1] > _SAME:
                live = self.store.live()
                known = self._look = (state, now, live, self.plan(live))
            return known[2], known[3]

    def why(self, job_id: int) -> Wait | None:
        """Why a job waits, and until when; None if it does not."""
        if self.job(job_id).state is not JobState.QUEUED:
            return None
        return self.plan().waits.get(job_id)

    def spec(self, job_id: int) -> Any:
        """What was submitted as a job, with its surroundings; None if it is gone."""
        text = self.store.spec(job_id)
        return json.loads(text) if text else read_json(self.home.job(job_id) / SPEC)

    def log_path(self, job: Job) -> Path:
        """Where the log of a job's latest attempt is (it may not exist yet)."""
        return self.home.attempt(job.id, max(1, job.attempt)) / LOG

    # -- wish --------------------------------------------------------------------------------

    def intend(self, kind: IntentKind, job_id: int, value: Any = None) -> None:
        """Ask the controller for something about a job, and see what it says if it is there.

        Raises
        ------
        UnknownJob, NotAllowedNow
            There is no such job, or it cannot be done in its state.
        """
        job = self.job(job_id)
        if job.state in TERMINAL:
            raise NotAllowedNow(f"job {job_id} has already {_past(job.state)}")
        if kind is IntentKind.SWAP:
            other = self.job(value or 0)
            if other.state is not JobState.QUEUED:
                raise NotAllowedNow(f"job {value} is {other.state}; only waiting jobs can swap")
        for error in self.intend_all(kind, [job_id], value):
            raise NotAllowedNow(error)

    def intend_all(self, kind: IntentKind, job_ids: Sequence[int], value: Any = None) -> list[str]:
        """Ask for the same about several jobs at once; return what was refused, and why.

        What the controller has not answered within two seconds it will carry out later.
        """
        intents = self._intend(kind, job_ids, value)
        return [intent.error for intent in intents if intent.error]

    def wish(self, kind: IntentKind, value: Any = None, job_id: int | None = None) -> Intent:
        """Ask for something about one job or about none; what became of that in two seconds.

        Raises
        ------
        UnknownJob, NotAllowedNow
            There is no such job, it has ended, or the controller has refused it.
        """
        if job_id is not None and (job := self.job(job_id)).state in TERMINAL:
            raise NotAllowedNow(f"job {job_id} has already {_past(job.state)}")
        (intent,) = self._intend(kind, [job_id], value)
        if intent.error:
            raise NotAllowedNow(intent.error)
        return intent

    def _intend(self, kind: IntentKind, job_ids: Sequence[int | None], value: Any) -> list[Intent]:
        numbers = self.store.intend(kind, job_ids, value)
        with self.watch() as watch:
            self.wake("intent")
            deadline = time.monotonic() + _APPLY
            while True:
                intents = [self.store.intent(number) for number in numbers]
                open_ones = [intent for intent in intents if intent.done is None]
                if not open_ones or time.monotonic() > deadline:
                    return intents
                watch.wait(0.1)

    def watch(self) -> Watch:
        """A doorbell that rings after each change."""
        return Watch(self.home, autostart=may_autostart(self.settings))

    def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Block until a job has ended.

        Raises
        ------
        TimeoutError
            It has not ended in ``timeout`` seconds; it goes on.
        """
        job = self.job(job_id)
        if job.state in TERMINAL:
            return job
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.watch() as watch:
            while True:
                job = self.job(job_id)
                if job.state in TERMINAL:
                    return job
                left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"job {job_id} is still {job.state}; it goes on")
                watch.wait(left)

    def close(self) -> None:
        """Close the connection to the store. The next ``default_client()`` is another one."""
        with _clients_lock:
            for key in [key for key, client in _clients.items() if client is self]:
                del _clients[key]
        self.store.close()


_SOON = 64 << 20
"""Bytes from which on a payload may be flushed later, if it asks for that."""


def _size(content: bytes | Sequence[Any]) -> int:
    pieces = [content] if isinstance(content, bytes) else list[Any](content)
    return sum(memoryview(piece).nbytes for piece in pieces)


def _write(path: Path, content: bytes | Sequence[Any], *, flush: bool) -> None:
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb") as file:
        for piece in [content] if isinstance(content, bytes) else list[Any](content):
            file.write(piece)
        if flush:
            file.flush()
            os.fsync(handle)


def _store_large(folder: Path, payload: Payload) -> None:
    flush = payload.flush or sum(large.size for large in payload.large.values()) < _SOON
    for name, large in payload.large.items():
        large.store(str(folder / name), flush=flush)


def _shown(text: str) -> str:
    """Text for people: names of files that are not UTF-8 keep their place with a mark."""
    return os.fsencode(text).decode("utf-8", "replace") if not text.isascii() else text


def _shown_origin(origin: Origin) -> Origin:
    return replace(origin, path=_shown(origin.path), session=_shown(origin.session))


def _past(state: JobState) -> str:
    return "been cancelled" if state is JobState.CANCELLED else str(state)


def _user() -> str:
    # in a container everybody has the same account, and one person is one owner by REST and here
    if name := os.environ.get("JUPYTERHUB_USER"):
        return name
    names = tuple(os.environ.get(name) for name in _LOGIN_NAMES)
    return _account(os.getuid() if hasattr(os, "getuid") else -1, names)


_LOGIN_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""What ``getpass`` goes by before it reads the list of accounts."""


@lru_cache(maxsize=8)
def _account(uid: int, _names: tuple[str | None, ...]) -> str:
    """The account's name, looked up once: that reads a file, or asks a directory service."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{uid}" if uid >= 0 else "?"


_clients: dict[tuple[int, str], LocalClient] = {}
_clients_lock = threading.Lock()


def default_client() -> LocalClient:
    """The client of ``GPUQUEUE_HOME`` or this host's own state directory, one per process."""
    home = find_home()
    # a database connection does not survive a fork
    key = (os.getpid(), str(home.root))
    with _clients_lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = LocalClient(home, on_wait=_tell)
        return client


def _tell(sentence: str) -> None:
    print(f"gpuqueue: {sentence}", file=sys.stderr, flush=True)
