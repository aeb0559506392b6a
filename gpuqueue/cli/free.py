"""Commands with which the person at the machine takes the GPUs back and gives them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuqueue.cli.words import TIMEOUT, say_json, tell

if TYPE_CHECKING:
    from gpuqueue.client.freeing import Answer
    from gpuqueue.client.local import LocalClient

__all__ = ["free", "resume"]

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]
Timeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="Give up waiting after, for example, 5m.")
]


def free(
    *,
    soft: Annotated[
        bool, typer.Option("--soft", help="Freeze everything where it is, at once.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return only when every job has stepped aside.")
    ] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Take the GPUs back: running jobs step aside or are frozen.

    No job starts. Jobs that can save do so and go back into the queue; restartable ones are stopped
    and start again later; the rest are frozen and keep their GPU memory. Agents cannot do this
    (exit code 3).
    """
    from gpuqueue.client import freeing
    from gpuqueue.client.local import default_client

    client = default_client()
    _report(client, freeing.free(client, soft=soft), timeout, wait=wait, as_json=as_json)


def resume(
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return only when the queue has the GPUs again.")
    ] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Give the GPUs to the queue again: its jobs go on.

    What was frozen goes on where it is, what stepped aside starts again in its turn.
    Agents cannot do this (exit code 3).
    """
    from gpuqueue.client import freeing
    from gpuqueue.client.local import default_client

    client = default_client()
    _report(client, freeing.resume(client), timeout, wait=wait, as_json=as_json)


def _report(
    client: LocalClient, answer: Answer, timeout: str | None, *, wait: bool, as_json: bool
) -> None:
    from gpuqueue.client.freeing import wait_for
    from gpuqueue.units import parse_duration

    seconds = None if timeout is None else parse_duration(timeout, "timeout")
    if wait:
        try:
            answer = wait_for(client, answer, seconds)
        except TimeoutError as error:
            tell(str(error))
            raise typer.Exit(TIMEOUT) from None
    if as_json:
        say_json({"schema": 1} | answer.to_dict())
    else:
        typer.echo(answer.message)
