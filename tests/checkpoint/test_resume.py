"""Jobs that are asked to stop, or killed, and go on: whole processes, as users run them."""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import until

import gpuqueue
from gpuqueue.checkpoint import latest_checkpoint
from gpuqueue.run import files

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "notebooks" / "train_resumable.py"

NO_NUMPY = "No module named 'numpy'"
PACKAGE = Path(gpuqueue.__file__).parent

HOST = """
import json, os, runpy, sys
import sklearn.datasets, torch  # once: each attempt is a fork
from gpuqueue import checkpoint
from gpuqueue.run.files import ask_to_stop

# (the first optimizer imports half of torch's compiler)
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)

def run(folder, argv, step):
    os.environ["GPUQUEUE_ATTEMPT_DIR"] = folder
    note = checkpoint.log
    def log(now, **metrics):
        note(now, **metrics)
        if now == step:
            assert ask_to_stop(folder)
    checkpoint.log = log
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        sys.stdout = open(os.path.join(json.loads(line)["folder"], "log"), "w")
        run(**json.loads(line))
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def attempt():
    """Run one attempt at the example, which somebody asks to stop in the middle of a step."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")}
    host = subprocess.Popen(
        [sys.executable, "-c", HOST], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert host.stdin is not None
    assert host.stdout is not None

    def run(job, number, out, *, steps=300, asked_at=0):
        folder = job / str(number)
        folder.mkdir(parents=True)
        argv = [str(SCRIPT), "--steps", str(steps), "--out", str(out)]
        order = {"folder": str(folder), "argv": argv, "step": asked_at}
        host.stdin.write(json.dumps(order) + "\n")
        host.stdin.flush()
        assert host.stdout.readline() == "0\n"
        return folder, (folder / "log").read_text()

    yield run
    host.stdin.close()
    host.wait()
    host.stdout.close()


def test_stopped_twice_it_ends_as_if_nothing_had_happened(attempt, tmp_path):
    whole, _ = attempt(tmp_path / "whole", 1, tmp_path / "whole.pt")
    assert files.is_resumable(whole)
    assert not files.has_heard(whole)

    job = tmp_path / "job"
    for number, asked_at in ((1, 137), (2, 201)):
        folder, said = attempt(job, number, tmp_path / "end.pt", asked_at=asked_at)
        assert f"making room after step {asked_at}" in said
        assert files.has_heard(folder)  # it has stepped aside
        assert latest_checkpoint(job / "checkpoints").name == f"step{asked_at}.pt"
        assert not (tmp_path / "end.pt").exists()
    last, said = attempt(job, 3, tmp_path / "end.pt")
    assert "going on after step 201" in said
    assert not files.has_heard(last)  # it is done

    one, other = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "end"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_job_of_the_queue_is_asked(home, tmp_path):
    command = [sys.executable, SCRIPT, "--steps", "1000000000", "--out", tmp_path / "end.pt"]
    job = gpuqueue.submit(command)
    folder = job.directory / "1"
    until(lambda: files.ask_to_stop(folder), what="it says that it is resumable")
    until(lambda: job.record.attempt == 2, what="it steps aside, and is started again")
    assert files.has_heard(folder)
    until(lambda: "going on after step" in job.logs(), what="it goes on")
    job.cancel()
    job.wait(60)
    assert latest_checkpoint(job.directory / "checkpoints") is not None
    assert not (tmp_path / "end.pt").exists()


def test_a_cancelled_job_saves_in_its_grace(home, tmp_path):
    command = [sys.executable, SCRIPT, "--steps", "1000000000", "--out", tmp_path / "end.pt"]
    job = gpuqueue.submit(command)
    until(lambda: files.is_resumable(job.directory / "1"))
    job.cancel()
    with pytest.raises(gpuqueue.JobCancelled):
        job.result()
    assert latest_checkpoint(job.directory / "checkpoints") is not None


def test_a_job_whose_python_has_no_gpuqueue(home, tmp_path):
    other = tmp_path / "other" / "python"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # no site-packages
    other.chmod(0o755)
    (tmp_path / "train.py").write_text(
        "import os, sys\nfrom gpuqueue import checkpoint\n"
        "print(checkpoint.should_stop(), checkpoint.__file__)\n"
        "try: import gpuqueue.units, numpy\nexcept ImportError as error: print(error)"
    )
    env = {"PYTHONPATH": ""}
    jobs = [
        gpuqueue.submit([other, "train.py"], cwd=tmp_path, env=env),
        gpuqueue.submit(f"'{other}' train.py", cwd=tmp_path, env=env),
    ]
    for job in jobs:
        job.wait()
        assert job.logs().splitlines() == [f"False {PACKAGE / 'checkpoint.py'}", NO_NUMPY]
        assert files.is_resumable(job.directory / "1")


# -- killed inside a save --------------------------------------------------------------------------

SAVER = """
import os, sys, time
import torch
from gpuqueue import checkpoint

folder = sys.argv[1]
torch.set_num_threads(1)
weights = torch.arange(300_000)

def save():
    last = checkpoint.latest_checkpoint(folder, "step*")
    step = 0
    if last:
        step = torch.load(last / "state.pt" if last.is_dir() else last)["step"]
    while True:
        step += 1
        if step % 2:
            with checkpoint.atomic_dir(os.path.join(folder, f"step{step}")) as path:
                torch.save({"step": step, "model": {"w": weights + step}}, path / "state.pt")
        else:
            model = {"w": weights + step}
            checkpoint.save_state(os.path.join(folder, f"step{step}.pt"), model=model, step=step)
        if step % 3 == 0:
            with checkpoint.atomic_dir(os.path.join(folder, "mirror")) as path:
                (path / "step").write_text(str(step))
        checkpoint.keep(folder, last=2, pattern="step*")

for line in sys.stdin:  # one fork each: importing torch is what takes long
    pid = os.fork()
    if not pid:
        save()
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("gone", flush=True)
"""


@pytest.mark.chaos
def test_killed_inside_a_save_a_hundred_times(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    host = subprocess.Popen(
        [sys.executable, "-c", SAVER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert host.stdin is not None
    assert host.stdout is not None
    inside = before = 0
    stages: collections.Counter[str] = collections.Counter()
    for kill in range(100):
        host.stdin.write("go\n")
        host.stdin.flush()
        pid = int(host.stdout.readline())
        want = before + kill % 3  # early, and after some saves have gone well
        until(partial(is_saving, folder, pid, want))
        os.kill(pid, signal.SIGKILL)
        assert host.stdout.readline() == "gone\n"
        inside += is_saving(folder, pid)
        stages[written(folder, pid)] += 1
        last = latest_checkpoint(folder, "step*")
        now = 0
        if last is not None:
            state = torch.load(last / "state.pt" if last.is_dir() else last)
            now = state["step"]
            assert last.name.removesuffix(".pt") == f"step{now}"
            assert torch.equal(state["model"]["w"], torch.arange(300_000) + now)
        assert now >= before  # what was saved is not lost
        before = now
    host.stdin.close()
    assert host.wait() == 0
    assert inside >= 30, inside
    print(stages)  # the instants are spread over the save
    assert stages["nothing"], stages
    assert stages["all"], stages
    assert before >= 30, before
    # of the 100 only the last may have left anything behind, swept by the next that saves
    assert len([name for name in os.listdir(folder) if name.startswith(".")]) <= 2


def written(folder, pid):
    """How much of a checkpoint a killed process had written: nothing, some, all."""
    size = 300_000 * 8
    for left in folder.iterdir():
        if re.match(rf"\.gpuqueue-new-{pid}-", left.name):
            files = left.rglob("*") if left.is_dir() else [left]
            found = sum(file.stat().st_size for file in files)
            return "nothing" if not found else "all" if found > size else "some"
    return "between"


def is_saving(folder, pid, after=0):
    """Whether a process has something half written there, and a step as high has its name."""
    names = os.listdir(folder)
    steps = [int(name[4:].split(".")[0]) for name in names if name.startswith("step")]
    unfinished = re.compile(rf"\.gpuqueue-(new|old)-{pid}-")
    return max(steps, default=0) >= after and any(map(unfinished.match, names))


# -- several ranks ---------------------------------------------------------------------------------

RANK = """
import os, signal, sys
import torch.distributed as dist
from gpuqueue import checkpoint

rank, store, signalled_at = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
step = 0
while True:
    step += 1
    if rank == 1 and step == signalled_at:
        os.kill(os.getpid(), signal.SIGTERM)
    if checkpoint.should_stop(sync=True):
        break
print("stopped at", step, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["signal to one", "asked"])
def test_two_ranks_stop_at_the_same_step(tmp_path, how):
    env = {**os.environ, "GPUQUEUE_ATTEMPT_DIR": str(tmp_path), "GLOO_SOCKET_IFNAME": "lo"}
    at = "7" if how == "signal to one" else "0"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), tmp_path / "store", at],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    if how == "asked":
        until(lambda: files.ask_to_stop(tmp_path))
    said = [rank.communicate(timeout=170) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0][0] == said[1][0]
    if how == "signal to one":
        assert said[0][0] == "stopped at 7\n"
    assert files.has_heard(tmp_path)


# -- what is told of it ----------------------------------------------------------------------------

TELLS = """
import sys, time
from pathlib import Path
from gpuqueue import checkpoint
checkpoint.log(3, loss=0.123456, lr=1e-3, note="x", more=7)
with checkpoint.atomic_path("state") as path:
    time.sleep(0.25)
    Path(path).write_text("1")
Path("up").touch()
while not checkpoint.should_stop():
    time.sleep(0.01)
"""


def test_progress_and_slow_saves_are_told(home, tmp_path):
    home.config.write_text("grace = 0.2\nsave_time = 0.1\n")
    (tmp_path / "job.py").write_text(TELLS)
    job = gpuqueue.submit(["python", "job.py"], cwd=tmp_path, preemptible=True)
    assert gpuqueue.submit(["true"]).progress is None
    until((tmp_path / "up").exists)
    assert job.progress["step"] == 3
    assert job.progress["metrics"]["loss"] == 0.123456
    said = str(gpuqueue.status())
    assert "; step 3, loss 0.1235, lr 0.001; its last save took " in said
    assert (
        "a cancel leaves it 0.2s (grace) and one that needs its room leaves it 0.1s (save_time)"
        in said
    )
    home.config.write_text("grace = 60\nsave_time = 60\n")
    until(lambda: "save took" not in str(gpuqueue.status()))
    job.cancel()
    job.wait(60)
    assert "step 3" not in str(gpuqueue.status())
