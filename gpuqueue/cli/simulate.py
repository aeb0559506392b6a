"""The command that replays a workload."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuqueue.model import Gpu
    from gpuqueue.settings import Settings
    from gpuqueue.simulate import TraceJob

__all__ = ["simulate"]

_DAY = 86_400.0


def simulate(  # noqa: PLR0917 - the first of its options may be given by place
    trace: Annotated[
        str,
        typer.Argument(help="A CSV or .swf file (.gz too), or `history`: what this machine ran."),
    ] = "history",
    gpus: Annotated[
        str | None,
        typer.Option(help="The machine: a number (of 80G GPUs), or such as 4x24G,80G."),
    ] = None,
    estimates: Annotated[
        str, typer.Option(help="What is believed of run times: exact, user or learned.")
    ] = "exact",
    load: Annotated[
        float | None,
        typer.Option(min=0.01, help="Stretch the gaps between submissions to this offered load."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, to see what it would do."),
    ] = None,
    preemptible: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Jobs of this class may be stopped for the others."),
    ] = None,
    checkpoint: Annotated[
        float,
        typer.Option(min=0, help="They go on from every so many seconds; 0: they begin anew."),
    ] = 0.0,
    days: Annotated[
        float, typer.Option(min=0, help="How far back the history goes; 0 is all of it.")
    ] = 7.0,
    notebooks: Annotated[
        str | None,
        typer.Option(
            metavar="NxSHARE[:MEM]",
            help="Notebooks that hold shares all the time, such as 16x0.25 or 16x0.25:5G.",
        ),
    ] = None,
    busy: Annotated[
        float, typer.Option(help="The part of the time in which a cell runs in each of them.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="By what their cells are drawn.")] = 1,
    starts: Annotated[
        Path | None, typer.Option(help="Write what was decided: id,start,cards as CSV.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of it as SVG.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Replay a workload and tell how long its jobs would have waited."""
    from dataclasses import replace

    from gpuqueue.errors import InvalidRequest
    from gpuqueue.simulate.engine import Estimates, replay
    from gpuqueue.simulate.lending import beside, fitting
    from gpuqueue.simulate.notebooks import Habits, kernels_of
    from gpuqueue.simulate.report import measure, picture, write_starts
    from gpuqueue.simulate.trace import preempting, read_trace, scaled_to_load

    try:
        mode = Estimates(estimates)
    except ValueError:
        raise InvalidRequest("estimates", "must be exact, user or learned") from None
    own = trace == "history"
    settings = _settings(change or [], own=own)
    machine = _machine(gpus, own=own)
    jobs = _history(days) if own else read_trace(Path(trace), len(machine))
    if not jobs:
        raise InvalidRequest("trace", "no job of this machine ended in that time; see --days")
    policy = _policy(settings, machine, unbounded=not own and not _sets(change or [], "slots"))
    kernels = kernels_of(notebooks, machine, policy) if notebooks is not None else []
    possible = fitting(jobs, kernels, machine, policy)
    too_large, jobs = len(jobs) - len(possible), possible
    if load is not None:
        jobs = scaled_to_load(jobs, len(machine), load)
    if preemptible is not None:
        jobs = preempting(jobs, preemptible)
        policy = replace(policy, checkpoint=checkpoint)
    lent: dict[str, Any] = {}
    if kernels:
        habits = Habits(busy, seed)
        outcome, figures = beside(jobs, kernels, machine, policy, habits, estimates=mode)
        lent = {"without_room": too_large, **figures.told()}
    else:
        outcome = replay(jobs, machine, policy, mode)
    if starts is not None:
        write_starts(starts, outcome)
    if plot is not None:
        plot.write_text(picture(outcome, len(machine)), encoding="utf-8")
    found = measure(jobs, outcome, len(machine))
    if lent:
        found = {name: found.get(name) for name in _BESIDE} | lent
    typer.echo(json.dumps(found) if as_json else _table(found))


def _sets(changes: Sequence[str], name: str) -> bool:
    return any(text.partition("=")[0].strip() == name for text in changes)


