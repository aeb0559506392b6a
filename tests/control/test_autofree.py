"""When the GPUs are taken back by themselves, on a clock of the test's own."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from conftest import until

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.control.autofree import (
    AUTOMATIC,
    PERSON,
    Program,
    Rules,
    Watched,
    decide,
    is_heavy,
    programs_of,
    rules_of,
)
from gpuqueue.control.machine import Machine
from gpuqueue.model import GpuProcess, JobState, Mode, ModeName, ProcessId, Reading
from gpuqueue.settings import Settings

M = 1024**2
RULES = replace(rules_of(Settings()), enabled=True, apps=("blender", "*.x86_64"))


def program(name: str = "python", size: int | None = 2000, pid: int = 7) -> Program:
    return Program(ProcessId(pid, 1, "boot"), (name,), None if size is None else size * M)


@dataclass
class Desk:
    """Somebody's machine, a second at a time, with the mode that follows."""

    rules: Rules = RULES
    mode: Mode = field(default_factory=Mode)
    watched: Watched = field(default_factory=Watched)
    now: float = 1000.0

    def see(self, *programs: Program) -> str:
        """One look; what it does."""
        self.watched, verdict = decide(self.watched, programs, self.mode, self.rules, self.now)
        self.mode = replace(self.mode, latched=verdict.latched)
        if verdict.action == "free":
            self.mode = Mode(ModeName.FREE, AUTOMATIC, program=verdict.program)
        elif verdict.action == "resume":
            self.mode = Mode()
        return verdict.action

    def after(self, seconds: float, *programs: Program) -> str:
        """Looks once a second for so long; the first that it does."""
        for _ in range(int(seconds)):
            self.now += 1
            if action := self.see(*programs):
                return f"{action} at {self.now - 1000:g}"
        return ""

    def by_hand(self, name: ModeName, *there: Program) -> None:
        heavy = tuple(p.process for p in there if is_heavy(p, self.rules))
        if name is ModeName.NORMAL:
            self.mode = Mode(latched=heavy)
        else:
            self.mode = Mode(name, PERSON)


def test_ten_seconds_to_free_and_two_minutes_to_resume() -> None:
    desk, game = Desk(), program("game")
    assert desk.see(game) == ""
    assert desk.after(9, game) == ""
    assert desk.after(1, game) == "free at 10"
    assert desk.mode.program == "game (pid 7, 2G)"
    assert desk.after(500, game) == ""
    left = desk.now
    desk.now += 1
    assert desk.see() == ""  # the first look at which it is gone
    assert desk.after(119) == ""
    assert desk.after(1) == f"resume at {left + 1 + 120 - 1000:g}"


def test_a_short_use_is_not_enough_and_a_pause_begins_anew() -> None:
    desk = Desk()
    desk.see(program())
    assert desk.after(9, program()) == ""
    assert desk.after(1) == ""
    desk.see(program())
    assert desk.after(9, program()) == ""
    assert desk.after(1, program()) != ""


def test_one_program_that_hands_over_to_another_is_one_use() -> None:
    desk = Desk()
    desk.see(program("launcher", pid=7))
    desk.after(5, program("launcher", pid=7))
    assert desk.after(5, program("game", pid=8)) == "free at 10"
    assert desk.mode.program.startswith("game")


@pytest.mark.parametrize(
    ("name", "size", "heavy"),
    [
        ("other", 900, False),
        ("other", 1024, False),
        ("other", 1025, True),
        ("blender", 50, True),
        ("Blender", 50, True),
        ("blender", None, True),
        ("other", None, False),
        ("Title.x86_64", 1, True),
        ("firefox", 3000, False),
        ("firefox-bin", 3000, False),
        ("Xorg", 3000, False),
        ("gnome-shell", 3000, False),
        ("Discord", 3000, False),
        ("python3.11", 2000, True),
    ],
)
def test_what_is_heavy(name: str, size: int | None, heavy: bool) -> None:
    assert is_heavy(program(name, size), RULES) is heavy


def test_one_that_is_listed_and_to_be_ignored_counts() -> None:
    assert is_heavy(program("firefox", 10), replace(RULES, apps=("firefox",)))


def test_nothing_by_itself_unless_it_is_switched_on() -> None:
    assert not Settings().auto_free
    assert Desk(rules=replace(RULES, enabled=False)).after(100, program()) == ""


def test_switched_off_meanwhile_it_still_gives_back() -> None:
    desk = Desk()
    desk.after(12, program())
    assert not desk.mode.normal
    desk.rules = replace(RULES, enabled=False)
    assert desk.after(130) != ""
    assert desk.mode.normal


def test_what_a_person_took_only_a_person_gives_back() -> None:
    desk = Desk()
    desk.by_hand(ModeName.FREE)
    assert desk.after(60, program()) == ""
    assert desk.after(1000) == ""
    assert desk.mode.by == PERSON


