"""``usage``: who used how much."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuqueue.cli.words import say_json, tell

__all__ = ["usage"]


def usage(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From how long ago: 24h, 7d, or all there is.")
    ] = "24h",
    by: Annotated[
        str, typer.Option(metavar="KEY", help="owner, notebook, tag, agent, gpu, vendor or job.")
    ] = "owner",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Show who used how much of the GPUs."""
    from gpuqueue.client.books import usage as ask
    from gpuqueue.client.local import default_client

    found = ask(default_client(), since, by)
    if as_json:
        say_json({"schema": 1, **found.to_dict()})
    elif found:
        typer.echo(repr(found))
    else:
        tell("no job has held a GPU in that time")
