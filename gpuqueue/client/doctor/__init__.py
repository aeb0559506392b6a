"""What is in order here and what is not: each finding with its remedy.

Every check is done for real, as this user and without privileges: a job is started, a lock is
taken, a doorbell is rung.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from gpuqueue.client.doctor import environment, machine, state
from gpuqueue.client.doctor.findings import Check, Scene, bad, good
from gpuqueue.errors import GpuqueueError
from gpuqueue.paths import Home, find_home

__all__ = ["Check", "checks", "doctor"]


def checks(home: Home | None = None) -> list[Check]:
    """Look at everything once; takes about a second and changes nothing.

    Parameters
    ----------
    home
        The state directory; None is the one that ``find_home`` gives.
    """
    found: list[Check] = [_python()]
    scene = Scene(home)
    if home is None:
        try:
            scene.home = find_home()
        except GpuqueueError as error:
            found.append(bad("state directory", str(error), "set GPUQUEUE_HOME"))
    for name, look in _LOOKS:
        try:
            found += look(scene)
        except Exception as error:  # noqa: BLE001 - one check that breaks must not hide the others
            words = str(error) or type(error).__name__
            found.append(bad(name, words, "" if isinstance(error, GpuqueueError) else _REPORT))
    return found


def doctor() -> list[dict[str, Any]]:
    """What was checked here, and what to do about it; ``ok`` is None for a warning."""
    return [check.to_dict() for check in checks()]


_REPORT = "please report this as a fault of gpuqueue"


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    from gpuqueue.about import __version__

    words = f"Python {version} ({sys.executable}), gpuqueue {__version__}"
    return good("python", words)


_LOOKS: tuple[tuple[str, Callable[[Scene], Iterable[Check]]], ...] = (
    ("settings", state.settings),
    ("state directory", state.state),
    ("database", state.database),
    ("controller", state.controller),
    ("doorbell", state.doorbell),
    ("gpus", machine.gpus),
    ("shares", machine.shares),
    ("moving GPU memory", machine.frozen_memory),
    ("runner", machine.runner),
    ("ipykernel", environment.kernels),
    ("server extension", environment.jupyter),
    ("ipython extension", environment.ipython),
    ("privileges", machine.privileges),
)
