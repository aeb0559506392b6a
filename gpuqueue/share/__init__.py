"""How a share is enforced and proven. Each mechanism has a module or a package of its own.

``mechanism.py`` has the protocol that they follow and the words for what a job gets, ``ladder.py``
picks what works here. `ladder_for` and `environment` are what a controller needs, `demanded` and
`refusal` what it asks before a start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuqueue.model import Gpu, Placement
from gpuqueue.share.capping import MemoryCap
from gpuqueue.share.cumask import CuMask
from gpuqueue.share.frameworks import FrameworkSettings
from gpuqueue.share.ladder import Ladder, Outcome
from gpuqueue.share.mechanism import (
    Bound,
    Effect,
    Mechanism,
    Probe,
    Standing,
    Subject,
    bound_of,
)
from gpuqueue.share.memcap import LEDGER
from gpuqueue.share.mps import Mps
from gpuqueue.share.require import demanded, refusal

__all__ = [
    "Bound",
    "CuMask",
    "Effect",
    "FrameworkSettings",
    "Ladder",
    "Mechanism",
    "MemoryCap",
    "Mps",
    "Outcome",
    "Probe",
    "Standing",
    "Subject",
    "bound_of",
    "demanded",
    "environment",
    "ladder_for",
    "memory_ladder",
    "refusal",
]


def ladder_for(gpus: Sequence[Gpu], folder: Path, base: Mapping[str, str] | None = None) -> Ladder:
    """What can hold jobs to their share of these GPUs, compute and memory.

    Nothing is tried yet: `Ladder.probes` does that, once, and may take seconds.

    Parameters
    ----------
    gpus
        Those that jobs may have parts of, of one maker. Pretend ones, and those of makers for
        which there is no mechanism, leave advice.
    folder
        Where to keep the memory cap's library and what was proven.
    base
        The environment for trials and daemons; this process's where it is None.
    """
    advice = FrameworkSettings()
    # a pretend GPU with a name that a driver could have given is tried as a real one
    real = [gpu for gpu in gpus if not gpu.fake or gpu.uuid.startswith("GPU-")]
    nvidia = [gpu.uuid for gpu in real if gpu.vendor == "nvidia"]
    if nvidia:
        # MPS limits memory only where the memory cap does not, so it has to know of it
        return Ladder([MemoryCap(folder, nvidia[0], base), Mps(nvidia, folder, base), advice])
    if not any(gpu.vendor == "amd" for gpu in gpus):
        return Ladder([advice])
    amd = [gpu.uuid for gpu in real if gpu.vendor == "amd"]
    caps = [MemoryCap(folder, amd[0], base, "amd")] if amd else []
    return Ladder([*caps, CuMask(folder), advice])


def memory_ladder(folder: Path, gpu: str = "", base: Mapping[str, str] | None = None) -> Ladder:
    """What can hold jobs to their device memory.

    Parameters
    ----------
    folder
        Where to keep the memory cap's library.
    gpu
        UUID of a real GPU to try it on; empty where there is none, which leaves advice.
    base
        The environment for that trial; this process's where it is None.
    """
    advice = FrameworkSettings()
    return Ladder([MemoryCap(folder, gpu, base), advice] if gpu else [advice])


def environment(
    placement: Placement,
    job_dir: Path,
    *,
    ladder: Ladder,
    totals: Mapping[str, int | None],
    base: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
    there: bool = False,
) -> Outcome:
    """What a job that is placed starts with, over its own environment, and how far that holds it.

    A process that is there before its job, such as a spare kernel, can take on the ledger's
    variable later, but not ``LD_PRELOAD``: start it with that one. The library looks for its ledger
    at the first call of CUDA.

    Parameters
    ----------
    placement
        Where the job runs.
    job_dir
        Directory of this start of the job.
    ladder
        What `memory_ladder` has made, once.
    totals
        Bytes of memory of each GPU by its UUID.
    base
        The job's environment. A job that was submitted from inside another may bring that one's
        ledger along; it is let go of here.
    versions
        Versions of frameworks in the job's own Python, where known.
    there
        Its process is there already, and takes on what it is told before CUDA begins in it.
    """
    bound = bound_of(placement, job_dir, totals=totals, base=base, versions=versions, there=there)
    outcome = ladder.start(bound)
    if LEDGER in base and LEDGER not in outcome.environment:
        outcome = replace(outcome, environment={LEDGER: "", **outcome.environment})
    return replace(outcome, whole=all(grant.whole for grant in placement.grants))
