"""Commands about the place itself: its controller, its settings, its health."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuqueue.cli.words import paint, program, say_json, tell
from gpuqueue.errors import InvalidRequest

if TYPE_CHECKING:
    from gpuqueue.settings import Settings

__all__ = ["config", "doctor", "init", "serve", "stop", "ui"]

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]

_PATIENCE = 20.0


def serve(ctx: typer.Context) -> None:
    """Run the controller and its REST interface in this terminal.

    There are no notebooks: it is for a machine without a Jupyter server.

    Takes --port, --ip and other options of a Jupyter server; -h lists them.
    """
    command = [sys.executable, "-P", "-m", "gpuqueue_jupyter", *ctx.args]
    if os.name == "posix":
        os.execv(command[0], command)  # noqa: S606 - this process becomes the server
    raise typer.Exit(subprocess.call(command))


def ui(
    *,
    show: Annotated[
        bool, typer.Option("--print", help="Print the address with its token; open nothing.")
    ] = False,
) -> None:
    """Open the panel in a browser: GPUs, queue, logs, and buttons.

    It is a page of a Jupyter server with gpuqueue. Where none of yours runs on this queue, one is
    started in this terminal, as `serve` does.
    """
    from gpuqueue.cli.page import open_page, page_address
    from gpuqueue.client.local import default_client

    address = page_address(default_client())
    if address is None:
        if show:
            tell(f"no server of yours has this queue; start one: {program()} serve")
            raise typer.Exit(1)
        options = ("open_browser=True", "no_browser_open_file=False")
        words = [f"--ServerApp.{option}" for option in options]
        raise typer.Exit(subprocess.call([sys.executable, "-P", "-m", "gpuqueue_jupyter", *words]))
    if show:
        typer.echo(address)
        return
    typer.echo(f"opening {address.partition('?')[0]}")
    if not open_page(address):
        tell(f"no browser could be opened; `{program()} ui --print` tells the address")
        raise typer.Exit(1)


def stop(
    job_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID...]", help="Jobs to cancel, as cancel does."),
    ] = None,
) -> None:
    """End the controller in the background; running jobs go on.

    With numbers of jobs it ends those instead.
    """
    if job_ids:
        from gpuqueue.cli.change import cancel

        cancel(job_ids)
        return
    _stop_controller()


def _stop_controller() -> None:
    import signal

    from gpuqueue.client.local import default_client
    from gpuqueue.model import JobState, ProcessId
    from gpuqueue.run.process import alive, is_elsewhere, send_signal

    client = default_client()
    lead = client.lead()
    if lead is None:
        typer.echo("no controller runs")
        return
    if lead["kind"] == "jupyter":
        tell(
            f"the controller is part of the Jupyter server with pid {lead['pid']}; it ends when "
            "that server is shut down"
        )
        raise typer.Exit(1)
    process = ProcessId(lead["pid"], lead["start"], lead["boot"])
    if is_elsewhere(process):
        tell("the controller runs in another container; `jupyter gpuqueue stop` there ends it")
        raise typer.Exit(1)
    send_signal(process, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while alive(process):
        if time.monotonic() > deadline:
            tell(f"pid {process.pid} was asked to end and has not; see {client.home.log}")
            raise typer.Exit(1)
        time.sleep(0.02)
    typer.echo(f"the controller (pid {process.pid}) has ended")
    live = client.store.live()
    waiting = sum(job.state is JobState.QUEUED for job in live)
    if running := len(live) - waiting:
        typer.echo(f"{running} running {'job goes' if running == 1 else 'jobs go'} on")
    if waiting:
        them = "job waits" if waiting == 1 else "jobs wait"
        typer.echo(f"{waiting} {them} until a controller runs again, which the next submit starts")
    other = client.lead()
    if other is not None:
        typer.echo(f"pid {other['pid']} ({other['kind']}) has taken over")


def doctor(*, as_json: AsJson = False) -> None:
    """Check that all is in order here, and say what to do where not.

    It looks at the installation, the state directory, the GPUs and the controller.

    Exits with 1 if something does not work; a warning is not an error.
    """
    from gpuqueue.client.doctor import checks

    found = checks()
    bad = [check for check in found if check.ok is False]
    if as_json:
        results = [check.to_dict() for check in found]
        say_json({"schema": 1, "ok": not bad, "checks": results})
    else:
        words = {
            True: paint("ok     ", "green"),
            None: paint("warning", "yellow"),
            False: paint("FAILED ", "red"),
        }
        for check in found:
            typer.echo(f"{words[check.ok]}  {check.name:<17}  {check.sentence}")
            if check.fix and not check.ok:
                typer.echo(f"{'':<28}do: {check.fix}")
    if bad:
        raise typer.Exit(1)


def config(
    *,
    edit: Annotated[
        bool, typer.Option("--edit", help="Open config.toml in $VISUAL or $EDITOR.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings in force, and where they come from."""
    from gpuqueue.paths import find_home
    from gpuqueue.settings import Settings, load_settings, render_settings

    path = find_home().config
    if edit:
        _write_new(path, render_settings(Settings()))
        _edit(path)
        load_settings(path)
        typer.echo(f"{path} is in order; a running controller uses it within a second or two")
        return
    settings = load_settings(path)
    given = _given(path)
    if as_json:
        say_json(
            {
                "schema": 1,
                "path": str(path),
                "exists": path.exists(),
                "settings": settings.as_dict(),
                "from_file": given,
            }
        )
        return
    typer.echo(f"# {path}" + ("" if path.exists() else " (not there; all defaults)"))
    for name, value in settings.as_dict().items():
        marks = ["from the file"] if name in given else []
        if name == "fake_gpus" and (fake := os.environ.get("GPUQUEUE_FAKE_GPUS", "").strip()):
            marks.append(f"GPUQUEUE_FAKE_GPUS={fake} wins over it")
        mark = f"  # {', '.join(marks)}" if marks else ""
        typer.echo(f"{name} = {_toml(value)}{mark}")


