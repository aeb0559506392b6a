"""What is in order here and what is not: each finding with its remedy.

Every check is done for real, as this user and without privileges: a job is started, a lock is
taken, a doorbell is rung.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuqueue.control.lead import lead_of
from gpuqueue.control.machine import managed_gpus, policy_of
from gpuqueue.errors import GpuqueueError
from gpuqueue.paths import Home, file_system_type, find_home
from gpuqueue.settings import Settings, load_settings
from gpuqueue.store import RESCUE, Store

__all__ = ["Check", "checks", "doctor"]

_LITTLE_SPACE = 1 << 30
_NO_SPACE = 64 << 20
_FEW_FILES = 1000
_DAY = 86400
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes
    ----------
    name
        What was looked at, in a word or two.
    ok
        True; False if something does not work; None for a warning.
    sentence, fix
        What was found, and what to do about it where that is needed.
    """

    name: str
    ok: bool | None
    sentence: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(slots=True)
class _Scene:
    """What earlier checks found and later ones need."""

    home: Home | None
    settings: Settings = field(default_factory=Settings)


def _good(name: str, sentence: str) -> Check:
    return Check(name=name, ok=True, sentence=sentence)


def _warn(name: str, sentence: str, fix: str = "") -> Check:
    return Check(name=name, ok=None, sentence=sentence, fix=fix)


def _bad(name: str, sentence: str, fix: str = "") -> Check:
    return Check(name=name, ok=False, sentence=sentence, fix=fix)


def checks(home: Home | None = None) -> list[Check]:
    """Look at everything once; takes about a second and changes nothing.

    Parameters
    ----------
    home
        The state directory; None is the one that ``find_home`` gives.
    """
    found: list[Check] = [_python()]
    scene = _Scene(home)
    if home is None:
        try:
            scene.home = find_home()
        except GpuqueueError as error:
            found.append(_bad("state directory", str(error), "set GPUQUEUE_HOME"))
    for name, look in _LOOKS:
        try:
            found += look(scene)
        except Exception as error:  # noqa: BLE001 - one check that breaks must not hide the others
            words = str(error) or type(error).__name__
            found.append(_bad(name, words, "" if isinstance(error, GpuqueueError) else _REPORT))
    return found


def doctor() -> list[dict[str, Any]]:
    """What was checked here, and what to do about it; ``ok`` is None for a warning."""
    return [check.to_dict() for check in checks()]


_REPORT = "please report this as a fault of gpuqueue"


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    from gpuqueue.about import __version__

    words = f"Python {version} ({sys.executable}), gpuqueue {__version__}"
    return _good("python", words)


# -- the state directory --------------------------------------------------------------------------


def _settings(scene: _Scene) -> Iterable[Check]:
    if scene.home is None:
        return
    path = scene.home.config
    scene.settings = load_settings(path)
    words = f"{path} is understood" if path.exists() else "no config.toml; the defaults hold"
    yield _good("settings", words)


def _state(scene: _Scene) -> Iterable[Check]:
    if scene.home is None:
        return
    root = scene.home.root
    find_home(root)  # rights, network file systems, locks
    with tempfile.TemporaryFile(dir=root) as probe:
        probe.write(b"x" * 4096)
        probe.flush()
        os.fsync(probe.fileno())
    kind = file_system_type(root) or "local disk"
    yield _good("state directory", f"{root} ({kind}) is yours, writable and can be locked")
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