def test_a_person_who_gives_back_is_not_overruled_by_the_program_that_is_there() -> None:
    desk, game = Desk(), program("game")
    desk.after(12, game)
    assert desk.mode.by == AUTOMATIC
    desk.by_hand(ModeName.NORMAL, game)
    assert desk.after(600, game) == ""
    # it has become small: still there
    assert desk.after(30, program("game", 10)) == ""
    assert desk.after(30, game) == ""
    # nor does another take its place as long as it is there
    assert desk.after(30, game, program("other", pid=9)) == ""
    assert desk.after(1) == ""
    assert desk.mode.latched == ()
    back = program("game", pid=8)
    desk.see(back)
    assert desk.after(9, back) == ""
    assert desk.after(1, back).startswith("free")


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_and_goes(seed: int) -> None:
    """What holds on any day: three rules, checked against all that was seen."""
    chance = random.Random(seed)
    desk, there, latch = Desk(), [], set()
    busy = quiet = 0.0
    for _ in range(3000):
        desk.now += 1
        if chance.random() < 0.02:
            there = [p for p in there if chance.random() < 0.4]
        if chance.random() < 0.02:
            names = ["game", "firefox", "blender"]
            pid = chance.randrange(10**6)
            there.append(program(chance.choice(names), chance.choice([50, 900, 3000]), pid))
        heavy = [p for p in there if is_heavy(p, RULES)]
        busy, quiet = (busy + 1, 0.0) if heavy else (0.0, quiet + 1)
        latch &= {p.process for p in there}
        was = desk.mode
        action = desk.see(*there)
        if action == "free":
            assert was.normal
            assert busy > RULES.after
            assert not latch
        if action == "resume":
            assert was.by == AUTOMATIC
            assert quiet > RULES.resume_after
        if was.normal and not action and not latch:
            # counted from the look at which nothing stood against it
            assert desk.watched.busy_since is None or desk.now - desk.watched.busy_since < 10
        if chance.random() < 0.005:
            desk.by_hand(ModeName.NORMAL, *there)
            latch = set(desk.mode.latched)
        elif chance.random() < 0.003:
            desk.by_hand(ModeName.FREE)


def test_a_job_a_share_and_a_stranger_are_none_of_the_person_s_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real processes: only the last one counts."""
    environments = ({"GPUQUEUE_ATTEMPT_DIR": "/x"}, {"GPUQUEUE_SHARE": "0.5"}, {})
    started = [
        subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"]} | env)
        for env in environments
    ]
    try:
        until(lambda: all(Path(f"/proc/{p.pid}/comm").read_text() == "sleep\n" for p in started))
        reading = Reading("A", processes=tuple(GpuProcess(p.pid, 2000 * M) for p in started))
        found = programs_of(Machine(readings=(reading, replace(reading, gpu="B"))), ())
        assert [(p.process.pid, p.names, p.memory) for p in found] == [
            (started[2].pid, ("sleep",), 4000 * M)
        ]
        monkeypatch.setattr(os, "getuid", lambda: os.stat("/proc/self").st_uid + 1)
        assert programs_of(Machine(readings=(reading,)), ()) == []
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_program_started_by_hand_frees_and_gives_back(home, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(tmp_path / "procs"))
    (tmp_path / "procs").touch()
    home.config.write_text("auto_free = true\nauto_free_after = 1\nauto_resume_after = 1\n")
    job = gpuqueue.submit(["sleep", "600"])
    until(lambda: job.state is JobState.RUNNING)
    shutil.copy(shutil.which("sleep") or "", tmp_path / "firefox")
    shutil.copy(shutil.which("sleep") or "", tmp_path / "train")
    browser = subprocess.Popen([tmp_path / "firefox", "600"])
    script = subprocess.Popen([tmp_path / "train", "600"])
    mode = default_client().store.mode
    try:
        lines = [f"{browser.pid}:1:3000\n", f"{job.record.process.pid}:0:9000\n"]
        (tmp_path / "procs").write_text("".join(lines))
        # both have been seen, and for longer than it takes
        seen = until(lambda: len(gpuqueue.status().to_dict()["gpus"][1]["outside_holders"]) == 1)
        assert seen
        later = gpuqueue.submit(["true"], preset="cpu")
        assert later.wait(60) == 0
        assert mode().normal
        (tmp_path / "procs").write_text("".join([*lines, f"{script.pid}:1:2000\n"]))
        until(lambda: job.state is JobState.FROZEN)
        until(lambda: mode().name is ModeName.FREE)
        assert (mode().by, mode().program) == (AUTOMATIC, f"train (pid {script.pid}, 2G)")
        held = gpuqueue.submit(["true"])
        assert held.why() == (
            f"free mode: train (pid {script.pid}, 2G) has the GPUs; nothing starts until it has "
            "gone"
        )
        (tmp_path / "procs").write_text("".join(lines))
        until(lambda: job.state is JobState.RUNNING)
        assert mode().normal
    finally:
        for process in (browser, script):
            process.kill()
            process.wait()
