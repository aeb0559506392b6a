"""Kill processes of ours at random instants: whatever dies, every job comes back right.

In three parts, which may run side by side: 300 kills in all. One that has not made its share of
them in time has failed. How many there were, and the seed of each part, is told at the end of the
run. ``GPUQUEUE_CHAOS_SEED=<seed> pytest -m chaos -k first`` repeats the choices of a part (which
instants the machine makes of them it decides); ``GPUQUEUE_CHAOS_KILLS=3000
GPUQUEUE_CHAOS_SECONDS=7200`` is a longer run.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from operator import attrgetter
from pathlib import Path

import pytest
from conftest import leads_of, until
from failure_checks import Audit, Broken, Evidence, check_job, check_store, timeline
from failure_choices import VICTIMS, Cancel, Cell, Kill, Late, Make, Round, Submit, rounds
from failure_processes import Host, Killer, ours, waiting_bytes
from failure_programs import CELL, CLIENTS, NOTEBOOK, RESUMABLE, SCRIPT

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.lead import ensure_lead
from gpuqueue.model import TERMINAL, Job, JobState
from gpuqueue.paths import Home
from gpuqueue.run.process import alive, identify, send_signal

_PARTS = ("first", "second", "third")
_KILLS = -(-int(os.environ.get("GPUQUEUE_CHAOS_KILLS", "300")) // len(_PARTS))
_SECONDS = float(os.environ.get("GPUQUEUE_CHAOS_SECONDS", "480"))
_SELDOM = {"server", "spare"}
_START = attrgetter("start")
_SETTINGS = 'slots = 8\ngrace = 0.2\nsave_time = 5.0\nui_port = 0\nspare_memory = "512M"\n'


class Failures:
    """The clients, the killer, and what is known of the jobs."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.audit, self.locks = folder / "audit", folder / "locks"
        self.script, self.resumable = folder / "job.sh", folder / "job.py"
        self.audit.touch()
        self.locks.mkdir()
        self.script.write_text(SCRIPT)
        self.resumable.write_text(RESUMABLE)
        self.made: dict[str, Make] = {}
        self.ids: dict[str, int] = {}
        self.errors: list[str] = []
        self.ready = self.started = 0
        self.cancelled: set[int] = set()
        self.final: dict[int, Job] = {}
        self.killer = Killer(home)
        self.clients = Host(CLIENTS, self._answered)
        self.notebook = Host(NOTEBOOK, self._answered)
        self.client = LocalClient(home)
        self.server: subprocess.Popen[bytes] | None = None
        self._number = 0
        until(lambda: self.ready == 2, what="the clients' hosts are up")

    def _answered(self, words: dict) -> None:
        if "ready" in words:
            self.ready += 1
        elif "error" in words:
            self.errors.append(str(words))
        elif "id" in words:
            self.ids[words["token"]] = words["id"]
        else:
            if (process := identify(words["pid"])) is not None:
                self.killer.clients.append(process)
            self.started = words["client"]

    # -- what a round does -------------------------------------------------------------------

    def play(self, what: Round) -> None:
        if what.server:
            self._start_server()
        for action in what.actions:
            if isinstance(action, Late):
                self._be_late(action)
                continue
            time.sleep(action.delay)  # the random instant
            if isinstance(action, Kill):
                self.killer.kill(action.kind, action.which)
            elif isinstance(action, Submit):
                self._submit(action.jobs)
            elif isinstance(action, Cell):
                self.made[action.job.token] = action.job
                source = CELL.format(
                    audit=str(self.audit), token=action.job.token, seconds=action.job.seconds
                )
                self.notebook.order([action.job.token, source])
            elif isinstance(action, Cancel):
                self._cancel(action.back)

    def _be_late(self, what: Late) -> None:
        self._submit((what.warm,))
        until(lambda: self._are((what.warm,), TERMINAL), what="there is a launcher")
        launcher = until(lambda: max(ours(self.home).get("launcher", ()), key=_START, default=None))
        lead = self.killer.above(launcher)
        send_signal(launcher, signal.SIGSTOP)
        try:
            self._submit(what.jobs)
            until(lambda: waiting_bytes(launcher), what="the orders are on their way")
            if lead is not None:
                self.killer.kill_this(lead[1], lead[0])
            self._submit(what.more)
            states = TERMINAL if what.over else {*TERMINAL, JobState.RUNNING}
            until(lambda: self._are(what.jobs, states), what="another lead has given them again")
            time.sleep(what.delay)  # the random instant
        finally:
            send_signal(launcher, signal.SIGCONT)

    def _are(self, makes: tuple[Make, ...], states: Collection[JobState]) -> bool:
        """Whether all of these are in such a state."""
        numbers = [self.ids.get(make.token) for make in makes]
        return None not in numbers and all(
            self.client.store.job(number).state in states for number in numbers
        )

    def _start_server(self) -> None:
        """One that stands by for the lead, as long as it is not killed."""
        if self.server is None or self.server.poll() is not None:
            self.server = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpuqueue_jupyter", "--port=0", "--no-browser"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def _submit(self, jobs: tuple[Make, ...]) -> None:
        orders = []
        for make in jobs:
            self.made[make.token] = make
            orders.append(
                {
                    "token": make.token, "kind": make.kind, "call": self._call(make),
                    "options": dict(make.options) | {"after": self._parents(make)},
                }
            )  # fmt: skip
        self._number += 1
        self.clients.order([self._number, orders])

    def _parents(self, make: Make) -> list[int]:
        mine = int(make.token[1:])
        names = [f"t{mine - back}" for back in make.after]
        return [self.ids[name] for name in names if name in self.ids]

    def _call(self, make: Make) -> list:
        if make.kind == "function":
            return [str(self.audit), make.token, make.seconds, -1 if make.code else 7]
        if make.kind == "resumable":
            state = self.folder / f"state-{make.token}"
            steps = max(1, int(make.seconds / 0.04))
            return [
                sys.executable, "-P", str(self.resumable), str(self.audit), make.token,
                str(steps), str(make.code), str(state),
            ]  # fmt: skip
        ending = f"exit {make.code}" if make.code >= 0 else f"signal {-make.code}"
        whole = "share" not in dict(make.options)
        return [
            "sh", str(self.script), str(self.audit), make.token, str(make.seconds), ending,
            str(self.locks), "-x" if whole else "-s", "family" if make.family else "",
        ]  # fmt: skip

    def _cancel(self, back: int) -> None:
        number = self.ids.get(f"t{len(self.made) - back}")
        if number is not None:
            self.cancelled.add(number)
            self._number += 1
            self.clients.order([self._number, [{"cancel": number}]])

    # -- quiet -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until all that was asked for has ended, and check it."""
        until(self._clients_are_done, what="the clients end")
        accepted = set(self.ids)
        known = {job.tag for job in self._jobs()}
        missing = [make for name, make in self.made.items() if name not in known]
        for make in missing:
            assert make.token not in accepted, f"{make} was accepted and is gone"
            if make.kind != "cell":  # its client was killed before it was asked for
                self._submit((make,))
        if missing:
            until(self._clients_are_done, what="the clients end")
        until(lambda: not self._cells() - self.ids.keys(), what="the notebook has sent its cells")
        while live := self.client.store.live():
            self.client.wait(live[0].id, 90)
        assert not self.errors, self.errors
        self.check()

    def _clients_are_done(self) -> bool:
        return self.started == self._number and not any(map(alive, self.killer.clients))

    def _cells(self) -> set[str]:
        return {make.token for make in self.made.values() if make.kind == "cell"}

    def _jobs(self) -> list[Job]:
        return self.client.store.jobs(limit=10**6)

    def check(self) -> None:
        jobs = self._jobs()
        by_id = {job.id: job for job in jobs}
        tags = collections.Counter(job.tag for job in jobs)
        assert not tags.keys() - self.made.keys(), "jobs that nobody asked for"
        assert set(tags.values()) <= {1}, tags.most_common(3)
        for token, number in self.ids.items():
            assert by_id[number].tag == token
        events = collections.defaultdict(list)
        for event in self.client.store.events(limit=10**7):
            events[event.job].append(event)
        audits = Audit.read(self.audit.read_text())
        for job in jobs:
            if job.id in self.final:
                assert job == self.final[job.id], "an ended job has changed"
                continue
            seen = Evidence(
                self.made[job.tag], job, events[job.id], audits.get(job.tag, Audit()),
                [by_id[number] for number in job.request.after], job.id in self.cancelled,
            )  # fmt: skip
            try:
                assert job.state in TERMINAL
                check_job(seen, self.home, self.killer.kills)
            except Broken as broken:
                told = timeline(seen, self.killer.kills, self.home)
                pytest.fail(f"job {job.id}: {broken}\n{told}", pytrace=False)
            if self.made[job.tag].kind == "function" and job.state is JobState.SUCCEEDED:
                assert gpuqueue.job(job.id).result(10) == 7
            self.final[job.id] = job
        check_store(self.home)

    def close(self) -> None:
        self.clients.close()
        self.notebook.close()
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        self.client.close()


