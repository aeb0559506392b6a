"""Every knob, its default and its help; read from ``config.toml`` in the state directory.

All of it is optional: no file at all is a valid configuration. The file is read again when it
changes; one that cannot be understood leaves the settings as they were, with a warning.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from traitlets import Bool, Enum, Float, HasTraits, Int, List, TraitError, Unicode, Union, validate

from gpuqueue.errors import InvalidRequest
from gpuqueue.units import parse_bytes, parse_share

__all__ = [
    "SECRET",
    "Settings",
    "SettingsFile",
    "in_job",
    "load_settings",
    "may_autostart",
    "render_settings",
    "settings_from",
]


_SIZES = (
    "log_limit", "spare_memory", "cell_text_limit", "cell_result_limit",
    "cell_failed_result_limit", "auto_free_memory",
)  # fmt: skip

_bytes_of = lru_cache(maxsize=64)(parse_bytes)  # asked for at every start

SECRET = frozenset({"notify_urls"})
"""Settings whose values are for the controller alone."""

_LEAST = {"cell_result_limit": 16 << 20, "cell_failed_result_limit": 16 << 20}
"""Bytes. Variables up to this size are not told apart when a result is put in order."""


_DESKTOP = (
    "Xorg", "Xwayland", "gnome-*", "kwin*", "plasmashell", "mutter*", "cinnamon*", "xfwm4",
    "compiz", "sway", "Hyprland", "weston", "gdm*", "sddm*", "nautilus", "dolphin",
    "firefox*", "librewolf*", "chrome*", "chromium*", "brave*", "msedge*", "opera*", "vivaldi*",
    "epiphany*", "WebKit*", "slack*", "discord*", "telegram*", "signal*", "teams*", "zoom*",
    "element*", "whatsapp*", "skype*", "thunderbird*", "code", "codium",
)  # fmt: skip
"""Desktops, browsers and programs to talk with, which are open all day and use a GPU a little."""


class Settings(HasTraits):
    """The settings of one state directory. Treated as immutable once loaded."""

    gpus = List(
        Int(min=0),
        help="Indices of the GPUs that the queue may use; empty means all of them.",
    )
    slots = Int(
        0,
        min=0,
        help="How much work runs at once. 0 means 2 per GPU or, without a GPU, half the cores.",
    )
    shared_gpu = Int(
        -1,
        min=-1,
        help="Index of the GPU on which light jobs sit together; -1 means the last one.",
    )
    packing = Bool(default_value=True, help="Whether jobs of known need may share a GPU.")
    gpu_free_perc = Int(
        75,
        min=0,
        max=100,
        help="A GPU that no job holds is free only if this per cent of its memory is free of "
        "programs outside the queue.",
    )
    drained = List(
        Int(min=0),
        help="Indices of GPUs that take no new jobs; what runs there may end.",
    )
    fair_share = Bool(
        default_value=False,
        help="Whether, within equal priority, the next job is that of whoever has had the least "
        "GPU time in the last 24 hours.",
    )
    reorder_slack = Float(
        3600.0,
        min=0,
        help="Seconds that shorter work may put off a waiting job past its start in queue order, "
        "or half its run time where that is more. 0 means that nothing goes ahead of its turn.",
    )
    backfill = Bool(
        default_value=True,
        help="Whether a job may start before one ahead of it when that delays nothing.",
    )
    starvation_guard = Bool(
        default_value=True,
        help="Whether a waiting job holds back the GPUs it needs from jobs behind it. Without it "
        "whatever fits starts, no start is promised, and a wide job may wait for ever.",
    )
    fake_gpus = Unicode(
        "",
        help='Pretend GPUs, such as "80G,80G" or "2xA100:40G", for trying things out. The '
        "environment variable GPUQUEUE_FAKE_GPUS wins over this.",
    )
    grace = Float(
        5.0,
        min=0,
        help="Seconds between asking a cancelled job to end and ending it.",
    )
    save_time = Float(
        120.0,
        min=0,
        help="Seconds that a resumable job has to save when it is to make room for another; then "
        "it is stopped as by a cancel.",
    )
    save_signal = Enum(
        ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"],
        default_value="SIGTERM",
        help="By what a job that was submitted with --resumable is asked to save and exit.",
    )
    evict_timeout = Float(
        300.0,
        min=0,
        help="Seconds that a resumable job has to save and exit when the person at the machine "
        "takes the GPUs back (free); then it is frozen.",
    )
    move_gpu_memory = Bool(
        default_value=True,
        help="Whether the GPU memory of jobs that free mode freezes is moved to the host, where "
        "that was tried on this machine and worked (NVIDIA, driver 570 or newer).",
    )
    auto_free = Bool(
        default_value=False,
        help="Whether the GPUs are taken back by themselves (free) when a program of yours that is "
        "not of the queue uses one heavily, and given again after it has gone.",
    )
    auto_free_apps = List(
        Unicode(),
        help="Names of programs for which any use of a GPU is heavy, such as blender or *.x86_64.",
    )
    auto_free_ignore = List(
        Unicode(),
        default_value=list(_DESKTOP),
        help="Names of programs that never count as heavy: desktops, browsers, chat programs. One "
        "that is in auto_free_apps as well does count.",
    )
    auto_free_memory = Union(
        [Unicode(), Int()],
        default_value="1G",
        help="A program that holds more GPU memory than this uses it heavily.",
    )
    auto_free_after = Float(
        10.0,
        min=0,
        help="Seconds of heavy use after which the GPUs are taken back.",
    )
    auto_resume_after = Float(
        120.0,
        min=0,
        help="Seconds after the last such program has gone until the queue has the GPUs again.",
    )
    log_limit = Union(
        [Unicode(), Int()],
        default_value="1G",
        help="The most that one job's log may take on disk; what is beyond it is not kept, and "
        "the log says so.",
    )
    record_code = Bool(
        default_value=True,
        help="Whether each start of a job records the version of its code and, in a git "
        "repository, the commit and whether files differ from it.",
    )
    spare_kernels = Int(
        2,
        min=0,
        help="How many notebooks may have a spare kernel: a process with the libraries that the "
        "notebook has imported, from which its next cell starts at once. 0 means none.",
    )
    spare_idle = Float(
        300.0,
        min=0,
        help="Seconds without a cell after which a notebook's spare kernel is ended.",
    )
    spare_memory = Union(
        [Unicode(), Int()],
        default_value="2G",
        help="The most memory that one spare kernel may take; one that takes more is ended. None "
        "is started on a machine with less than twice this free.",
    )
    kernel_shares = Enum(
        ["asked", "late", "all"],
        default_value="late",
        help="Which notebook kernels hold a share of a GPU. late: those that ask for one, by "
        "their kernelspec, their notebook's metadata, %gpu share or %gpu attach, from their start "
        "on; all other Python kernels get one at their first use of a GPU. asked: the others are "
        "left as they are. all: every Python kernel starts with a share.",
    )
    kernel_share = Union(
        [Unicode(), Float()],
        default_value="0.25",
        help="The share of one GPU for notebook kernels that do not say how much.",
    )
    kernel_memory = Unicode(
        "",
        help="The GPU memory for notebook kernels that do not say how much, such as 20G; empty "
        "means the part of the GPU that their share is.",
    )
    kernel_wait = Float(
        10.0,
        min=0.1,
        max=10.0,
        help="Seconds that the start of a notebook kernel waits for an answer about its share; "
        "then the start is refused.",
    )
    kernel_overcommit = Float(
        1.0,
        min=1.0,
        max=16.0,
        help="How many times the compute of a GPU notebook kernels may hold together, such as 2. "
        "Those beyond once borrow it from the others, which are idle most of the time: where more "
        "compute at once than the GPU can bear, the cells of the newest stand still until there is "
        "room. Memory is never given twice.",
    )
    lend = Enum(
        ["all", "preemptible", "off"],
        default_value="all",
        help="Who may use the compute of notebook kernels that hold a share and idle, where there "
        "is no room otherwise: all jobs, only those that are preemptible, or none (off). As soon "
        "as a cell runs in the notebook they stand still.",
    )
    lend_after = Float(
        60.0,
        min=1.0,
        help="Seconds without a cell after which a notebook kernel lends its compute.",
    )
    lend_again = Float(
        5.0,
        min=0,
        help="Seconds without a cell after which jobs go on that stood still for it.",
    )
    lend_patience = Float(
        300.0,
        min=0,
        help="Seconds that a job stands still for a notebook until it is put back into the queue, "
        "if it can be run again and would start at once elsewhere.",
    )
    cell_text_limit = Union(
        [Unicode(), Int()],
        default_value="4M",
        help="The most text (bytes) of one %%gpu cell that its notebook shows; all of it is in the "
        "job's log, and the cell says so.",
    )
    cell_result_limit = Union(
        [Unicode(), Int()],
        default_value="4G",
        help="The largest variable that a %%gpu cell brings back by itself, at least 16M; a larger "
        "one stays in the job until %gpu pull asks for it.",
    )
    cell_failed_result_limit = Union(
        [Unicode(), Int()],
        default_value="32M",
        help="The same for a %%gpu cell that has failed: what it had made until then.",
    )
    notify_cells = Bool(
        default_value=True,
        help="Whether a notebook says under the next cell that runs which of its jobs have ended.",
    )
    notify_urls = List(
        Unicode(),
        help="Where the ends of jobs are told besides, such as on a phone: addresses as Apprise "
        "has them (needs jupyter-gpuqueue[notify]). They are secrets and are shown nowhere.",
    )
    notify = Enum(
        ["all", "failures", "off"],
        default_value="all",
        help="Which ends go to notify_urls: all, failures, or none (off).",
    )
    notify_after = Float(
        60.0,
        min=0,
        help="Only jobs that ended at least this many seconds after they were queued go to "
        "notify_urls: of the others one sees the end.",
    )
    autostart = Bool(
        default_value=True,
        help="Whether a submit that finds no controller running starts one in the background.",
    )
    idle_exit = Float(
        600.0,
        min=0,
        help="Seconds without any job after which a controller that was started in the "
        "background ends itself. 0 means never.",
    )
    ui_port = Int(
        8237,
        min=0,
        max=65535,
        help="Port of `jupyter gpuqueue serve` on loopback; 0 means that nothing listens.",
    )

    @validate(*_SIZES)
    def _is_a_size(self, proposal: dict[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if parse_bytes(value, name) < _LEAST.get(name, 0):
            raise InvalidRequest(name, f"{value!r} is less than 16M; what is smaller always comes")
        return value

    @validate("kernel_share")
    def _is_a_share(self, proposal: dict[str, Any]) -> Any:
        parse_share(proposal["value"], "kernel_share")
        return proposal["value"]

    @validate("kernel_memory")
    def _is_memory(self, proposal: dict[str, Any]) -> Any:
        if proposal["value"]:
            parse_bytes(proposal["value"], "kernel_memory")
        return proposal["value"]

    def size(self, name: str) -> int:
        """A setting that is a size, in bytes."""
        return _bytes_of(getattr(self, name), name)

    @property
    def log_limit_bytes(self) -> int:
        """``log_limit`` in bytes."""
        return self.size("log_limit")

    @property
    def spare_memory_bytes(self) -> int:
        """``spare_memory`` in bytes."""
        return self.size("spare_memory")

    def as_dict(self) -> dict[str, Any]:
        """Name to value, sorted by name; of secrets only how many there are."""
        return {
            name: ["(not shown)"] * len(getattr(self, name))
            if name in SECRET
            else getattr(self, name)
            for name in sorted(self.trait_names())
        }


def may_autostart(settings: Settings) -> bool:
    """Whether a controller may be started in the background without somebody asking for one."""
    return settings.autostart and os.environ.get("GPUQUEUE_AUTOSTART") != "0" and not in_job()


def in_job() -> bool:
    """Whether this process is part of a job, which ends with all that it has started."""
    return "GPUQUEUE_ATTEMPT_DIR" in os.environ


def settings_from(table: dict[str, Any], where: str) -> Settings:
    """Settings from names and values; ``where`` says in an error where they come from.

    Raises
    ------
    InvalidRequest
        There is no such setting, or a value is not allowed.
    """
    known = Settings.class_trait_names()
    for name, given in table.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise InvalidRequest(name, f"no such setting in {where}; {hint}")
        if name in SECRET and not (
            isinstance(given, list) and all(isinstance(each, str) for each in given)
        ):
            raise InvalidRequest(name, "write a list of texts; what it holds is not shown")
    try:
        return Settings(**table)
    except TraitError as error:
        for name, given in table.items():
            if words := _allowed(Settings.class_traits()[name], given):
                raise InvalidRequest(name, f"{given!r} in {where} is not {words}") from error
        raise InvalidRequest(where, str(error)) from error


def _allowed(trait: Any, given: Any) -> str:
    """What may stand there, where ``given`` may not; empty where that is not a matter of its type.

    Traitlets' own sentences speak of traits and instances.
    """
    if isinstance(trait, Enum):
        values = trait.values or ()
        return "" if given in values else f"one of {', '.join(values)}"
    if isinstance(trait, Bool):
        return "" if isinstance(given, bool) else "true or false"
    if isinstance(trait, Unicode):
        return "" if isinstance(given, str) else "a text in quotes"
    if not isinstance(trait, Int | Float):
        return ""
    whole = isinstance(trait, Int)
    least, most = trait.min, trait.max
    fits = isinstance(given, int if whole else (int, float)) and not isinstance(given, bool)
    if fits and (least is None or given >= least) and (most is None or given <= most):
        return ""
    bounds = (("least", least), ("most", most))
    limits = [
        f"of at {word} {bound:g}"
        for word, bound in bounds
        if bound is not None and math.isfinite(bound)
    ]
    return " ".join(["a whole number" if whole else "a number", " and ".join(limits)]).rstrip()


def load_settings(path: Path) -> Settings:
    """Read ``config.toml``; a missing file gives the defaults.

    Raises
    ------
    InvalidRequest
        The file is not TOML, or names a setting or a value that is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(str(path), f"cannot be read ({error})") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(str(path), f"is not valid TOML: {error}") from error
    return settings_from(table, str(path))


