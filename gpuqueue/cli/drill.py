"""``drill``: whether a command goes on from its checkpoint when it is killed in the middle."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from gpuqueue.cli.words import say_json, tell
from gpuqueue.errors import InvalidRequest

if TYPE_CHECKING:
    from gpuqueue.client.drilled import Drill

__all__ = ["drill"]


def drill(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ID | COMMAND...",
            help="Number of a job whose command it is, or a command as for submit.",
        ),
    ],
    *,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long each run may take from its start.")
    ] = "10m",
    steps: Annotated[
        int,
        typer.Option(metavar="N", help="Reports that it makes after a checkpoint before it dies."),
    ] = 3,
    at: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Kill it at this step, whatever it has saved."),
    ] = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask it to save and step aside; do not kill it.")
    ] = False,
    mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory on the GPU, as for submit.")
    ] = None,
    share: Annotated[
        str | None, typer.Option(metavar="F", help="Part of a GPU's compute, as for submit.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="No GPU.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Kill a training midway, run it again, and see if it goes on.

    The two runs are jobs of the queue, with a folder of their own for checkpoints; both are ended
    with the drill, also by Ctrl-C. It goes by the steps reported with checkpoint.log. Exit code 0
    if the second run goes on from the checkpoint of the first, 1 if not.
    """
    from gpuqueue.cli.submit import payload_of, terminal
    from gpuqueue.client.drill import drill as run
    from gpuqueue.client.drill import drill_job
    from gpuqueue.client.local import default_client
    from gpuqueue.client.request import options_from
    from gpuqueue.units import parse_duration

    seconds = parse_duration(timeout, "timeout")
    client = default_client()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    origin = terminal()
    if len(words) == 1 and words[0].isdigit():
        if mem or share or cpu:
            raise InvalidRequest("mem, share, cpu", "go with a command; a job has its own")
        job = client.job(int(words[0]))
        found = drill_job(
            client, job,
            timeout=seconds, steps=steps, at=at, ask=ask, origin=origin, tell=tell,
        )  # fmt: skip
    else:
        options = options_from({"mem": mem, "share": share, "preset": "cpu" if cpu else None})
        found = run(
            client, payload_of(words), options,
            timeout=seconds, steps=steps, at=at, ask=ask, origin=origin, tell=tell,
        )  # fmt: skip
    if as_json:
        say_json({"schema": 1} | found.to_dict())
    else:
        typer.echo(drill_text(found))
    if not found.passed:
        raise typer.Exit(1)


def _leave(number: int, _frame: FrameType | None) -> None:
    """End as by Ctrl-C, so that the jobs are ended as well."""
    sys.exit(128 + number)


def drill_text(found: Drill) -> str:
    """A drill as a short table with the verdict below it."""
    from gpuqueue.cli.text import table

    rows = [
        [word, str(point.step), _number(point.epoch), _number(point.loss)]
        for word, point in found.rows()
    ]
    lines = ["  ".join(row) for row in table(["", "STEP", "EPOCH", "LOSS"], rows)]
    return "\n".join([*lines, found.message])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