def _ended(home: Home) -> bool:
    """End the controllers, also one that follows a server that was killed; whether none is left."""
    for pid in leads_of(home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return not ours(home)


@pytest.mark.chaos
@pytest.mark.timeout(_SECONDS + 600)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.parametrize("part", _PARTS)
def test_whatever_is_killed_every_job_comes_back_right(
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    part: str,
) -> None:
    seed = int(os.environ.get("GPUQUEUE_CHAOS_SEED", time.time_ns() % 10**6))
    seed += 10**6 * _PARTS.index(part)
    print(f"GPUQUEUE_CHAOS_SEED={seed} for {_KILLS} kills")
    home.config.write_text(_SETTINGS)
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "3x24G")  # odd: one is left beside those who want two
    failures = Failures(home, tmp_path)
    kills = failures.killer.kills
    began = time.monotonic()
    try:
        for what in rounds(seed):
            failures.play(what)
            failures.settle()
            if len(kills) >= _KILLS or time.monotonic() - began > _SECONDS:
                break
    finally:
        failures.close()
        took = time.monotonic() - began
        told = f"{len(kills)} kills in {took:.0f} s, GPUQUEUE_CHAOS_SEED={seed}"
        record_property("told", told)
        record_property("kills", len(kills))
    kinds = collections.Counter(killed.kind for killed in kills)
    states = collections.Counter(str(job.state) for job in failures.final.values())
    lost = sum("lost" in job.reason for job in failures.final.values())
    print(f"{told}: {dict(kinds)}; {dict(states)}, {lost} lost with their runner")
    until(lambda: _ended(home), what="no process of ours is left")
    assert len(kills) >= _KILLS, f"only {told}"
    assert len(failures.final) >= len(kills)
    assert _KILLS < 100 or kinds.keys() >= VICTIMS - _SELDOM, "a kind was never killed"
    assert ensure_lead(home, autostart=False, line="submit") is False
