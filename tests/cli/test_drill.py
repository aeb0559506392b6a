"""The drill: killed in the middle and run again, a job goes on or starts anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from cli_program import PROGRAM, gq, ok, queued, refused
from conftest import until

import gpuqueue
from gpuqueue.client.drilled import Drill, Point, judge, points_of, remarks, saved_point, told_apart
from gpuqueue.errors import InvalidRequest, JobFailed
from gpuqueue.model import TERMINAL
from gpuqueue.run.process import marked

TOY = """
import sys, time
from gpuqueue import checkpoint

how = sys.argv[1]
folder = checkpoint.checkpoint_dir()
step = 0
last = checkpoint.latest_checkpoint(folder)
if last and how != "anew":
    assert checkpoint.resuming()
    step = int(last.read_text())
while how != "short" or step < 3:
    loss = 1 / (step + 1) + (how == "other" and last is not None) * 1e-3
    if how != "silent":
        checkpoint.log(step, loss=loss, epoch=step // 10)
    step += 1
    if how not in ("unsaved", "asked", "asked in vain") and step == 5:
        with checkpoint.atomic_path(folder / f"step{step}.pt") as made:
            made.write_text(str(step))
    if how.startswith("asked") and checkpoint.should_stop():
        if how == "asked":
            with checkpoint.atomic_path(folder / "last.pt") as made:
                made.write_text(str(step))
        sys.exit(0)
    while how == "unsaved" and step == 58:
        time.sleep(0.05)
    time.sleep(0.01)
"""


@pytest.fixture
def toy(home, tmp_path):
    """The path of a script that trains nothing, in one of several ways."""
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return str(path)


def commands(client):
    return [job.command for job in reversed(client.store.jobs())]


def nothing_left(home, client):
    assert all(job.state in TERMINAL for job in client.store.jobs())
    assert not [path for path in home.root.iterdir() if path.name.startswith("gpuqueue-drill")]
    for job in client.store.jobs():
        assert not marked("GPUQUEUE_ATTEMPT_DIR", str(home.attempt(job.id, 1)))


def test_a_script_that_goes_on_passes(home, client, toy):
    told = json.loads(ok("drill", "--json", "--", sys.executable, toy, "good"))
    assert told["passed"]
    assert told["problems"] == []
    assert told["saved"]["step"] >= 4
    assert told["stopped"]["step"] >= told["saved"]["step"] >= told["resumed"]["step"] - 1
    assert told["resumed"]["epoch"] == told["resumed"]["step"] // 10
    assert "loss is equal at" in told["remarks"][0]
    assert "never calls checkpoint.should_stop()" in told["remarks"][1]
    first, second = commands(client)
    assert second == f"GPUQUEUE_RESUME=1 {first}"
    ends = [client.job(number).reason for number in told["jobs"]]
    assert "SIGKILL" in ends[0]
    assert ends[1].startswith("cancelled")
    nothing_left(home, client)


def test_one_that_starts_anew_fails(home, client, toy):
    done = gq("drill", "--at", "57", "--", sys.executable, toy, "unsaved")
    assert done.returncode == 1
    assert "failed: step went 57 -> 0: it starts anew, and has saved no checkpoint" in done.stdout
    assert done.stdout.splitlines()[0].split() == ["STEP", "EPOCH", "LOSS"]
    nothing_left(home, client)


def test_the_work_of_a_job_from_python(home, client, toy):
    job = gpuqueue.submit([sys.executable, toy, "anew"], tag="mine")
    found = job.drill()
    assert not found.passed
    assert found.saved is not None
    said = f"step went {found.stopped.step} -> 0: it starts anew, though it had saved a checkpoint"
    assert found.problems[0].startswith(said)
    assert said in repr(found)
    assert not job.done()
    assert gpuqueue.job(found.jobs[0]).tag == "drill mine"
    job.cancel()
    job.wait(60)
    nothing_left(home, client)


def test_one_that_saves_when_it_is_asked(home, client, toy):
    told = json.loads(ok("drill", "--ask", "--json", "--", sys.executable, toy, "asked"))
    assert told["problems"] == []
    assert told["jobs"] == [1, 1]
    assert told["resumed"]["step"] == told["stopped"]["step"] + 1
    assert told["remarks"] == []
    done = gq("drill", "--ask", "--", sys.executable, toy, "asked in vain")
    assert done.returncode == 1
    assert "-> 0: it starts anew, and has saved no checkpoint" in done.stdout
    killed = gq("drill", "--at", "9", "--", sys.executable, toy, "asked")
    assert "it may save when it is asked to: the drill with --ask" in killed.stdout
    deaf = gq("drill", "--ask", "--", sys.executable, toy, "good")
    assert (deaf.returncode, "it calls no should_stop()" in deaf.stderr) == (2, True)
    nothing_left(home, client)


def test_a_loss_that_differs_is_said(client, toy):
    found = gpuqueue.submit([sys.executable, toy, "other"]).drill()
    assert found.passed
    assert "not all of the state came back" in found.remarks[0]


def test_refusals_say_what_to_add(home, client, toy):
    for how, words in (
        ("short", "before it had saved a checkpoint in checkpoint_dir() and gone further"),
        ("silent", "has reported nothing in 2s; add `from gpuqueue import checkpoint`"),
    ):
        done = gq("drill", "--timeout", "2s", "--", sys.executable, toy, how)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
    assert "give 1 or more" in refused("drill", "--steps", "0", "--", "true")
    assert "go with a command" in refused("drill", "--cpu", str(queued("--cpu", "true")))
    done = gq("drill", "--cpu", "--", sys.executable, "-c", "print('wrong'); raise SystemExit(3)")
    assert done.returncode == 1
    assert "exit code 3\nlast lines of its log:\nwrong" in done.stderr
    nothing_left(home, client)
    with pytest.raises(InvalidRequest, match="timeout"):
        gpuqueue.job(1).drill(timeout=0)


def test_a_second_run_that_ends_early_fails(client, toy):
    crash = gpuqueue.submit([sys.executable, "-c", "import sys; sys.exit(3)"])
    with pytest.raises(JobFailed, match="exit code 3"):
        crash.drill()
    script = toy.replace("toy.py", "ends.py")
    with open(script, "w") as file:
        file.write("import os, sys\nif os.environ['GPUQUEUE_RESUME'] == '1':\n    print('gone')\n")
        file.write("    sys.exit(int(sys.argv[1]))\nsys.argv[1] = 'good'\n" + TOY)
    for code, words in (("0", "as if there were nothing left to do"), ("4", "exit code 4\nlast")):
        job = gpuqueue.submit([sys.executable, script, code], preset="cpu")
        found = job.drill()
        job.cancel()
        assert not found.passed
        assert words in found.problems[0]
        assert found.resumed is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_an_interrupt(home, client, toy, number):
    words = [PROGRAM, "drill", "--", sys.executable, toy, "unsaved"]
    drill = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ)
    until((home.attempt(1, 1) / "progress.jsonl").exists)
    drill.send_signal(number)
    assert "Traceback" not in drill.communicate(timeout=60)[1]
    assert drill.returncode == 128 + number
    nothing_left(home, client)


# -- judging ---------------------------------------------------------------------------------------


def run(*steps, loss=None, epoch=None):
    return [
        Point(float(i), step, epoch(step) if epoch else None, loss(step) if loss else None)
        for i, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("first", "saved", "second", "words"),
    [
        (range(58), 40, [40, 41], ""),
        (range(58), 40, [41], ""),  # saved before it was reported
        (range(58), 40, [58], ""),
        (range(58), 40, [39], ""),
        (range(58), 40, [0], "step went 57 -> 0: it starts anew, though it had saved"),
        (range(58), 40, [20], "step went 57 -> 20: that is before its checkpoint of step 40"),
        (range(58), 40, [90], "step went 57 -> 90: it leaves out"),
        (range(58), None, [0], "step went 57 -> 0: it starts anew, and has saved no"),
        (range(0, 60, 10), 40, [30], ""),
        (range(0, 60, 10), 40, [10], "step went 50 -> 10"),
        ([5, 6, 7, 8, 9], 8, [5], "step went 9 -> 5: it starts anew"),
    ],
)
def test_steps(first, saved, second, words):
    first = run(*first)
    point = None if saved is None else next(p for p in first if p.step == saved)
    found = judge(first, point, run(*second))
    assert (found[0] if found else "").startswith(words)
    assert bool(found) == bool(words)


def test_epochs_and_losses():
    def fallen(step):
        return 2.0 / (1 + step)

    def tenth(step):
        return step // 10

    first = run(*range(58), loss=fallen, epoch=tenth)
    saved = first[40]
    good = run(41, 42, loss=fallen, epoch=tenth)
    assert judge(first, saved, good) == []
    assert remarks(first, good) == ["loss is equal at 2 steps of both runs"]
    assert judge(first, saved, run(41, epoch=lambda _: 0)) == ["epoch went 4 -> 0 at step 41"]
    assert judge(first, saved, run(58, epoch=tenth)) == []
    (said,) = judge(first, saved, run(41, loss=lambda _: 1.9))
    assert said.startswith("loss went 0.04762 -> 1.9 at step 41, as at the start (2)")
    near = run(41, loss=lambda step: fallen(step) + 1e-3)
    assert judge(first, saved, near) == []
    assert "not all of the state came back" in remarks(first, near)[0]
    # a loss without a trend is no sign of anything
    noisy = run(*range(58), loss=lambda step: (step * 7919) % 13)
    assert judge(noisy, noisy[40], run(41, loss=lambda _: noisy[0].loss)) == []
    assert remarks(first, run(58)) == []


def test_what_counts_as_a_report():
    notes = [
        {"at": 1.0, "step": None, "metrics": {"lr": 0.1}},
        {"at": 2.0, "step": None, "metrics": {"epoch": 3, "train_loss": 0.5}},
        {"at": 3.0, "step": 7, "metrics": {"loss": "nan", "eval_loss": 0.25, "epoch": True}},
    ]
    assert points_of(notes) == [Point(2.0, 3, 3, 0.5), Point(3.0, 7, None, 0.25)]
    found = run(0, 1, 2, 3)
    assert saved_point(found, 1.5) == found[1]
    assert saved_point(found, -1) is None
    assert [told_apart(found, point) for point in found] == [False, False, True, True]
    empty = Drill((1, 2), found[0], None, found[3], None, ("it is gone",))
    assert [word for word, _ in empty.rows()] == ["began", "stopped"]
    assert empty.message == "failed: it is gone"
    assert empty.to_dict()["saved"] is None
