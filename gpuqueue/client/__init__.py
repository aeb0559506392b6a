"""Submitting, asking and waiting, from Python: ``submit``, ``map``, ``job``, ``jobs``, ``status``.

The command line, the magics and REST are other ways to the same ``LocalClient``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.client import freeing
from gpuqueue.client.job import Job, RemoteTraceback
from gpuqueue.client.jobset import JobSet
from gpuqueue.client.local import LocalClient, default_client
from gpuqueue.client.ownshare import attach, release
from gpuqueue.client.payload import (
    Payload,
    function_payload,
    notebook_payload,
    script_payload,
)
from gpuqueue.client.request import OPTIONS, Options, options_from
from gpuqueue.client.status import Status, status_of
from gpuqueue.errors import InvalidRequest, PayloadError

if TYPE_CHECKING:
    from gpuqueue.client.books import Usage

__all__ = [
    "OPTIONS",
    "Job",
    "JobSet",
    "LocalClient",
    "Options",
    "Payload",
    "RemoteTraceback",
    "Status",
    "attach",
    "config",
    "default_client",
    "devices",
    "free",
    "job",
    "jobs",
    "map",
    "options_from",
    "payload_from",
    "release",
    "resume",
    "status",
    "submit",
    "usage",
]

Work = Callable[..., Any] | list[str] | tuple[str, ...] | str | os.PathLike[str]


def payload_from(
    work: Work,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    own_python: bool = True,
) -> Payload:
    """What ``submit`` was given, as a payload.

    A callable is called with ``args`` and ``kwargs``; a list is a program and its arguments; the
    path of a ``.py`` or ``.ipynb`` file is that script (``args`` follow) or notebook (``kwargs``
    are its parameters); any other string is a line for the shell.

    Raises
    ------
    PayloadError
        It cannot be run; the message names the culprit.
    """
    kwargs = kwargs or {}
    if callable(work):
        return function_payload(work, args, kwargs, cwd=cwd, env=env)
    if isinstance(work, os.PathLike) or (isinstance(work, str) and _is_file(work, cwd)):
        path = os.fspath(work)
        if path.endswith(".ipynb"):
            if args:
                raise PayloadError("args", "a notebook takes its parameters by name")
            return notebook_payload(path, kwargs, cwd=cwd, env=env)
        _no_names(kwargs)
        if path.startswith("-"):
            path = os.path.join(os.curdir, path)  # no option of the interpreter
        words = [path, *_texts(args)]
        if path.endswith(".py"):
            words.insert(0, "python")
        return script_payload(words, cwd=cwd, env=env, own_python=own_python)
    _no_names(kwargs)
    if isinstance(work, str):
        if args:
            raise PayloadError("args", "a line for the shell takes no arguments; pass a list")
        if _FILE.fullmatch(work):
            raise PayloadError("work", f"there is no file {work} (in {cwd or os.getcwd()})")
        return script_payload(work, cwd=cwd, env=env)
    if isinstance(work, list | tuple):
        return script_payload([*work, *_texts(args)], cwd=cwd, env=env, own_python=own_python)
    raise PayloadError(
        "work",
        f"{type(work).__name__}: cannot be run; pass a function, a list of words, a line for the "
        "shell, or the path of a .py or .ipynb file",
    )


_FILE = re.compile(r"[\w@%+=:,./-]+\.(?:py|ipynb)")
"""What a shell would take as one word: the path of a script or a notebook, not a line."""


def _is_file(text: str, cwd: str | os.PathLike[str] | None) -> bool:
    return text.endswith((".py", ".ipynb")) and (Path(cwd or ".") / text).is_file()


def _texts(args: Sequence[Any]) -> list[str]:
    return [os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args]


def _no_names(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        options_from(dict(kwargs))  # raises, with the option that was probably meant


def submit(
    work: Work,
    *args: Any,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Job:
    """Queue work, and return at once.

    Parameters
    ----------
    work
        A function (called with ``args`` and the keywords that are not options), a list of words,
        a line for the shell, or the path of a ``.py`` or ``.ipynb`` file.
    cwd, env
        Working directory, and variables to add to the environment, which is this process's own.
    **options
        ``preset`` (``light one two exclusive cpu``), ``gpus``, ``share`` (0 to 1 of a GPU's
        compute), ``mem`` (``"6G"`` of each GPU), ``slots``, ``eta`` (``"40m"``), ``priority``
        (a number, or True for the front), ``after`` (jobs that must succeed first), ``tag``,
        ``key`` (a second submit with the same key returns the first job unless it failed),
        ``restartable``, ``preemptible``, ``resumable`` (``"sigterm"``: on SIGTERM it saves its
        state and exits with 0), ``require`` (``"compute=hard,memory=hard"``, or one of them:
        refused where its share would not be capped), ``burst`` (it may use idle compute beyond
        its share), ``wait`` (False: refuse rather than queue).

    Raises
    ------
    InvalidRequest
        An option is wrong, what is to be run cannot be run, or this machine can never run it.
        Nothing was queued.

    Examples
    --------
    >>> submit(train, lr=0.1, mem="6G", eta="10m")  # doctest: +SKIP
    >>> submit(["python", "train.py", "--lr", "0.1"], gpus=2)  # doctest: +SKIP
    """
    takes_names = callable(work) or (
        isinstance(work, str | os.PathLike) and os.fspath(work).endswith(".ipynb")
    )
    known = {name: options.pop(name) for name in OPTIONS if name in options}
    if options and not takes_names:
        options_from(options)
    client = default_client()
    payload = payload_from(work, args, options, cwd=cwd, env=env)
    # whoever calls this is gone after a power cut, so a mere command need not wait for the disk
    flush = bool(payload.files)
    record = client.submit([(payload, options_from(known))], flush=flush)[0]
    return Job(client, record.id)


def map(  # noqa: A001 - as in concurrent.futures
    function: Callable[..., Any],
    *iterables: Iterable[Any],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> JobSet:
    """Queue one call for each set of arguments, all or none; options as for ``submit``.

    With one iterable of dictionaries, each is taken as keywords.

    Examples
    --------
    >>> runs = map(train, [{"lr": 0.1}, {"lr": 0.01}], mem="2G")  # doctest: +SKIP
    >>> runs.results()  # doctest: +SKIP
    """
    if not callable(function):
        raise InvalidRequest("function", f"a {type(function).__name__} cannot be called")
    if not iterables:
        raise InvalidRequest("iterables", "give at least one list of arguments")
    checked = options_from(options)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for values in zip(*iterables, strict=len(iterables) > 1):
        if len(values) == 1 and isinstance(values[0], dict):
            calls.append(((), values[0]))
        else:
            calls.append((values, {}))
    client = default_client()
    work = [
        (function_payload(function, args, kwargs, cwd=cwd, env=env), checked)
        for args, kwargs in calls
    ]
    records = client.submit(work) if work else []
    return JobSet([Job(client, record.id) for record in records], calls)


def job(job_id: int) -> Job:
    """The job with that number, from any process of yours on this host.

    Raises
    ------
    UnknownJob
        There is none.
    InvalidRequest
        That is no number.
    """
    client = default_client()
    try:
        number = int(job_id)
    except (TypeError, ValueError):
        raise InvalidRequest("job", f"{job_id!r} is not the number of a job") from None
    return Job(client, client.job(number).id)


def jobs(
    *,
    states: Iterable[str] | None = None,
    owner: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[Job]:
    """Jobs, newest first; ``before`` is the number to page on from."""
    client = default_client()
    found = client.store.jobs(states=states, owner=owner, before=before, limit=limit)
    return [Job(client, record.id) for record in found]


def free(*, soft: bool = False) -> freeing.Answer:
    """Take the GPUs back: no job starts, and those that run step aside or are frozen.

    Those that can save do so and go back into the queue, restartable ones are stopped and start
    again later, the rest are frozen and keep their GPU memory. ``soft`` freezes all at once.

    Raises
    ------
    NotYours
        It was called by an agent, or in a job.
    """
    return freeing.free(default_client(), soft=soft)


def resume() -> freeing.Answer:
    """Give the GPUs to the queue again: what was frozen goes on, what stepped aside starts again.

    Raises
    ------
    NotYours
        It was called by an agent, or in a job.
    """
    return freeing.resume(default_client())


def usage(since: str | float = "24h", by: str = "owner") -> Usage:
    """Who used how much of the GPUs, as rows: ``pandas.DataFrame(gpuqueue.usage())``.

    Parameters
    ----------
    since
        From how long ago on: ``"24h"``, ``"7d"``, seconds, or ``"all"``.
    by
        ``owner``, ``notebook``, ``tag``, ``agent``, ``gpu``, ``vendor`` or ``job``.

    Raises
    ------
    InvalidRequest
        One of them is not understood.
    """
    from gpuqueue.client.books import usage

    return usage(default_client(), since, by)


def devices() -> list[dict[str, Any]]:
    """The GPUs that the queue uses, who holds them and what is left, as plain data."""
    return list(status_of(default_client(), recent=0).to_dict()["gpus"])


def config() -> dict[str, Any]:
    """The settings in force, by name."""
    return dict(default_client().settings.as_dict())


def status() -> Status:
    """GPUs, queue and recent jobs, as they are now."""
    return status_of(default_client())