class SettingsFile:
    """A ``config.toml`` that is read again when it changes on disk.

    Attributes
    ----------
    warning
        Why the file as it is now could not be used; empty when all is well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warning = ""
        self._stamp: tuple[int, int] | None = None
        self._current = Settings()
        self.refresh()

    @property
    def current(self) -> Settings:
        """The last settings that could be read."""
        return self._current

    def refresh(self) -> bool:
        """Look at the file; return whether anything changed (settings or warning)."""
        try:
            stat = os.stat(self.path)
            stamp = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            stamp = (0, 0)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._current = load_settings(self.path)
            self.warning = ""
        except InvalidRequest as error:
            self.warning = f"{error}; the settings stay as they were"
        return True


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def render_settings(settings: Settings, notes: tuple[str, ...] = ()) -> str:
    """Return a ``config.toml`` with every setting explained and commented out at its value."""
    lines = ["# gpuqueue settings. Everything is optional; remove the # to change a value."]
    lines += [f"# {note}" for note in notes]
    for name in sorted(settings.trait_names()):
        lines.append("")
        words = (settings.trait_metadata(name, "help") or "").split()
        line = "#"
        for word in words:
            if len(line) + len(word) > 88:
                lines.append(line)
                line = "#"
            line += f" {word}"
        shown = [] if name in SECRET else getattr(settings, name)
        lines += [line, f"# {name} = {_toml(shown)}"]
    return "\n".join(lines) + "\n"
