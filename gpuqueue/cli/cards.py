"""The command that says what a share of a GPU is worth here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from gpuqueue.cli.words import paint, say_json, tell

if TYPE_CHECKING:
    from gpuqueue.share.report import Card, Line

__all__ = ["card_text", "cards"]

_REST = " " * 26
_COLOURS = {"capped": "green", "advised": "yellow"}

_LONG = (
    "Capped: what is over is refused; that was seen on this machine since it was started.",
    "Advised: frameworks or the driver are told; that they keep to it was not seen.",
    "Admitted only: counted when a job is placed. Not isolated: nor that.",
    "All of it is about jobs with a part of a GPU. It is for jobs that you trust, and no boundary "
    "between strangers: for those there are MIG instances and GPUs of their own.",
)


def cards(
    *,
    long: Annotated[
        bool,
        typer.Option(
            "--long", help="Also what is never divided, what goes round a cap, and each trial."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Show what jobs with a part of a GPU are held to.

    What was not tried since the machine was started is tried now: small programs are started on
    the GPUs, which takes seconds.
    """
    from gpuqueue.client.cards import cards as found
    from gpuqueue.client.moving import moving
    from gpuqueue.paths import find_home

    made, problem = found()
    moved = moving(find_home())
    if as_json:
        told = {"problem": problem, "cards": [card.to_dict() for card in made]}
        say_json({"schema": 1, **told, "moving": moved and moved.to_dict()})
        return
    if not made:
        tell(f"there are no GPUs: {problem or 'the settings leave none'}")
        return
    for card in made:
        for line in card_text(card, long=long):
            typer.echo(line)
    if moved is not None:
        typer.echo(f"GPU memory of frozen jobs, to the host: {moved.standing}")
        typer.echo(f"{_REST}{moved.words}")
    if long:
        typer.echo("")
        for sentence in _LONG:
            typer.echo(sentence)


def card_text(card: Card, *, long: bool) -> Iterable[str]:
    """A GPU for people, in lines."""
    from gpuqueue.units import format_bytes

    gpu = card.gpu
    kind = "" if card.kind in ("GPU", gpu.name.lower().replace("gpu", "GPU")) else f" ({card.kind})"
    yield f"GPU {gpu.index}  {gpu.name}{kind}  {format_bytes(gpu.memory)}"
    for line in card.lines:
        yield from _line_text(line, long=long)
    for line in card.uncapped if long else ():
        yield f"  {line.what:<22}  {line.standing:<13}  {line.scope}".rstrip()
    if long and card.uncapped:
        yield f"{_REST}to have them apart: {card.uncapped[0].better}"
    for trial in card.trials if long else ():
        word = "works" if trial.works else "not used"
        yield f"  {trial.mechanism:<22}  {word:<13}  {trial.seen}".rstrip()


def _line_text(line: Line, *, long: bool) -> Iterable[str]:
    words = [f"by {line.by}"] if line.by else []
    if line.scope:
        words.append(line.scope)
    text = f"{line.standing:<13}"
    text = paint(text, _COLOURS[line.standing]) if line.standing in _COLOURS else text
    yield f"  {line.what:<22}  {text}  {', '.join(words)}".rstrip()
    if line.figure:
        yield f"{_REST}seen: {line.figure}"
    if long and line.changes:
        yield f"{_REST}a change holds {line.changes}"
    if long and line.bypass:
        yield f"{_REST}not held: {line.bypass}"
    if line.better:
        yield f"{_REST}why: {line.better}"
