"""Free mode at any moment, with leads that are killed: nothing is lost, nothing runs twice."""

from __future__ import annotations

import random
import signal

import pytest
from conftest import lead_process, until

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.control.lead import spawn_headless
from gpuqueue.model import ACTIVE, TERMINAL, JobState, ModeName
from gpuqueue.run.process import descendants, process_table, send_signal

# Each step is written down; one that can save goes on after the last that it has saved.
WORK = """
import os, sys, time
from gpuqueue import checkpoint
name, kind = sys.argv[1:]
done = 0
if kind == "saves" and os.path.exists(name):
    done = len(open(name).read())
with open(name + ".starts", "a") as file:
    file.write("x")
if kind != "saves":
    done = 0
for step in range(done, 40):
    with open(name, "a") as file:
        file.write("s")
    if kind == "saves" and checkpoint.should_stop():
        sys.exit(0)
    time.sleep(0.01)
"""


class World:
    def __init__(self, home, folder, seed):
        self.home, self.folder, self.chance = home, folder, random.Random(seed)
        self.client = default_client()
        self.jobs = {}
        (folder / "work.py").write_text(WORK)

    def submit(self):
        kind = self.chance.choice(["saves", "again", "plain"])
        name = f"{kind}{len(self.jobs)}"
        words = ["python", "work.py", name, kind]
        job = gpuqueue.submit(words, cwd=self.folder, restartable=kind == "again")
        self.jobs[name] = job

    def kill_lead(self):
        lead = lead_process(self.home)
        if lead is not None:
            send_signal(lead, signal.SIGKILL)
            spawn_headless(self.home)

    def act(self):
        chance = self.chance.random()
        if chance < 0.35:
            self.submit()
        elif chance < 0.5:
            gpuqueue.free()
        elif chance < 0.6:
            gpuqueue.free(soft=True)
        elif chance < 0.85:
            gpuqueue.resume()
        elif chance < 0.93:
            self.kill_lead()
        else:
            self.look()

    def look(self):
        """In free mode nobody starts, and what is frozen has nothing that moves."""
        mode = self.client.store.mode()
        if mode.name is not ModeName.FREE or self.client.store.open_intents():
            return
        starts = {name: self._size(f"{name}.starts") for name in self.jobs}
        steps = {name: self._size(name) for name in self.jobs}
        live = self.client.store.live()
        assert {job.state for job in live if job.state in ACTIVE} <= {JobState.FROZEN}
        small = gpuqueue.submit(["true"], preset="cpu")
        assert small.why().startswith("free mode")
        small.cancel()
        assert {name: self._size(f"{name}.starts") for name in self.jobs} == starts
        assert {name: self._size(name) for name in self.jobs} == steps

    def _size(self, name):
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def end(self):
        until(lambda: lead_process(self.home), what="somebody leads")
        gpuqueue.resume()
        until(lambda: self.client.store.mode().normal)
        until(lambda: all(job.state in TERMINAL for job in self.jobs.values()), 120)
        for name, job in self.jobs.items():
            assert job.state is JobState.SUCCEEDED, (name, job, job.reason)
            starts, steps = self._size(f"{name}.starts"), self._size(name)
            if name.startswith("plain"):
                assert (starts, steps) == (1, 40), name
            elif name.startswith("saves"):
                assert steps == 40, name
            else:
                assert steps >= 40, name


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whatever_happens(home, tmp_path, seed, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "3x24G")
    home.config.write_text("evict_timeout = 60\n")
    world = World(home, tmp_path, seed)
    for _ in range(3):
        world.submit()
    for _ in range(25):
        world.act()
    world.end()
    table = process_table() or {}
    lead = lead_process(home)
    assert lead is not None
    assert all(table[pid].state not in "Tt" for pid in descendants(lead.pid) if pid in table)
