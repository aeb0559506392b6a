"""Share the GPUs of one machine between notebooks, scripts and coding agents.

>>> import gpuqueue
>>> job = gpuqueue.submit(["python", "train.py", "--lr", "0.1"])  # doctest: +SKIP
>>> job.wait()  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuqueue.about import __version__

# Names are imported when first used, so that `import gpuqueue` and the processes that only need
# one small room of it start quickly.
_HOMES = {
    "DoesNotFit": "gpuqueue.errors",
    "GpuExecutor": "gpuqueue.client.executor",
    "GpuqueueError": "gpuqueue.errors",
    "InvalidRequest": "gpuqueue.errors",
    "Job": "gpuqueue.client",
    "JobCancelled": "gpuqueue.errors",
    "JobFailed": "gpuqueue.errors",
    "JobLost": "gpuqueue.errors",
    "NoShare": "gpuqueue.errors",
    "attach": "gpuqueue.client",
    "config": "gpuqueue.client",
    "devices": "gpuqueue.client",
    "doctor": "gpuqueue.client.doctor",
    "free": "gpuqueue.client",
    "job": "gpuqueue.client",
    "jobs": "gpuqueue.client",
    "map": "gpuqueue.client",
    "panel": "gpuqueue_widgets",
    "release": "gpuqueue.client",
    "resume": "gpuqueue.client",
    "status": "gpuqueue.client",
    "submit": "gpuqueue.client",
    "usage": "gpuqueue.client",
}

__all__ = [
    "DoesNotFit",
    "GpuExecutor",
    "GpuqueueError",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobLost",
    "NoShare",
    "__version__",
    "attach",
    "config",
    "devices",
    "doctor",
    "free",
    "job",
    "jobs",
    "load_ipython_extension",
    "map",
    "panel",
    "release",
    "resume",
    "status",
    "submit",
    "unload_ipython_extension",
    "usage",
]

if TYPE_CHECKING:
    from gpuqueue.client import (
        Job,
        attach,
        config,
        devices,
        free,
        job,
        jobs,
        map,  # noqa: A004
        release,
        resume,
        status,
        submit,
        usage,
    )
    from gpuqueue.client.doctor import doctor
    from gpuqueue.client.executor import GpuExecutor
    from gpuqueue.errors import (
        DoesNotFit,
        GpuqueueError,
        InvalidRequest,
        JobCancelled,
        JobFailed,
        JobLost,
        NoShare,
    )


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gpuqueue' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(ipython: Any) -> None:
    """Make ``%gpu`` and ``%%gpu`` available: ``%load_ext gpuqueue``."""
    from gpuqueue.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take ``%gpu`` and ``%%gpu`` away again."""
    from gpuqueue.magics import unload

    unload(ipython)
