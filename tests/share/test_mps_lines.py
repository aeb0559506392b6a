"""A daemon of MPS that hangs, and jobs on another card: as the controller's threads meet it."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import until
from mps_stage import ONE, TWO, Stage, drivers, stage
from share_cards import needs_compiler

from gpuqueue.control.holding import Holder
from gpuqueue.model import Gpu, Grant, Job, JobKind, JobState, Origin, Placement, Request
from gpuqueue.paths import Home
from gpuqueue.share import Ladder

pytestmark = [needs_compiler, pytest.mark.timeout(300)]
__all__ = ["drivers", "stage"]

CARDS = tuple(Gpu(uuid, index, "pretend", 2**34) for index, uuid in enumerate((ONE, TWO)))


def on(gpu: str, number: int) -> Job:
    """A job that is about to start there, with a part of it."""
    part = Placement((Grant(gpu, 250, 2**30, whole=False),), 1)
    return Job(number, JobKind.SCRIPT, JobState.STARTING, Request(), "a", "me", "s", "/", Origin(),
               0, 1, attempt=1, placement=part)  # fmt: skip


def test_a_daemon_that_hangs_delays_no_start_on_another_card(home: Home, stage: Stage) -> None:
    """The same with MPS as far as it is there without a GPU: limits of minutes, nothing waits."""
    mps = stage.mps(ONE, TWO)
    holder = Holder(home, lambda *_: Ladder([mps]))
    holder.know(CARDS)
    until(lambda: not holder.trying, 120, what="MPS is tried")
    first = on(ONE, 1)
    holder.start(first, home.attempt(1, 1), None)
    (told,) = until(holder.take, 60)
    assert told.value.by == ("MPS",)
    stage.behave(sick=[ONE])
    asked = len(stage.commands)
    holder.release(home.attempt(1, 1))
    until(lambda: len(stage.commands) > asked, what="its daemon was asked, and hangs")
    second, third = on(ONE, 2), on(TWO, 3)
    holder.start(second, home.attempt(2, 1), None)
    holder.start(third, home.attempt(3, 1), None)
    (told,) = until(holder.take, 60, what="the start on the other card")
    assert (told.job, told.value.by) == (3, ("MPS",))
    holder.release(home.attempt(3, 1))
    until(lambda: not stage.daemons(TWO), 60, what="and its daemon ends with it")
    assert not holder.take()  # the other still hangs
    stage.behave()
    for pid in stage.daemons(ONE):  # its control program is told of that
        os.kill(pid, signal.SIGKILL)
    (told,) = until(holder.take, 60)
    assert told.job == 2
    holder.release(home.attempt(2, 1))
    until(lambda: not stage.daemons(ONE), 60)
    holder.close()
