"""``%gpu`` and ``%%gpu``. Loading this costs next to nothing: the rest comes with the first use."""

from __future__ import annotations

from typing import Any

from gpuqueue.magics.activity import begin, end

__all__ = ["load", "unload"]

_MARK = "_gpuqueue_loaded"


def load(ipython: Any) -> None:
    """Register the magics and their completion; doing it twice changes nothing."""
    if getattr(ipython, _MARK, False):
        return

    def gpu(line: str, cell: str | None = None) -> Any:
        from gpuqueue.magics.shown import refused

        if cell is None:
            from gpuqueue.magics.verbs import run_line

            work = run_line
        else:
            from functools import partial

            from gpuqueue.magics.cells import run_cell

            work = partial(run_cell, source=cell)
        with refused(ipython):
            return work(ipython, line)

    gpu.__doc__ = _HELP
    ipython.register_magic_function(gpu, "line_cell", "gpu")
    setattr(ipython, _MARK, True)
    begin(ipython)
    from gpuqueue.magics.endings import watch

    watch(ipython)
    completer = getattr(ipython, "Completer", None)
    if completer is not None:
        from gpuqueue.magics.complete import add_matcher

        add_matcher(completer)


def unload(ipython: Any) -> None:
    """Take the magics and their completion away; harmless if they are not there."""
    if not getattr(ipython, _MARK, False):
        return
    setattr(ipython, _MARK, False)
    end(ipython)
    from gpuqueue.magics.endings import unwatch

    unwatch(ipython)
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("gpu", None)
    completer = getattr(ipython, "Completer", None)
    if completer is not None:
        from gpuqueue.magics.complete import remove_matcher

        remove_matcher(completer)


_HELP = """Run a cell as a job, or ask about jobs.

As a cell magic, the cell runs in a process of its own, when the GPUs it asks for are free; it gets
the variables it reads, and those it assigns come back::

    %%gpu [--light | --one | --two | --exclusive | --cpu | --preset NAME]
          [--gpus N] [--share 0.25] [--mem 6G] [--slots N] [--eta 40m]
          [--priority [N]] [--after 12,13] [--tag NAME] [--key NAME] [--restartable] [--preemptible]
          [--require memory=hard] [--burst] [--no-wait] [--bg] [--in a,b] [--out r]

    --priority   higher starts first; without a number: before all that wait now
    --require    refuse it unless its share is capped: compute=hard, memory=hard, or both
    --burst      it may use idle compute beyond its --share
    --no-wait    refuse instead of queueing, if it cannot start now
    --bg         return the job at once; its output still comes here, its variables come with
                 %gpu pull ID
    --in, --out  the variables to send and to bring back, instead of those found by themselves

As a line magic::

    %gpu [status]                        GPUs, queue and recent jobs; alone, also its own share
    %gpu jobs                            the latest jobs
    %gpu logs ID [-f] [-n N]             what a job wrote; a cell's outputs are shown again
    %gpu show ID                         all about a job
    %gpu wait ID                         wait for its end
    %gpu pull ID [NAME...]               bring the variables that a cell job made
    %gpu cancel ID...    %gpu retry ID    %gpu priority ID [N]    %gpu swap A B
    %gpu resize ID [--share F] [--mem SIZE]   another size, also as it runs
    %gpu submit [options] -- COMMAND     queue a script
    %gpu share                           this notebook's own share of a GPU
    %gpu share 0.5 20G                   another share; %gpu share none leaves it to the settings
    %gpu attach [0.25 20G]               get a share for a kernel that has none
    %gpu release                         give it back
"""
