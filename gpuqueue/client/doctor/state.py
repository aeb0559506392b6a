"""Checks of the state directory: its settings, its database, its controller."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from gpuqueue.client.doctor.findings import Check, Scene, bad, good, warn
from gpuqueue.control.lead import lead_of
from gpuqueue.paths import file_system_type, find_home
from gpuqueue.settings import load_settings
from gpuqueue.store import RESCUE, Store

__all__ = ["controller", "database", "doorbell", "settings", "state"]

_LITTLE_SPACE = 1 << 30
_NO_SPACE = 64 << 20
_FEW_FILES = 1000
_DAY = 86400


def settings(scene: Scene) -> Iterable[Check]:
    """The file of settings can be read."""
    if scene.home is None:
        return
    path = scene.home.config
    scene.settings = load_settings(path)
    words = f"{path} is understood" if path.exists() else "no config.toml; the defaults hold"
    yield good("settings", words)


def state(scene: Scene) -> Iterable[Check]:
    """The state directory is private, local and has room."""
    if scene.home is None:
        return
    root = scene.home.root
    find_home(root)  # rights, network file systems, locks
    with tempfile.TemporaryFile(dir=root) as probe:
        probe.write(b"x" * 4096)
        probe.flush()
        os.fsync(probe.fileno())
    kind = file_system_type(root) or "local disk"
    yield good("state directory", f"{root} ({kind}) is yours, writable and can be locked")
    free = shutil.disk_usage(root).free
    from gpuqueue.units import format_bytes

    ok = False if free < _NO_SPACE else None if free < _LITTLE_SPACE else True
    space = f"{format_bytes(free)} free"
    fix = "" if ok else f"free some space on the disk of {root}"
    if hasattr(os, "statvfs"):
        info = os.statvfs(root)
        if info.f_files and info.f_favail < _FEW_FILES:
            ok, fix = None if ok else ok, f"remove files on the disk of {root}"
            space += f", and room for only {info.f_favail} more files"
    yield Check("disk space", ok, space, fix)


def database(scene: Scene) -> Iterable[Check]:
    """The database opens and its job directories are there."""
    if scene.home is None:
        return
    from gpuqueue.store.schema import VERSION

    store = Store(scene.home.database, patience=2.0)
    try:
        store.verify()
        counts = store.counts()
        repair = store.fact(RESCUE)
    finally:
        store.close()
    if repair and (scene.home.root / repair["aside"]).exists():
        aside = shlex.quote(str(scene.home.root / repair["aside"]))
        fix = f"when you need the old files no more: rm {aside}*"
        yield warn("database repair", repair["words"], fix)
    total = sum(counts.values())
    yield good("database", f"opens, schema version {VERSION}, {total} jobs")
    jobs = scene.home.jobs
    if total and not jobs.is_dir():
        yield bad("job directories", f"{jobs} is gone", f"mkdir -m 700 {shlex.quote(str(jobs))}")
    elif jobs.is_dir() and not os.access(jobs, os.W_OK | os.X_OK):
        yield bad(
            "job directories",
            f"{jobs} cannot be written",
            f"chmod u+rwx {shlex.quote(str(jobs))}",
        )
    else:
        yield from _leftovers(jobs)


def _leftovers(jobs: Path) -> Iterable[Check]:
    old = []
    for path in jobs.glob(".new-*") if jobs.is_dir() else ():
        try:
            if time.time() - path.stat().st_mtime > _DAY:
                old.append(path)
        except OSError:
            continue
    if old:
        yield warn(
            "job directories",
            f"{len(old)} left by submits that were cut off more than a day ago",
            f"rm -r {shlex.quote(str(jobs))}/.new-*",
        )
    else:
        yield good("job directories", f"{jobs}, nothing left over")


def controller(scene: Scene) -> Iterable[Check]:
    """Who leads, or whether somebody will."""
    if scene.home is None:
        return
    from gpuqueue.about import __version__
    from gpuqueue.run.wake import listened_to

    store = Store(scene.home.database, patience=2.0)
    try:
        lead = lead_of(store)
        live = len(store.live())
    finally:
        store.close()
    if lead is None:
        starts = scene.settings.autostart and os.environ.get("GPUQUEUE_AUTOSTART") != "0"
        if starts:
            yield good("controller", "none runs now; the next submit starts one")
        else:
            words = f"none runs, {live} jobs wait or run, and starting one is turned off"
            yield warn("controller", words, "jupyter gpuqueue serve")
        return
    who = f"{lead['kind']}, pid {lead['pid']}, version {lead['version']}"
    if lead["version"] != __version__:
        fix = "end it (jupyter gpuqueue stop, or restart that Jupyter server); jobs go on"
        yield warn("controller", f"{who}, while this is {__version__}", fix)
    elif os.name == "posix" and not listened_to(scene.home.wake):
        words = f"{who}, does not listen at {scene.home.wake}"
        yield bad("controller", words, f"see {scene.home.log}, then end that process")
    else:
        yield good("controller", who)


def doorbell(scene: Scene) -> Iterable[Check]:
    """Named pipes work."""
    if scene.home is None:
        return
    from gpuqueue.run.wake import Doorbell, ring

    path = scene.home.root / f".doctor-{os.getpid()}.bell"
    bell = Doorbell(path)
    try:
        if bell.fileno() < 0:
            yield warn("doorbell", "no named pipes here; changes are seen once a second")
        elif ring(path, "doctor") and bell.wait(1.0) == ["doctor"]:
            yield good("doorbell", "named pipes work; changes are seen at once")
        else:
            yield bad("doorbell", f"a named pipe in {scene.home.root} does not work", _MOVE)
    finally:
        bell.close(remove=True)


_MOVE = "set GPUQUEUE_HOME to a directory on a local disk"