def _database(scene: _Scene) -> Iterable[Check]:
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
        yield _warn("database repair", repair["words"], fix)
    total = sum(counts.values())
    yield _good("database", f"opens, schema version {VERSION}, {total} jobs")
    jobs = scene.home.jobs
    if total and not jobs.is_dir():
        yield _bad("job directories", f"{jobs} is gone", f"mkdir -m 700 {shlex.quote(str(jobs))}")
    elif jobs.is_dir() and not os.access(jobs, os.W_OK | os.X_OK):
        yield _bad(
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
        yield _warn(
            "job directories",
            f"{len(old)} left by submits that were cut off more than a day ago",
            f"rm -r {shlex.quote(str(jobs))}/.new-*",
        )
    else:
        yield _good("job directories", f"{jobs}, nothing left over")


def _controller(scene: _Scene) -> Iterable[Check]:
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
            yield _good("controller", "none runs now; the next submit starts one")
        else:
            words = f"none runs, {live} jobs wait or run, and starting one is turned off"
            yield _warn("controller", words, "jupyter gpuqueue serve")
        return
    who = f"{lead['kind']}, pid {lead['pid']}, version {lead['version']}"
    if lead["version"] != __version__:
        fix = "end it (jupyter gpuqueue stop, or restart that Jupyter server); jobs go on"
        yield _warn("controller", f"{who}, while this is {__version__}", fix)
    elif os.name == "posix" and not listened_to(scene.home.wake):
        words = f"{who}, does not listen at {scene.home.wake}"
        yield _bad("controller", words, f"see {scene.home.log}, then end that process")
    else:
        yield _good("controller", who)


def _doorbell(scene: _Scene) -> Iterable[Check]:
    if scene.home is None:
        return
    from gpuqueue.run.wake import Doorbell, ring

    path = scene.home.root / f".doctor-{os.getpid()}.bell"
    bell = Doorbell(path)
    try:
        if bell.fileno() < 0:
            yield _warn("doorbell", "no named pipes here; changes are seen once a second")
        elif ring(path, "doctor") and bell.wait(1.0) == ["doctor"]:
            yield _good("doorbell", "named pipes work; changes are seen at once")
        else:
            yield _bad("doorbell", f"a named pipe in {scene.home.root} does not work", _MOVE)
    finally:
        bell.close(remove=True)


_MOVE = "set GPUQUEUE_HOME to a directory on a local disk"


# -- the machine ----------------------------------------------------------------------------------


def _gpus(scene: _Scene) -> Iterable[Check]:
    from gpuqueue.gpus import detect
    from gpuqueue.units import format_bytes

    driver = _driver()
    devices = detect(scene.settings.fake_gpus)
    try:
        gpus, problem = devices.gpus(), devices.problem
    finally:
        devices.close()
    if not any(gpu.fake for gpu in gpus):
        words = f"NVIDIA driver {driver}" if driver else "no NVIDIA driver is loaded"
        yield _good("driver", words)
    managed = managed_gpus(scene.settings, gpus)
    if managed:
        names = ", ".join(f"{g.index}: {g.name} {format_bytes(g.memory)}" for g in managed)
        words = f"{len(managed)} in use ({names})"
        if problem:
            yield _warn("gpus", f"{words}; {problem}", "see docs/support.md")
        else:
            yield _good("gpus", words)
    elif gpus:
        words = f"the setting gpus = {list(scene.settings.gpus)} leaves none of {len(gpus)}"
        yield _bad("gpus", words, "jupyter gpuqueue config --edit")
    else:
        # a driver without GPUs is a fault; no driver is a machine for work on its processors
        verdict = _bad if driver else _warn
        yield verdict("gpus", problem or "none", "see docs/support.md")
    slots = policy_of(scene.settings, gpus).slots
    yield _good("slots", f"{slots} on this machine")


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


def _runner(scene: _Scene) -> Iterable[Check]:
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
        yield _bad("runner", f"a trial job left no record in {_PATIENCE:.0f} s", _SEE_LOG)
    elif record["returncode"] != 0:
        words = record["reason"] or f"exit code {record['returncode']}"
        yield _bad("runner", f"a trial job failed: {words}", _SEE_LOG)
    else:
        yield _good("runner", f"a trial job was started, supervised and recorded in {took}")


_SEE_LOG = "see controller.log in the state directory"


def _privileges(_: _Scene) -> Iterable[Check]:
    if not hasattr(os, "geteuid"):
        return
    if os.geteuid():
        words = f"all of this was done as user {os.geteuid()}; no root needed"
    else:
        words = "this is root, which gpuqueue has no need to be"
    yield _good("privileges", words)


# -- this Python environment ----------------------------------------------------------------------


def _kernels(_: _Scene) -> Iterable[Check]:
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    pip = f"{shlex.quote(sys.executable)} -m pip install ipykernel"
    if find_spec("ipykernel") is None:
        yield _bad("ipykernel", "not here; %%gpu cells cannot run as jobs", pip)
        return
    try:
        yield _good("ipykernel", f"version {version('ipykernel')}")
    except PackageNotFoundError:
        yield _good("ipykernel", "is importable")


def _enabled(folders: Iterable[Path], names: Iterable[str], read: Callable[[Any], Any]) -> Any:
    """What the first file of configuration that has an opinion says, and where."""
    for folder in folders:
        for name in names:
            for path in sorted(folder.glob(name), reverse=True):
                try:
                    opinion = read(json.loads(path.read_text(encoding="utf-8")))
                except (OSError, ValueError, LookupError, AttributeError, TypeError):
                    continue
                if opinion is not None:
                    return opinion, path
    return None, None


def _jupyter(_: _Scene) -> Iterable[Check]:
    from jupyter_core.paths import jupyter_config_path

    enabled, path = _enabled(
        [Path(folder) for folder in jupyter_config_path()],
        ["jupyter_server_config.json", "jupyter_server_config.d/*.json"],
        lambda data: (
            data.get("ServerApp", {}).get("jpserver_extensions", {}).get("gpuqueue_jupyter")
        ),
    )
    if enabled:
        yield _good("server extension", f"enabled by {path}")
    else:
        words = "not enabled" if path is None else f"turned off by {path}"
        fix = "jupyter server extension enable gpuqueue_jupyter"
        yield _warn("server extension", f"{words}; Jupyter servers here do without it", fix)


def _ipython(_: _Scene) -> Iterable[Check]:
    from IPython.paths import get_ipython_dir

    folders = [
        Path(get_ipython_dir()) / "profile_default",
        Path(sys.prefix) / "etc" / "ipython",
        Path("/usr/local/etc/ipython"),
        Path("/etc/ipython"),
    ]

    def listed(data: Any) -> bool | None:
        for application in ("IPKernelApp", "InteractiveShellApp"):
            if "gpuqueue" in data.get(application, {}).get("extensions", ()):
                return True
        return None

    found, path = _enabled(folders, ["ipython_kernel_config.json", "ipython_config.json"], listed)
    if found:
        yield _good("ipython extension", f"loaded in every kernel, by {path}")
    else:
        words = "kernels do not load it by themselves"
        yield _warn("ipython extension", words, "write %load_ext gpuqueue in the notebook")


_LOOKS: tuple[tuple[str, Callable[[_Scene], Iterable[Check]]], ...] = (
    ("settings", _settings),
    ("state directory", _state),
    ("database", _database),
    ("controller", _controller),
    ("doorbell", _doorbell),
    ("gpus", _gpus),
    ("runner", _runner),
    ("ipykernel", _kernels),
    ("server extension", _jupyter),
    ("ipython extension", _ipython),
    ("privileges", _privileges),
)
