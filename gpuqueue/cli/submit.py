"""``submit``: words into a payload and a request."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gpuqueue.cli.words import exit_code, program, say_json, tell
from gpuqueue.errors import InvalidRequest, PayloadError

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient, Payload
    from gpuqueue.model import Job, Origin

__all__ = ["SubmitCommand", "payload_of", "report", "submit", "terminal"]

_FRONT = "front"
_NUMBER = re.compile(r"[+-]?\d+")
_PLAIN = re.compile(r"[\w@%+=:,./-]+")
_FILES = (".py", ".ipynb")


class SubmitCommand(TyperCommand):
    """Lets ``--priority`` stand alone: typer has no options whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write ``--priority`` without a number as ``--priority=front``, then parse."""
        alone = {"--"}
        for parameter in self.params:
            if getattr(parameter, "is_flag", False):
                alone.update(parameter.opts)
        at = 0
        # up to the first word of the command, whose own options are none of our business
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            if args[at] == "--priority":
                if at + 1 < len(args) and _NUMBER.fullmatch(args[at + 1]):
                    args = [*args[:at], f"--priority={args[at + 1]}", *args[at + 2 :]]
                else:
                    args = [*args[:at], f"--priority={_FRONT}", *args[at + 1 :]]
            elif args[at].startswith("--") and "=" not in args[at] and args[at] not in alone:
                at += 1
            at += 1
        return super().parse_args(ctx, args)


def submit(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...",
            help="A program and its arguments; one quoted line for the shell; or a .py or .ipynb "
            "file. Options after its first word are its own.",
        ),
    ],
    *,
    light: Annotated[
        bool, typer.Option("--light", help="Small work, among other light jobs on one GPU.")
    ] = False,
    one: Annotated[bool, typer.Option("--one", help="One GPU; this is the default.")] = False,
    two: Annotated[bool, typer.Option("--two", help="All GPUs, or as many as --gpus.")] = False,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="The whole machine, with nothing beside it.")
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="No GPU.")] = False,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The same by name: light, one, two, exclusive, cpu."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N", help="Number of GPUs, all at once.")
    ] = None,
    share: Annotated[
        str | None, typer.Option(metavar="F", help="Part of each GPU's compute: 0.25, 1/3, 25%.")
    ] = None,
    mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory on each GPU, such as 6G.")
    ] = None,
    slots: Annotated[
        str | None, typer.Option(metavar="N", help="How many of the machine's slots it takes.")
    ] = None,
    eta: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it will run, such as 40m.")
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(metavar="[N]", help="Higher starts first; without a number, before all."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Start once these have succeeded: 12 or 12,13."),
    ] = None,
    tag: Annotated[str | None, typer.Option(metavar="TEXT", help="A short name.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="With the same key again nothing new is queued, unless it failed."
        ),
    ] = None,
    restartable: Annotated[
        bool, typer.Option("--restartable", help="It may be stopped and run again from the start.")
    ] = False,
    preemptible: Annotated[
        bool,
        typer.Option("--preemptible", help="Restartable, and stopped for jobs of higher priority."),
    ] = False,
    require: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help="Refuse it unless capped: compute=hard, memory=hard, or both."
        ),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="It may use idle compute beyond its --share.")
    ] = False,
    resumable: Annotated[
        bool,
        typer.Option("--resumable", help="On SIGTERM it saves, exits with 0, and goes on later."),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Refuse it, rather than queue it, if all is taken.")
    ] = False,
    cwd: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where it runs, if not here.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Add to its environment; may be repeated."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "-f", "--follow", help="Print its log as it comes, and exit with its exit code."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Queue a command, a script or a notebook.

    With --follow, Ctrl-C interrupts the job as it would a plain program.
    """
    if follow and as_json:
        raise InvalidRequest("follow", "goes without --json: the log would stand among the data")
    from gpuqueue.client.local import default_client
    from gpuqueue.client.request import options_from

    flags = {"light": light, "one": one, "two": two, "exclusive": exclusive, "cpu": cpu}
    options = options_from(
        {
            "preset": _preset(flags, preset),
            "gpus": gpus, "share": share, "mem": mem, "slots": slots, "eta": eta,
            "priority": True if priority == _FRONT else priority,
            "after": after, "restartable": restartable, "preemptible": preemptible,
            "resumable": resumable, "require": require, "burst": burst,
            "tag": tag, "key": key, "wait": not no_wait,
        }
    )  # fmt: skip
    payload = payload_of(command, cwd=cwd, env=_environment(env or ()))
    client = default_client()
    began = time.time()
    job = client.submit([(payload, options)], origin=terminal())[0]
    seen_before = key is not None and job.submitted < began
    report(client, job, seen_before=seen_before, as_json=as_json, to_stderr=follow)
    if follow:
        _follow(client, job.id)


