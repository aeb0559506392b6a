"""The program: its commands by name, and what an error becomes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpuqueue.cli import change, free, glance, host, kernelspec, look, submit
from gpuqueue.cli.autostart import autostart
from gpuqueue.cli.cards import cards
from gpuqueue.cli.drain import drain, undrain
from gpuqueue.cli.drill import drill
from gpuqueue.cli.simulate import simulate
from gpuqueue.cli.usage import usage
from gpuqueue.cli.verify import verify
from gpuqueue.cli.words import tell
from gpuqueue.errors import GpuqueueError, InvalidRequest, NotYours

__all__ = ["app"]

_BROKEN_PIPE = 141
_INTERRUPTED = 130


class _Program(TyperGroup):
    """Turns errors into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # whoever read our output has gone; nothing is left to be said, not even at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_BROKEN_PIPE) from None
        except KeyboardInterrupt:
            if ctx.params["debug"]:
                raise
            raise typer.Exit(_INTERRUPTED) from None
        except (GpuqueueError, OSError) as error:
            if ctx.params["debug"]:
                raise
            tell(str(error))
            raise typer.Exit(_code(error)) from None


def _code(error: Exception) -> int:
    if isinstance(error, NotYours):
        return 3
    return 2 if isinstance(error, InvalidRequest) else 1


app = typer.Typer(
    cls=_Program,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from gpuqueue.about import __version__

        typer.echo(f"gpuqueue {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Share the GPUs of this machine: queue work, look at it, change it."""


app.command(
    cls=submit.SubmitCommand,
    context_settings={"allow_interspersed_args": False},
)(submit.submit)
app.command()(look.status)
app.command()(look.jobs)
app.command()(look.show)
app.command()(look.logs)
app.command()(look.wait)
app.command()(look.gpus)
app.command()(cards)
app.command()(usage)
app.command()(glance.ps)
app.command()(glance.top)
app.command()(change.cancel)
app.command()(change.retry)
app.command(context_settings={"ignore_unknown_options": True})(change.priority)
app.command()(change.swap)
app.command()(change.resize)
app.command()(change.release)
app.command()(free.free)
app.command()(free.resume)
app.command(context_settings={"allow_interspersed_args": False})(drill)
app.command()(verify)
app.command()(drain)
app.command()(undrain)
app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(host.serve)
app.command()(host.ui)
app.command()(host.stop)
app.command()(autostart)
app.command()(host.doctor)
app.command()(host.config)
app.command()(host.init)
app.command()(simulate)
app.add_typer(kernelspec.app, name="kernelspec")
