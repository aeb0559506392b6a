"""The client that works on the store of this host directly, with or without a controller."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuqueue.client.payload import Payload
from gpuqueue.client.request import Options, check_kind
from gpuqueue.client.staging import place, staged
from gpuqueue.client.watch import Watch
from gpuqueue.client.whose import origin_here, shown, shown_origin, user
from gpuqueue.control.evicting import saving
from gpuqueue.control.lead import ensure_lead, lead_of
from gpuqueue.control.machine import (
    Machine,
    idle_of,
    machine_of,
    managed_gpus,
    policy_of,
    snapshot_of,
    usage_of,
)
from gpuqueue.errors import DoesNotFit, GpuqueueError, NotAllowedNow
from gpuqueue.model import TERMINAL, Intent, IntentKind, Job, JobKind, JobState, Origin
from gpuqueue.paths import Home, find_home
from gpuqueue.plan import Plan, Wait, never_fits, plan, refusal
from gpuqueue.run.files import LOG, SPEC, read_json
from gpuqueue.settings import SettingsFile, may_autostart
from gpuqueue.store import RESCUE, Draft, Store

__all__ = ["LocalClient", "default_client"]

_APPLY = 2.0
_SAME = 2.0
_DAY = 86_400.0


class LocalClient:
    """Submit, ask and wait on one state directory. Safe to use from several threads."""

    def __init__(
        self, home: Home | None = None, *, on_wait: Callable[[str], None] | None = None
    ) -> None:
        self.home = home or find_home()
        self.store = Store(self.home.database, on_wait=on_wait)
        self._settings = SettingsFile(self.home.config)
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
        where = shown_origin(origin or origin_here())
        who = shown(owner or user())
        specs = [json.dumps(payload.spec()) for payload, _ in work]
        drafts = [
            Draft(
                kind=payload.kind,
                request=options.request,
                tag=shown(options.tag or payload.tag),
                owner=who,
                command=shown(payload.command),
                cwd=shown(payload.cwd),
                origin=where,
                spec=spec,
                key=options.key,
                retry_of=retry_of,
                to_front=options.to_front,
            )
            for (payload, options), spec in zip(work, specs, strict=True)
        ]
        with staged(self.home, [payload for payload, _ in work], specs) as folders:
            refused = heard = False
            try:
                jobs = self.store.submit(
                    drafts, lambda i, number: place(self.home, folders[i], number), flush=flush
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
            found = snapshot_of(
                jobs, parents, machine, settings, usage, mode=mode, idle=idle_of(self.store),
                saves=saving(self.home, jobs),
            )  # fmt: skip
            decision = plan(found, now)
            if all(start.job != trial.id for start in decision.starts):
                if kind is JobKind.KERNEL:
                    raise DoesNotFit("wait", refusal(decision, trial))
                wait = decision.waits.get(trial.id)
                why = wait.sentence if wait else "the machine is busy"
                raise DoesNotFit("wait", f"cannot start now: {why}")

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
        found = snapshot_of(
            live, parents, machine, settings, usage, mode=mode, idle=idle_of(self.store),
            saves=saving(self.home, live),
        )  # fmt: skip
        return plan(found, now)

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


def _past(state: JobState) -> str:
    return "been cancelled" if state is JobState.CANCELLED else str(state)


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
