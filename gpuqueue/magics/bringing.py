"""What a cell's job made, put into the notebook."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuqueue.client import LocalClient
from gpuqueue.magics.replay import Place
from gpuqueue.model import Job, JobState
from gpuqueue.run.files import RESULT, read_json
from gpuqueue.run.quiet import quiet

__all__ = ["bring_back", "remember"]

_LARGE = ("it is large", "it comes with")
"""How the words begin that say why a variable has stayed in the job for its size."""


def _most(job: Job, client: LocalClient) -> int:
    """Bytes of one variable beyond which it comes only when asked for.

    What a failed cell had made is seldom wanted, and would fill the memory with each retry.
    """
    succeeded = job.state is JobState.SUCCEEDED
    name = "cell_result_limit" if succeeded else "cell_failed_result_limit"
    return int(client.settings.size(name))


_sent: dict[int, Mapping[int, Any]] = {}
"""What the inputs of jobs were made of whose variables have not been brought yet, by job."""
_MOST_SENT = 32


def remember(job_id: int, objects: Mapping[int, Any]) -> None:
    """Keep what was sent until its results are asked for, so that they join it."""
    _sent[job_id] = objects
    while len(_sent) > _MOST_SENT:
        del _sent[next(iter(_sent))]


def bring_back(
    shell: Any,
    client: LocalClient,
    job: Job,
    place: Place,
    names: list[str] | None = None,
    *,
    objects: Mapping[int, Any] | None = None,
) -> dict[str, Any]:
    """Put what a cell made into the notebook's namespace, and say what stays behind and why.

    Parameters
    ----------
    names
        Bring only these.
    objects
        What the inputs were made of, of a cell that has just run. Where they are gone, such as
        after a restart, copies of them are loaded from the job.

    Returns
    -------
    Everything that could be loaded, the exception under ``<error>`` included.
    """
    from gpuqueue.run.loghandlers import drop_handlers, put_handlers
    from gpuqueue.run.patches import put_patches
    from gpuqueue.run.printers import put_printers
    from gpuqueue.run.shellstate import LAST
    from gpuqueue.run.sources import put_sources
    from gpuqueue.run.values import FromFile, load_file

    space = shell.user_ns
    just_run = objects is not None
    if objects is None:
        objects = _sent.pop(job.id, None)
    copies = None if objects is not None else FromFile(client.home.job(job.id) / "payload")
    origins: Mapping[int, Any] = copies if objects is None else objects  # type: ignore[assignment]
    folder = client.home.attempt(job.id, max(1, job.attempt))
    most = _most(job, client) if names is None else None
    told = read_json(folder / "outcome.json") or {}
    if just_run:
        _go(told.get("where") or {}, place)
        if (kept := told.get("flushed")) is not None:
            shell.displayhook.flush()
            for name in [name for name in LAST if name not in kept]:
                space.pop(name, None)
    try:
        # a module that the cell has imported has been heard
        loaded = quiet()(load_file)(folder / RESULT, most=most, origins=origins)
    except (OSError, ValueError, EOFError) as error:
        place.write(f"gpuqueue: the result of job {job.id} cannot be read: {error}\n")
        return {}
    values, problems = loaded.values, told.get("problems", {}) | loaded.problems
    if copies is not None:
        _add_inputs(copies, values, space, names)
    for name, value in values.items():
        if not name.startswith("<") and (names is None or name in names):
            space[name] = value
    payload = FromFile(client.home.job(job.id) / "payload")
    _change(values, origins, payload, in_place=just_run or copies is not None)
    put_patches(values, told.get("unpatched", ()))
    put_sources(shell, told.get("sources", {}))
    for kind, magics in (values.get("<magics>") or {}).items() if names is None else ():
        for name, function in magics.items():
            shell.register_magic_function(function, kind, name)
    for name in told.get("deleted", ()) if names is None else ():
        space.pop(name, None)
    for name, why in problems.items():
        if not name.startswith("<") and (names is None or name in names):
            hint = f"; %gpu pull {job.id} {name} brings it" if why.startswith(_LARGE) else ""
            place.write(f"gpuqueue: {name} stays in job {job.id}: {why}{hint}\n")
    if names is None and "<out>" in values:
        with contextlib.suppress(Exception):  # an Out that cannot be kept is not worth an error
            shell.displayhook.update_user_ns(values["<out>"])
    if just_run:
        _flush_later(folder / RESULT)
        around = values.get("<around>") or {}
        put_handlers(values)
        put_printers(values)
        drop_handlers([name, origins.get(number)] for name, number in around.get("quiet", ()))
        _surround(around, place)
    return values


def _flush_later(path: Path) -> None:
    """Have a large result reach the disk, which the job has not waited for."""
    from gpuqueue.run.large import flush_gently
    from gpuqueue.run.values import SOON

    def flush() -> None:
        for file in files:
            with contextlib.suppress(OSError):
                flush_gently(str(file))

    with contextlib.suppress(OSError):
        files = [path, *path.parent.glob(f"{path.name}.*")]
        if sum(file.stat().st_size for file in files) >= SOON:
            threading.Thread(target=flush, daemon=True).start()


def _add_inputs(
    copies: Any, values: dict[str, Any], space: Mapping[str, Any], names: list[str] | None
) -> None:
    """Inputs that the cell has changed, where the notebook no longer has them."""
    if not any(name.startswith("<change") for name in values):
        return
    for name, value in copies.load().items():
        wanted = name in names if names is not None else name not in space
        if not name.startswith("<") and wanted:
            values.setdefault(name, value)


def _change(
    values: Mapping[str, Any],
    origins: Mapping[int, Any],
    sent: Mapping[int, Any],
    *,
    in_place: bool,
) -> None:
    """Make objects what the cell has made of them.

    ``sent`` are copies of what they were; with ``in_place`` they still are, so that what has
    changed of a large array may be written into it alone.
    """
    from gpuqueue.run.becoming import become, replace
    from gpuqueue.run.patch import Patch, patched
    from gpuqueue.run.values import CHANGE

    for name, came in values.items():
        if not name.startswith(CHANGE):
            continue
        new = came
        number = int(name.removeprefix(CHANGE).rstrip(">"))
        old = origins[number]
        if isinstance(came, Patch):
            new = patched(came, old, number, sent, in_place=in_place)
        if not become(old, new):
            replace(old, new)
    for number, change in values.get("<classes>", {}).items():
        kind = origins[number]
        for name, value in change["set"].items():
            with contextlib.suppress(AttributeError, TypeError):
                setattr(kind, name, value)
        for name in change["delete"]:
            with contextlib.suppress(AttributeError, TypeError):
                delattr(kind, name)


def _go(where: Mapping[str, Any], place: Place) -> None:
    """Go where the cell has gone, and look for modules where it did, before any is needed."""
    if folder := where.get("folder"):
        try:
            os.chdir(folder)
        except OSError as error:
            place.write(f"gpuqueue: the working directory stays as it was: {error}\n")
    if path := where.get("path"):
        sys.path[:] = path


def _surround(around: Mapping[str, Any], place: Place) -> None:
    """Make this kernel's surroundings what the cell has made of the job's."""
    from gpuqueue.run import ambient

    os.environ.update(around.get("environ", {}))
    for name in around.get("unset", ()):
        os.environ.pop(name, None)
    for name in ambient.put(around.get("states", {})):
        place.write(f"gpuqueue: what the cell changed of the {name} could not be put here\n")