def _preset(flags: Mapping[str, bool], name: str | None) -> str | None:
    chosen = [flag for flag, given in flags.items() if given]
    if name is not None and name not in chosen:
        chosen.append(name)
    if len(chosen) > 1:
        raise InvalidRequest("preset", f"{' and '.join(chosen)} cannot go together; choose one")
    return chosen[0] if chosen else None


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, given, value = pair.partition("=")
        if not given or not name:
            # what was written is not repeated: it may be a secret that lost its name
            raise InvalidRequest("env", "write NAME=VALUE")
        found[name] = value
    return found


def terminal() -> Origin:
    """The terminal, or what stands in for one."""
    from gpuqueue.client.rights import agent_of
    from gpuqueue.model import Origin

    agent = agent_of()
    for stream in (0, 2, 1):
        try:
            return Origin("terminal", "", os.ttyname(stream).removeprefix("/dev/"), agent)
        except (OSError, AttributeError):
            continue
    return Origin("terminal", "", f"parent-{os.getppid()}", agent)


def payload_of(
    words: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
) -> Payload:
    """The payload that the words of a command line stand for.

    One word is a program if it looks like one or is one, else a line for the shell. ``python`` is
    the one on ``PATH``, as in any shell.

    Raises
    ------
    PayloadError
        It cannot be run; the message names the culprit.
    """
    from gpuqueue.client.payload import notebook_payload, script_payload

    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise PayloadError(
                "command", f"{os.fsencode(word)!r} is not UTF-8 text; rename that file"
            ) from None
    path = (env or {}).get("PATH", os.environ.get("PATH"))
    first = words[0]
    if first.endswith(_FILES):
        where = os.path.join(cwd or "", first)
        if os.path.isfile(where):
            if first.endswith(".ipynb"):
                if len(words) > 1:
                    raise PayloadError("command", "a notebook takes no arguments")
                return notebook_payload(first, cwd=cwd, env=env)
            # a leading dash would make an option of it
            script = f".{os.sep}{first}" if first.startswith("-") else first
            python = next((p for p in ("python", "python3") if shutil.which(p, path=path)), None)
            line = [python or sys.executable, script, *words[1:]]
            return script_payload(line, cwd=cwd, env=env, own_python=False)
        if len(words) > 1 or _PLAIN.fullmatch(first):
            raise PayloadError("command", f"there is no file {first} (in {cwd or os.getcwd()})")
    if len(words) == 1 and not _is_program(first, cwd, path):
        return script_payload(first, cwd=cwd, env=env)
    return script_payload(words, cwd=cwd, env=env, own_python=False)


def _is_program(word: str, cwd: str | None, path: str | None) -> bool:
    if _PLAIN.fullmatch(word):
        return True
    if os.sep in word:
        return os.path.isfile(os.path.join(cwd or "", word))
    return shutil.which(word, path=path) is not None


def report(
    client: LocalClient,
    job: Job,
    *,
    seen_before: bool = False,
    as_json: bool = False,
    to_stderr: bool = False,
) -> None:
    """Say what became of a submit: what it means here, and when it starts or why not."""
    from gpuqueue.cli.text import submission_text
    from gpuqueue.client.progress import slow_save_before
    from gpuqueue.control.machine import managed_gpus, policy_of
    from gpuqueue.model import JobState
    from gpuqueue.plan import need_of

    if as_json:
        from gpuqueue.cli.look import job_view

        say_json(job_view(client, job))
        return
    settings, machine = client.settings, client.machine()
    managed = managed_gpus(settings, machine.gpus)
    live = client.store.live()
    # the controller may have been quicker than we are
    job = next((other for other in live if other.id == job.id), None) or client.job(job.id)
    plan = client.plan(live)
    index = {gpu.uuid: gpu.index for gpu in machine.gpus}
    numbers = [str(index.get(uuid, uuid)) for uuid in (job.placement.gpus if job.placement else ())]
    starts = settings.autostart and os.environ.get("GPUQUEUE_AUTOSTART") != "0"
    absent = ""
    if not starts and client.lead() is None:
        absent = f"no controller runs; it starts once one does: {program()} serve"
    text = submission_text(
        job,
        need_of(job.request, managed, policy_of(settings, machine.gpus)),
        now=time.time(),
        program=program(),
        wait=plan.waits.get(job.id) if job.state is JobState.QUEUED else None,
        waiting=sum(other.state is JobState.QUEUED for other in live),
        gpus=f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}" if numbers else "",
        dropped=next((drop.reason for drop in plan.drops if drop.job == job.id), ""),
        seen_before=seen_before,
        absent=absent,
    )
    typer.echo(text, err=to_stderr)
    if warning := slow_save_before(client, job, settings):
        tell(warning)


def _follow(client: LocalClient, job_id: int) -> None:
    from gpuqueue.cli.follow import follow_mine
    from gpuqueue.cli.text import ended_text
    from gpuqueue.cli.words import CANCELLED
    from gpuqueue.model import JobState

    interrupted = follow_mine(client, job_id)
    job = client.job(job_id)
    if job.state is not JobState.SUCCEEDED:
        tell(f"job {job_id} {ended_text(job)}")
    raise typer.Exit(CANCELLED if interrupted else exit_code(job))
