"""The device memory of jobs: the most that each was seen to use, and what to do when it ran out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuqueue.control.machine import Machine, managed_gpus, policy_of
from gpuqueue.control.outcome import Outcome
from gpuqueue.control.turn import Turn
from gpuqueue.errors import GpuqueueError
from gpuqueue.model import ACTIVE, Job, JobKind, JobState, Preset
from gpuqueue.run.devicememory import log_tells_out_of_memory, tells_out_of_memory
from gpuqueue.run.files import LOG, OUTCOME, read_json
from gpuqueue.settings import Settings
from gpuqueue.share import memcap
from gpuqueue.units import format_bytes

__all__ = ["ASTRAY", "EXCESS", "astray", "highest", "note_excess", "once_more", "take_note"]

EXCESS = "excess"
"""The event of a job that was first seen to hold more device memory than it asked for."""
ASTRAY = "astray"
"""The event of a job that was first seen to use a GPU that it was not given."""
_STEP = 1.02
"""A running job's peak is recorded when it has grown by this: once a job, not once a second."""


def take_note(turn: Turn, machine: Machine, told: set[tuple[int, int]]) -> None:
    """Keep with running jobs the most that their processes were seen to hold on one GPU.

    Those that use a GPU which they were not given are named once; ``told`` has the attempts that
    have been. A job can take itself there: ``CUDA_VISIBLE_DEVICES`` is advice.
    """
    for job_id, by_gpu in (machine.used or {}).items():
        job = turn.jobs.get(job_id)
        if job is None or job.state not in ACTIVE or job.placement is None:
            continue
        wrong = astray(job, machine)
        if wrong and (job.id, job.attempt) not in told:
            told.add((job.id, job.attempt))
            turn.notes.append((job.id, ASTRAY, {"gpus": list(wrong)}))
        seen = max((by_gpu.get(gpu, 0) for gpu in job.placement.gpus), default=0)
        crosses = not job.excess and _exceeds(job, seen)
        if seen > (job.peak or 0) * _STEP or crosses:
            turn.know(job_id, peak=seen)
            note_excess(turn, job, seen)


def astray(job: Job, machine: Machine) -> tuple[int, ...]:
    """Indices of the GPUs on which a job's processes are although it was not given them."""
    on = (machine.used or {}).get(job.id, {})
    given = job.placement.gpus if job.placement else ()
    return tuple(gpu.index for gpu in machine.gpus if gpu.uuid in on and gpu.uuid not in given)


def _exceeds(job: Job, peak: int) -> bool:
    asked = job.wants.memory
    return asked is not None and peak > asked


def note_excess(turn: Turn, job: Job, peak: int) -> None:
    """Say once of a job that it uses more than it asked for; ``job`` is as it was known before."""
    if _exceeds(job, peak) and not job.excess:
        turn.notes.append((job.id, EXCESS, {"memory": job.wants.memory, "peak": peak}))


def highest(job: Job, folder: Path, machine: Machine) -> int | None:
    """A job's peak when it has ended: the largest of all that was measured, and what it told."""
    if not job.uses_gpu:
        return job.peak
    by_gpu: Mapping[str, int] = (machine.used or {}).get(job.id, {})
    seen = [by_gpu.get(gpu, 0) for gpu in (job.placement.gpus if job.placement else ())]
    known = [
        size
        for size in (job.peak, *seen, *_counted(folder), _told(folder, job).get("peak"))
        if size
    ]
    return max(known, default=None)


def _counted(folder: Path) -> list[int]:
    """What a job's ledger says, where it had a cap: exact, without what the driver itself takes."""
    try:
        return [usage.peak for usage in memcap.read(folder)]
    except GpuqueueError:
        return []


def _told(folder: Path, job: Job) -> dict[str, Any]:
    """What the payload told of itself; a command tells nothing."""
    if job.kind is JobKind.SCRIPT:
        return {}
    told = read_json(folder / OUTCOME)
    return told if isinstance(told, dict) else {}


def once_more(
    job: Job, outcome: Outcome, folder: Path, machine: Machine, settings: Settings
) -> dict[str, Any]:
    """The changes that run a job again which ran out of the memory learned for it; else nothing.

    It gets all memory that one of the GPUs has, so that a second failure would be no fault of the
    queue's guess: the last try takes the most there is (Tovar et al. 2018, "A Job Sizing Strategy
    for High-Throughput Scientific Workflows"). Only where it shares a GPU on a learned figure,
    and only once.
    """
    if outcome.state is not JobState.FAILED or outcome.again or not outcome.returncode:
        return {}
    if job.asked or job.wants.memory is not None or job.lacked is not None:
        return {}
    if job.learned_memory is None or job.placement is None or not job.placement.grants:
        return {}
    had = job.placement.grants[0]
    most = _most(job, machine, settings)
    if had.whole or had.memory >= most or not _ran_out(job, folder):
        return {}
    return {
        "lacked": had.memory,
        "learned_memory": most,
        "reason": f"ran out of device memory with the {format_bytes(had.memory)} that earlier "
        "runs had taught; it runs once more, with all of a GPU's memory",
    }


def _most(job: Job, machine: Machine, settings: Settings) -> int:
    """The memory of the GPU that has most for it, in bytes, less what others hold there."""
    gpus = managed_gpus(settings, machine.gpus)
    if job.request.preset is Preset.LIGHT:
        shared = policy_of(settings, machine.gpus).shared_gpu
        gpus = tuple(gpu for gpu in gpus if gpu.uuid == shared)
    outside = machine.outside or {}
    return max((gpu.memory or 0) - outside.get(gpu.uuid, (0, ()))[0] for gpu in gpus)


def _ran_out(job: Job, folder: Path) -> bool:
    if job.kind is JobKind.SCRIPT:
        return log_tells_out_of_memory(str(folder / LOG))
    told = _told(folder, job)
    if job.kind is JobKind.NOTEBOOK:  # it says how its cell failed
        return tells_out_of_memory(told.get("reason", ""))
    return bool(told.get("out_of_memory"))