def _settings(changes: Sequence[str], *, own: bool) -> Settings:
    import tomllib

    from gpuqueue.errors import InvalidRequest
    from gpuqueue.paths import find_home
    from gpuqueue.settings import Settings, load_settings, settings_from

    table: dict[str, Any] = {}
    if own:
        known = load_settings(find_home().config).as_dict()
        default = Settings().as_dict()
        table = {name: value for name, value in known.items() if value != default[name]}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequest("set", f"{text!r} is not KEY=VALUE")
        try:
            table[name.strip()] = tomllib.loads(f"value = {value.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            table[name.strip()] = value.strip()
    return settings_from(table, "--set")


def _machine(gpus: str | None, *, own: bool) -> tuple[Gpu, ...]:
    from gpuqueue.gpus import detect
    from gpuqueue.gpus.fake import parse_fake

    if gpus is not None:
        return parse_fake(f"{gpus}x80G" if gpus.isdigit() else gpus, "gpus")
    if not own:
        return parse_fake("8x80G", "gpus")
    devices = detect("")
    try:
        return devices.gpus()
    finally:
        devices.close()


def _policy(settings: Settings, machine: Sequence[Gpu], *, unbounded: bool) -> Any:
    from dataclasses import replace

    from gpuqueue.control.machine import policy_of

    policy = policy_of(settings, machine)
    # a trace of another machine knows nothing of slots: only its GPUs bound it
    return replace(policy, slots=1_000_000) if unbounded else policy


def _history(days: float) -> list[TraceJob]:
    from gpuqueue.model import TERMINAL
    from gpuqueue.paths import find_home
    from gpuqueue.simulate.trace import from_history
    from gpuqueue.store import Store

    store = Store(find_home().database)
    try:
        jobs = store.jobs(states=sorted(TERMINAL), limit=1_000_000)
    finally:
        store.close()
    return from_history(jobs, since=time.time() - days * _DAY if days else 0.0)


_WORDS = {
    "jobs": "jobs",
    "refused": "refused, too large for this machine",
    "load": "offered load",
    "wait_mean_s": "mean wait",
    "wait_median_s": "median wait",
    "wait_p95_s": "95 % wait at most",
    "wait_max_s": "longest wait",
    "slowdown_mean": "mean bounded slowdown",
    "wait_wide_mean_s": "mean wait of wide jobs",
    "wait_firm_mean_s": "mean wait of jobs that are never stopped",
    "wait_preemptible_mean_s": "mean wait of preemptible jobs",
    "evictions": "jobs stopped for others",
    "lost_share": "work lost by that",
    "utilisation": "utilisation",
    "promises": "promises given",
    "promises_broken": "promises broken",
    "longest_queue": "longest queue",
    "ms_per_decision": "ms per decision",
    "without_room": "left out, for a GPU of their own",
    "idle_used": "of the idle compute used",
    "idle_used_of_what_fits": "of what could be used of it",
    "borrowers": "jobs that started on lent compute",
    "pauses": "times that one stood still",
    "pause_mean_s": "for how long, mean",
    "pause_max_s": "for how long at most",
    "paused_share": "of the time that jobs were there",
    "cells": "cells",
    "cells_that_took_back": "that took compute back",
    "cells_that_waited": "that waited for other notebooks",
    "cell_wait_mean_s": "wait of all cells, mean",
    "cell_wait_p99_s": "wait of 99 % at most",
}
_BESIDE = ("jobs", "load", "wait_mean_s", "wait_median_s", "wait_p95_s", "decisions")
"""What is told of the jobs beside notebooks too; the rest is of jobs that are never stopped."""


def _table(found: dict[str, Any]) -> str:
    from gpuqueue.units import format_duration

    lines = []
    for name, words in _WORDS.items():
        value = found.get(name)
        if value is None:
            continue
        text = format_duration(value) if name.endswith("_s") else str(value)
        lines.append(f"{words:<36} {text}")
    return "\n".join(lines)
