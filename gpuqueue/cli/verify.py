"""``verify --state``: which parts of a training's state a checkpoint holds, and which it lacks."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuqueue.cli.words import paint, say_json
from gpuqueue.errors import InvalidRequest

__all__ = ["verify"]


def verify(
    *,
    state: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="A checkpoint, or a folder of which the newest is looked at."
        ),
    ],
    without: Annotated[
        str, typer.Option(metavar="PARTS", help="What this training has not: scaler,ema.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Tell what a checkpoint holds and lacks of a training's state.

    Nothing in it is run: a file that cannot be read safely is refused. Exit code 1 if a part is
    missing that is not named in --without.
    """
    from gpuqueue.integrations.state import PARTS, state_parts

    spared = [word.strip() for word in without.split(",") if word.strip()]
    for word in spared:
        if word not in PARTS:
            raise InvalidRequest("without", f"{word!r} is not one of {', '.join(PARTS)}")
    try:
        found = state_parts(state)
    except (ValueError, FileNotFoundError) as error:
        raise InvalidRequest("state", str(error)) from error
    missing = [part for part in found.missing if part not in spared]
    if as_json:
        say_json({"schema": 1, **found.to_dict(), "missing": missing, "without": spared})
    else:
        typer.echo(found.path)
        for part in PARTS:
            said = found.found.get(part) or ("missing" if part in missing else "not needed")
            colour = "red" if part in missing else "green"
            typer.echo(f"  {part:<9}  {paint(said, colour)}")
        if missing:
            typer.echo(f"{len(missing)} of {len(PARTS)} parts are missing: {', '.join(missing)}")
    if missing:
        raise typer.Exit(1)
