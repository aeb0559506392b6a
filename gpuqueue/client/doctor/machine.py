"""Checks of the machine: its GPUs, what holds jobs to shares of them, and that a job can start."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from gpuqueue.client.doctor.findings import Check, Scene, bad, good, warn
from gpuqueue.control.machine import managed_gpus, policy_of
from gpuqueue.paths import Home

__all__ = ["frozen_memory", "gpus", "privileges", "runner", "shares"]

_PATIENCE = 10.0


def gpus(scene: Scene) -> Iterable[Check]:
    """The GPUs that the queue uses, and its slots."""
    from gpuqueue.gpus import detect
    from gpuqueue.units import format_bytes

    driver = _driver()
    devices = detect(scene.settings.fake_gpus)
    try:
        found, problem = devices.gpus(), devices.problem
    finally:
        devices.close()
    if not any(gpu.fake for gpu in found):
        words = f"NVIDIA driver {driver}" if driver else "no NVIDIA driver is loaded"
        yield good("driver", words)
    managed = managed_gpus(scene.settings, found)
    scene.gpus = tuple(managed)
    if managed:
        names = ", ".join(f"{g.index}: {g.name} {format_bytes(g.memory)}" for g in managed)
        words = f"{len(managed)} in use ({names})"
        if problem:
            yield warn("gpus", f"{words}; {problem}", "see docs/support.md")
        else:
            yield good("gpus", words)
    elif found:
        words = f"the setting gpus = {list(scene.settings.gpus)} leaves none of {len(found)}"
        yield bad("gpus", words, "jupyter gpuqueue config --edit")
    else:
        # a driver without GPUs is a fault; no driver is a machine for work on its processors
        verdict = bad if driver else warn
        yield verdict("gpus", problem or "none", "see docs/support.md")
    slots = policy_of(scene.settings, found).slots
    yield good("slots", f"{slots} on this machine")


def shares(scene: Scene) -> Iterable[Check]:
    """What jobs with a part of a GPU are held to; `jupyter gpuqueue cards` has more of it."""
    from gpuqueue.client.cards import cards_of

    if scene.home is None:
        return
    for card in cards_of(scene.gpus, scene.home):
        words = "; ".join(
            f"{line.what} {line.standing}"
            f"{f' by {line.by}' if line.by else ''}{f' ({line.figure})' if line.figure else ''}"
            for line in card.lines
        )
        sentence = f"of GPU {card.gpu.index}: {words}"
        why = " ".join(dict.fromkeys(line.better for line in card.lines if line.better))
        if card.gpu.fake or not why:
            yield good("shares", sentence)
        else:
            yield warn("shares", f"{sentence}. {why}", "see docs/shares.md")


def frozen_memory(scene: Scene) -> Iterable[Check]:
    """Whether the GPU memory of jobs that free mode freezes can be moved to the host."""
    from gpuqueue.client.moving import moving

    found = moving(scene.home) if scene.home is not None else None
    if found is None:
        return
    sentence = f"of frozen jobs to the host: {found.words}"
    if found.standing == "failed":
        yield warn("moving GPU memory", sentence, "see docs/free.md")
    else:
        yield good("moving GPU memory", sentence)


def _driver() -> str:
    """Version of the NVIDIA driver that is loaded; empty if none is."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    words = text.split("\n", 1)[0].split()
    return next(
        (word for word in words if word[:1].isdigit() and "." in word), "of unknown version"
    )


def runner(scene: Scene) -> Iterable[Check]:
    """Have the launcher run a job that does nothing, with no controller and no queue."""
    if scene.home is None:
        return
    from gpuqueue.control.launch import Launcher
    from gpuqueue.run.files import SPEC, read_exit, write_json

    with tempfile.TemporaryDirectory(dir=scene.home.root, prefix=".doctor-") as folder:
        job, attempt = Path(folder), Path(folder) / "1"
        argv = [sys.executable, "-I", "-S", "-c", "pass"]
        write_json(job / SPEC, {"program": argv[0], "argv": argv, "cwd": folder, "env": {}})
        launcher = Launcher(Home(scene.home.root))
        began = time.monotonic()
        try:
            launcher.order(
                {
                    "job": 0,
                    "job_dir": str(job),
                    "attempt_dir": str(attempt),
                    "env": {},
                    "wake": str(job / "nobody"),
                    "grace": 1.0,
                    "log_limit": 4096,
                }
            )
            while (record := read_exit(attempt)) is None:
                if time.monotonic() - began > _PATIENCE:
                    break
                time.sleep(0.005)
        finally:
            launcher.close()
    took = f"{(time.monotonic() - began) * 1000:.0f} ms"
    if record is None:
        yield bad("runner", f"a trial job left no record in {_PATIENCE:.0f} s", _SEE_LOG)
    elif record["returncode"] != 0:
        words = record["reason"] or f"exit code {record['returncode']}"
        yield bad("runner", f"a trial job failed: {words}", _SEE_LOG)
    else:
        yield good("runner", f"a trial job was started, supervised and recorded in {took}")


_SEE_LOG = "see controller.log in the state directory"


def privileges(_: Scene) -> Iterable[Check]:
    """Who did all of this."""
    if not hasattr(os, "geteuid"):
        return
    if os.geteuid():
        words = f"all of this was done as user {os.geteuid()}; no root needed"
    else:
        words = "this is root, which gpuqueue has no need to be"
    yield good("privileges", words)
