"""GPUs, queue and recent jobs at one moment, as data and for people."""

from __future__ import annotations

import html
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuqueue.client.freed import mode_line, mode_told, parked_of
from gpuqueue.client.local import LocalClient
from gpuqueue.client.progress import latest_note, note_in_words, slow_save
from gpuqueue.control.crowding import FACT as CROWDED_FACT
from gpuqueue.control.crowding import sentences
from gpuqueue.control.devicememory import astray
from gpuqueue.control.machine import Machine, managed_gpus, policy_of
from gpuqueue.model import ACTIVE, Gpu, Job, JobState, Mode
from gpuqueue.plan import Wait
from gpuqueue.run.parked import Parked
from gpuqueue.store import job_to_dict, plain
from gpuqueue.units import format_bytes, format_duration, format_share

__all__ = ["SCHEMA", "Status", "render", "status_of", "wait_to_dict"]

SCHEMA = 1
"""Version of ``Status.to_dict``; a key is never removed without raising it."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the machine and the queue are doing at one moment.

    ``waits`` maps a waiting job's number to why it waits and until when, ``parked`` a frozen one's
    to what of its GPU memory is on the host, ``progress`` a running one's to how far it says it is.
    ``tips`` are sentences about what could be done better.
    """

    at: float
    lead: Mapping[str, Any] | None
    home: str
    machine: Machine
    managed: tuple[Gpu, ...]
    slots: int
    shared_gpu: str | None
    running: tuple[Job, ...]
    waiting: tuple[Job, ...]
    recent: tuple[Job, ...]
    waits: Mapping[int, Wait]
    settings: Mapping[str, Any]
    warning: str = ""
    mode: Mode = field(default_factory=Mode)
    parked: Mapping[int, Parked] = field(default_factory=dict)
    progress: Mapping[int, str] = field(default_factory=dict)
    tips: tuple[str, ...] = ()

    @property
    def slots_used(self) -> int:
        """Slots that running jobs take."""
        return sum(job.placement.slots for job in self.running if job.placement)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, schema 1."""
        return {
            "schema": SCHEMA,
            "at": self.at,
            "home": self.home,
            "lead": None
            if self.lead is None
            else {key: self.lead[key] for key in ("pid", "kind", "since", "version")},
            "mode": mode_told(self.mode, self.running, self.machine, self.parked),
            "problem": self.machine.problem,
            "warning": self.warning,
            "tips": list(self.tips),
            "slots": {"used": self.slots_used, "total": self.slots},
            "gpus": [self._gpu(gpu) for gpu in self.managed],
            "running": [job_to_dict(job) for job in self.running],
            "waiting": [self._waiting(job) for job in self.waiting],
            "recent": [job_to_dict(job) for job in self.recent],
            "settings": dict(self.settings),
        }

    def _gpu(self, gpu: Gpu) -> dict[str, Any]:
        readings = {reading.gpu: reading for reading in self.machine.readings}
        reading = readings.get(gpu.uuid)
        outside, holders = (self.machine.outside or {}).get(gpu.uuid, (0, ()))
        grants = [
            {
                "job": job.id,
                "tag": job.tag,
                **plain(grant),
                "lent": 0 if job.loan is None else job.loan.on(gpu.uuid),
                "used": (self.machine.used or {}).get(job.id, {}).get(gpu.uuid),
            }
            for job in self.running
            if job.placement
            for grant in job.placement.grants
            if grant.gpu == gpu.uuid
        ]
        told = {} if reading is None else plain(reading)
        told.pop("gpu", None)
        return {
            **plain(gpu),
            "shared": gpu.uuid == self.shared_gpu,
            "drained": gpu.index in self.settings.get("drained", ()),
            "grants": grants,
            "compute_promised": sum(grant["compute"] - grant["lent"] for grant in grants),
            "memory_promised": sum(grant["memory"] for grant in grants),
            "outside": outside,
            "outside_holders": list(holders),
            "reading": told or None,
        }

    def _waiting(self, job: Job) -> dict[str, Any]:
        return job_to_dict(job) | {"wait": wait_to_dict(self.waits.get(job.id))}

    def __str__(self) -> str:
        return render(self)

    def __repr__(self) -> str:
        return render(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(render(self))}</pre>"


def wait_to_dict(wait: Wait | None) -> dict[str, Any] | None:
    """Why a job waits, as plain data; None for one that does not."""
    if wait is None:
        return None
    return {
        "position": wait.position,
        "expected": wait.expected,
        "later_than": wait.later_than,
        "by": wait.by,
        "reason": str(wait.reason),
        "sentence": wait.sentence,
        "hint": wait.hint,
    }


def status_of(client: LocalClient, *, recent: int = 5) -> Status:
    """Look at everything once."""
    settings = client.settings
    machine = client.machine()
    live, plan = client.looked()
    managed = managed_gpus(settings, machine.gpus)
    policy = policy_of(settings, machine.gpus)
    waiting = sorted((job for job in live if job.state is JobState.QUEUED), key=lambda j: j.order)
    return Status(
        at=time.time(),
        lead=client.lead(),
        home=str(client.home.root),
        machine=machine,
        managed=managed,
        slots=policy.slots,
        shared_gpu=policy.shared_gpu,
        running=tuple(job for job in live if job.state in ACTIVE),
        waiting=tuple(waiting),
        recent=tuple(client.store.jobs(ended=True, limit=recent)),
        waits=plan.waits if waiting else {},
        settings=settings.as_dict(),
        warning=_warnings(client),
        mode=client.store.mode(),
        parked=parked_of(client.home, live),
        progress=_progress(client, live),
        tips=sentences(client.store.fact(CROWDED_FACT), managed, live),
    )


def _progress(client: LocalClient, live: Sequence[Job]) -> dict[int, str]:
    found = {}
    for job in live:
        if job.state in ACTIVE:
            far = note_in_words(latest_note(client, job))
            if words := "; ".join(filter(None, [far, slow_save(client, job, client.settings)])):
                found[job.id] = words
    return found


_FULL = 64 << 20
"""Bytes. The log of a job stops short of as much, see ``run/logfile.py``."""


def _warnings(client: LocalClient) -> str:
    return "; ".join(filter(None, [client.settings_warning, client.repaired(), _full(client)]))


def _full(client: LocalClient) -> str:
    disk = shutil.disk_usage(client.home.root)
    if disk.free > min(_FULL, disk.total // 20):
        return ""
    return (
        f"the disk of {client.home.root} is full ({format_bytes(disk.free)} left): nothing starts, "
        "and no end is recorded, until there is room; then all goes on by itself"
    )


_ASIDE = {JobState.FROZEN, JobState.EVICTING}


def _clock(at: float) -> str:
    return time.strftime("%H:%M", time.localtime(at))


def _gpu_line(status: Status, gpu: Gpu) -> str:
    view = status._gpu(gpu)  # noqa: SLF001 - one module's two ways to show the same
    name = f"GPU {gpu.index}  {gpu.name}"
    used = (view["reading"] or {}).get("memory_used")
    words = [f"{format_bytes(used)} of {format_bytes(gpu.memory)} used"]
    for grant in view["grants"]:
        part = "whole" if grant["whole"] else format_share(grant["compute"]) + " of its compute"
        if not grant["whole"] and not grant["compute"]:
            part = "memory only"
        memory = "" if grant["whole"] else f", {format_bytes(grant['memory'])}"
        if grant["used"] is not None:
            memory += f", uses {format_bytes(grant['used'])}"
        words.append(f"job {grant['job']} ({grant['tag']}: {part}{memory})")
    if not view["grants"]:
        words.append("free")
    if view["drained"]:
        words.append("takes no new jobs")
    if view["outside_holders"]:
        words.append("outside the queue: " + ", ".join(view["outside_holders"]))
    mark = "  (shared)" if len(view["grants"]) > 1 else ""
    return f"{name}{mark}  {'; '.join(words)}"


def _over(job: Job) -> str:
    if not job.excess:
        return ""
    asked = format_bytes(job.request.memory)
    return f", has used {format_bytes(job.peak)} of GPU memory, --mem was {asked}"


def _astray(job: Job, machine: Machine) -> str:
    wrong = ", ".join(str(index) for index in astray(job, machine))
    return f", uses GPU {wrong}, which it was not given" if wrong else ""


def render(status: Status) -> str:
    """The status as text for people."""
    lead = status.lead
    who = (
        f"{lead['kind']}, pid {lead['pid']}" if lead else "none running; the next submit starts one"
    )
    lines = [f"controller: {who}    slots: {status.slots_used}/{status.slots} used"]
    if free := mode_line(mode_told(status.mode, status.running, status.machine, status.parked)):
        lines.insert(0, free)
    if status.warning:
        lines.append(f"warning: {status.warning}")
    lines += [f"tip: {tip}" for tip in status.tips]
    lines += [_gpu_line(status, gpu) for gpu in status.managed]
    if not status.managed:
        lines.append(f"no GPUs{': ' + status.machine.problem if status.machine.problem else ''}")
    if status.running:
        lines.append("running")
        for job in status.running:
            ran = format_duration(job.ran(status.at)) if job.started else "starting"
            ran = f"{job.reason or job.state}; ran {ran}" if job.state in _ASIDE else ran
            if job.borrows and job.state is JobState.RUNNING and job.reason:
                ran += f"; {job.reason}"
            eta = f" of about {format_duration(job.request.eta)}" if job.request.eta else ""
            over = _over(job) + _astray(job, status.machine)
            lines.append(f"  {job.id:>5}  {job.tag:<20} {job.owner:<10} {ran}{eta}{over}")
            if job.id in status.progress:
                lines[-1] += f"; {status.progress[job.id]}"
    if status.waiting:
        lines.append("waiting")
        for job in status.waiting:
            wait = status.waits.get(job.id)
            when = ""
            if wait is not None and wait.expected is not None:
                left = format_duration(wait.expected - status.at)
                when = f"in {left} ({_clock(wait.expected)}): "
            lines.append(
                f"  {job.id:>5}  {job.tag:<20} {job.owner:<10} "
                f"{when}{wait.sentence if wait else 'about to start'}"
            )
    if status.recent:
        lines.append("recent")
        for job in status.recent:
            took = f" {format_duration(job.ran(status.at))}" if job.ended and job.started else ""
            why = f": {job.reason.splitlines()[0]}" if job.reason else ""
            lines.append(
                f"  {job.id:>5}  {job.tag:<20} {job.owner:<10} {job.state}{took}{why}{_over(job)}"
            )
    return "\n".join(lines)
