"""A mechanism of the tests' own, and a lead in this process that holds jobs by it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import until

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.controller import Controller
from gpuqueue.control.holding import FACT, Holder
from gpuqueue.control.leading import LEAD
from gpuqueue.errors import MemoryCapError
from gpuqueue.model import ProcessId
from gpuqueue.paths import Home
from gpuqueue.run.process import identify
from gpuqueue.share import Bound, Effect, Ladder, Probe, Standing, Subject

__all__ = ["Lead", "Stand", "lead", "proven", "stand"]


@dataclass
class Stand:
    """Caps compute, as far as this test is told; ``gate`` keeps its trial waiting.

    ``odd`` is raised by its calls and is no error that a mechanism should raise; its trial breaks
    off where it is ``broken``.
    """

    name: str = "stand"
    subject: Subject = Subject.COMPUTE
    standing: Standing = Standing.CAPPED
    reports: bool = False
    usable: bool = True
    fails: str = ""
    odd: Exception | None = None
    broken: bool = False
    doubts: tuple[str, ...] = ()
    effect: Effect = Effect.NOW
    gate: threading.Event = field(default_factory=threading.Event)
    asked: list[Bound] = field(default_factory=list)
    resized: list[Bound] = field(default_factory=list)
    released: list[Path] = field(default_factory=list)
    users: list[frozenset[int]] = field(default_factory=list)

    def probe(self) -> Probe:
        assert self.gate.wait(60)
        if self.broken:
            raise ValueError("no JSON")
        return Probe(self.usable, f"{self.name} was tried.")

    def environment(self, bound: Bound) -> dict[str, str]:
        self.asked.append(bound)
        if self.odd:
            raise self.odd
        if self.fails:
            raise MemoryCapError(self.fails)
        return {"STAND": ",".join(str(part) for part in bound.compute.values()), "OWN": "ours"}

    def apply(self, bound: Bound, process: ProcessId) -> None: ...

    def resize(self, bound: Bound) -> Effect:
        self.resized.append(bound)
        if self.odd:
            raise self.odd
        if self.fails:
            raise MemoryCapError(self.fails)
        return self.effect

    def verify(self, bound: Bound, users) -> tuple[str, ...]:
        self.users.append(frozenset(users))
        return self.doubts

    def release(self, bound: Bound) -> None:
        self.released.append(bound.folder)


class Lead:
    """A controller in this process whose jobs a ``Stand`` holds."""

    def __init__(self, home: Home, stand: Stand) -> None:
        self.stand = stand
        self.home = home
        ladder = Ladder([stand])
        self.controller = Controller(home, holder=Holder(home, lambda *_: ladder))
        me = identify(os.getpid())
        assert me is not None
        words = {"kind": "test", "url": "", "since": 0.0, "version": "", "leading": True}
        told = {"pid": me.pid, "start": me.start, "boot": me.boot} | words
        self.controller.store.set_fact(LEAD, told)
        self.thread = threading.Thread(target=self.controller.run)
        self.thread.start()

    def again(self) -> None:
        """Another lead, after this one."""
        self.end()
        self.stand.released.clear()
        self.__init__(self.home, self.stand)

    def end(self) -> None:
        self.stand.gate.set()
        self.controller.stop()
        self.thread.join(60)
        self.controller.close()


@pytest.fixture
def stand() -> Stand:
    """A mechanism that is tried at once."""
    made = Stand()
    made.gate.set()
    return made


@pytest.fixture
def lead(home: Home, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lead]:
    """A lead that holds jobs by it."""
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    made = Lead(home, stand)
    yield made
    for job in gpuqueue.jobs():
        if not job.done():
            job.cancel()
    until(lambda: all(job.done() for job in gpuqueue.jobs()))
    made.end()


@pytest.fixture
def proven(lead: Lead, client: LocalClient) -> Lead:
    """The same, once the trial is over."""
    until(lambda: (client.store.fact(FACT) or {}).get("standings"), what="the trial is over")
    return lead