def _toml(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)  # the same for all kinds of value that we have


def _given(path: Path) -> list[str]:
    import tomllib

    try:
        return sorted(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []


def _write_new(path: Path, text: str) -> bool:
    """Write a file that was not there, whole or not at all; False if it was there."""
    if path.exists():
        return False
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        if os.name == "posix":
            os.link(partial, path)  # never over one that somebody else has just written
        else:
            partial.rename(path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def _edit(path: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or _some_editor()
    if not editor:
        raise InvalidRequest("EDITOR", f"is not set; set it, or edit {path} yourself")
    try:
        code = subprocess.call([*shlex.split(editor), str(path)])
    except (OSError, ValueError) as error:
        raise InvalidRequest("EDITOR", f"{editor!r} cannot be started ({error})") from None
    if code:
        raise InvalidRequest("EDITOR", f"{editor!r} ended with exit code {code}")


def _some_editor() -> str:
    import shutil

    names = ("editor", "nano", "vi") if os.name == "posix" else ("notepad",)
    return next((name for name in names if shutil.which(name)), "")


def init() -> None:
    """Find the GPUs and write a config.toml that explains itself.

    A file that is there already is left as it is.
    """
    from gpuqueue.gpus import detect
    from gpuqueue.paths import find_home
    from gpuqueue.settings import load_settings, render_settings
    from gpuqueue.units import format_bytes

    path = find_home().config
    settings = load_settings(path)
    devices = detect(settings.fake_gpus)
    with contextlib.closing(devices):
        gpus, problem = devices.gpus(), devices.problem
    names = [f"GPU {g.index}: {g.name}, {format_bytes(g.memory)}, {g.uuid}" for g in gpus]
    for name in names or [f"no GPUs: {problem}"]:
        typer.echo(name)
    head = (
        ["The GPUs of this machine when this file was written:", *(f"  {name}" for name in names)]
        if names
        else ["This machine had no GPUs when this file was written."]
    )
    if _write_new(path, render_settings(_here(settings, gpus), tuple(head))):
        typer.echo(f"wrote {path}; every line in it is a comment, so the defaults hold")
    else:
        typer.echo(f"{path} is there already and was not changed")
    typer.echo(f"next: {program()} doctor")
    typer.echo(f"      {program()} submit {'' if gpus else '--cpu '}-- python your_script.py")


def _here(settings: Settings, gpus: Any) -> Settings:
    """The settings as this machine works them out."""
    from gpuqueue.control.machine import policy_of
    from gpuqueue.settings import Settings

    return Settings(
        gpus=[gpu.index for gpu in gpus],
        slots=policy_of(settings, gpus).slots,
        shared_gpu=gpus[-1].index if gpus else -1,
    )
