"""How a job is asked to stop, and what it leaves for whoever asked."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuqueue import checkpoint
from gpuqueue.run import files

FILE = Path(checkpoint.__file__)


@pytest.fixture
def fresh(monkeypatch):
    """The helper as a process finds it at its start; signals as they were, afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(checkpoint, "_state", checkpoint._State())
    checkpoint._state.hooked = True  # this process's forks are none of our business
    for name in ("GPUQUEUE_ATTEMPT_DIR", "GPUQUEUE_RESUME", "GPUQUEUE_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def attempt(fresh, tmp_path, monkeypatch):
    folder = tmp_path / "jobs" / "7" / "1"
    folder.mkdir(parents=True)
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", str(folder))
    return folder


def run(code, folder=None, **more):
    """A job of its own with this code."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")}
    env.pop("GPUQUEUE_ATTEMPT_DIR", None)
    if folder is not None:
        env["GPUQUEUE_ATTEMPT_DIR"] = str(folder)
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, **more
    )


def test_names_are_those_of_the_job_directory():
    assert (checkpoint.STOP, checkpoint.PROGRESS) == (files.STOP, files.PROGRESS)


def test_a_job_says_that_it_is_resumable_at_its_first_look(attempt):
    assert not files.is_resumable(attempt)
    assert not files.ask_to_stop(attempt)
    assert not checkpoint.should_stop()
    assert files.is_resumable(attempt)
    assert not files.has_heard(attempt)


def test_asked_heard(attempt):
    checkpoint.should_stop()
    assert files.ask_to_stop(attempt)
    assert not files.has_heard(attempt)  # it has not looked yet
    assert checkpoint.should_stop()
    assert files.has_heard(attempt)
    assert files.ask_to_stop(attempt)  # once more does no harm
    assert checkpoint.should_stop()
    assert files.has_heard(attempt)


def test_asked_before_a_second_process_looks(attempt):
    checkpoint.should_stop()
    files.ask_to_stop(attempt)
    code = "from gpuqueue import checkpoint; print(checkpoint.should_stop())"
    assert run(code, attempt).stdout == "True\n"  # the file was there: nothing is made anew


def test_outside_a_job_it_is_quiet(fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not checkpoint.should_stop()
    checkpoint.log(3, loss=1.0)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_gone_is_no_job(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", str(tmp_path / "gone"))
    assert not checkpoint.should_stop()


def test_no_room_for_the_file(attempt):
    (attempt / "stop").mkdir()  # stands for any error there
    assert not checkpoint.should_stop()
    assert not files.ask_to_stop(attempt)
    assert not files.has_heard(attempt)


def test_threads_hear_it(attempt):
    heard = threading.Event()
    looked = threading.Event()

    def work():
        while not checkpoint.should_stop():
            looked.set()
            time.sleep(0.001)
        heard.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert looked.wait(60)
    files.ask_to_stop(attempt)
    assert heard.wait(60)
    thread.join()


def test_the_common_path_costs_less_than_a_microsecond(attempt):
    checkpoint.should_stop()
    began = time.process_time()  # what other programs take of the processor does not count
    for _ in range(1_000_000):
        checkpoint.should_stop()
    assert time.process_time() - began < 1.0


SIGNALLED = """
import os, signal
from gpuqueue import checkpoint
{before}
print(checkpoint.should_stop())
os.kill(os.getpid(), signal.SIGTERM)
print(checkpoint.should_stop())
"""


def test_sigterm_sets_the_flag(tmp_path):
    done = run(SIGNALLED.format(before=""), tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\nTrue\n")
    assert files.has_heard(tmp_path)


def test_sigterm_outside_a_job_too():
    done = run(SIGNALLED.format(before=""))
    assert (done.returncode, done.stdout) == (0, "False\nTrue\n")


def test_a_handler_that_was_there_is_called_as_well(tmp_path):
    before = "signal.signal(signal.SIGTERM, lambda number, frame: print('mine', number))"
    done = run(SIGNALLED.format(before=before), tmp_path)
    assert done.stdout == "False\nmine 15\nTrue\n"


def test_sigterm_that_is_ignored_stays_ignored(tmp_path):
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert run(SIGNALLED.format(before=before), tmp_path).stdout == "False\nFalse\n"


def test_the_kernel_of_a_notebook_ends_at_sigterm(tmp_path):
    before = "import sys; sys.modules['ipykernel'] = os"
    done = run(SIGNALLED.format(before=before), tmp_path)
    assert done.returncode == -signal.SIGTERM


def test_a_job_that_never_looks_dies_of_sigterm(tmp_path):
    code = (
        "import os, signal; from gpuqueue import checkpoint; checkpoint.resuming()\n"
        "checkpoint.log(1, loss=2.0); os.kill(os.getpid(), signal.SIGTERM); print('never')"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
    assert not files.is_resumable(tmp_path)


def test_a_step_is_finished_before_the_flag_counts(tmp_path):
    """The signal comes in the middle of a step; the save happens once, after that step."""
    code = """
import os, signal
from gpuqueue import checkpoint
for step in range(1, 9):
    print("begin", step)
    if step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    print("end", step)
    if checkpoint.should_stop():
        print("save", step)
        break
"""
    lines = run(code, tmp_path).stdout.splitlines()
    assert lines[-3:] == ["begin 3", "end 3", "save 3"]


def test_forked_workers_end_at_sigterm(tmp_path):
    """Pool.terminate() and the end of a DataLoader wait for ever for a worker that does not."""
    code = """
import multiprocessing, time
from gpuqueue import checkpoint
if __name__ == "__main__":
    checkpoint.should_stop()
    codes = set()
    for _ in range(20):  # at once: the signal may come before the worker's first line
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        worker.start()
        worker.terminate()
        worker.join()
        codes.add(worker.exitcode)
    print(codes, checkpoint.should_stop())
"""
    done = run(code, tmp_path, timeout=120)
    assert done.stdout == "{-15} False\n", done.stderr


def test_a_forked_rank_that_looks_itself_hears_both(tmp_path):
    code = """
import os, signal
from gpuqueue import checkpoint
from gpuqueue.run.files import ask_to_stop
checkpoint.should_stop()
def child(act):
    pid = os.fork()
    if not pid:
        before = checkpoint.should_stop()
        act()
        os._exit(10 * before + checkpoint.should_stop())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(child(lambda: os.kill(os.getpid(), signal.SIGTERM)), checkpoint.should_stop())
print(child(lambda: ask_to_stop(os.environ["GPUQUEUE_ATTEMPT_DIR"])), checkpoint.should_stop())
"""
    done = run(code, tmp_path)
    # a signal to one process is for that one; the byte is for the job
    assert done.stdout == "1 False\n1 True\n", done.stderr


def test_first_look_from_a_thread(tmp_path):
    code = """
import threading
from gpuqueue import checkpoint
thread = threading.Thread(target=lambda: print(checkpoint.should_stop()))
thread.start(); thread.join()
print(checkpoint.should_stop())
"""
    assert run(code, tmp_path).stdout == "False\nFalse\n"
    assert files.is_resumable(tmp_path)


# -- carrying on -----------------------------------------------------------------------------------


def test_resuming(attempt, monkeypatch):
    assert not checkpoint.resuming()
    second = attempt.parent / "2"
    second.mkdir()
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", str(second))
    assert not checkpoint.resuming()  # the first attempt never said that it could be resumed
    (attempt / "stop").write_bytes(b"\1\1")
    assert checkpoint.resuming()
    monkeypatch.setenv("GPUQUEUE_RESUME", "0")
    assert not checkpoint.resuming()


@pytest.mark.parametrize(("said", "answer"), [("1", True), ("0", False), ("", False)])
def test_resuming_as_told(fresh, monkeypatch, said, answer):
    monkeypatch.setenv("GPUQUEUE_RESUME", said)
    assert checkpoint.resuming() is answer


def test_checkpoints_outlive_attempts(attempt, monkeypatch):
    first = checkpoint.checkpoint_dir()
    assert first == attempt.parent / "checkpoints"
    assert first.is_dir()
    second = attempt.parent / "2"
    second.mkdir()
    monkeypatch.setenv("GPUQUEUE_ATTEMPT_DIR", str(second))
    assert checkpoint.checkpoint_dir() == first


def test_checkpoints_elsewhere(fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checkpoint.checkpoint_dir() == tmp_path / "checkpoints"
    monkeypatch.setenv("GPUQUEUE_CHECKPOINT_DIR", str(tmp_path / "large" / "run 7"))
    assert checkpoint.checkpoint_dir() == tmp_path / "large" / "run 7"


# -- an interpreter without gpuqueue ---------------------------------------------------------------

JOBPATH = FILE.parent / "jobpath"


def bare(code, *, path, flags=("-S",)):
    """Run code in this Python with the standard library alone."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, cwd="/"
    )


def test_one_file_is_enough(tmp_path):
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import checkpoint
with checkpoint.atomic_path({str(tmp_path / "step1.pt")!r}) as path: path.write_text("x")
print(checkpoint.should_stop(), checkpoint.latest_checkpoint({str(tmp_path)!r}).name)
"""
    (tmp_path / "checkpoint.py").write_bytes(FILE.read_bytes())
    done = bare(code, path="", flags=("-I", "-S"))
    assert done.stdout == "False step1.pt\n", done.stderr


def test_an_interpreter_without_gpuqueue():
    code = "from gpuqueue import checkpoint; import gpuqueue; print(checkpoint.should_stop())\n"
    done = bare(code + "gpuqueue.submit", path=JOBPATH)
    assert done.stdout == "False\n"
    assert "pip install jupyter-gpuqueue" in done.stderr


def test_an_interpreter_with_gpuqueue_takes_its_own(tmp_path):
    (tmp_path / "gpuqueue").mkdir()
    (tmp_path / "gpuqueue" / "__init__.py").write_text("mine = 5")
    code = "import gpuqueue, sys; print(gpuqueue.mine, sys.modules['gpuqueue'] is gpuqueue)"
    done = bare(code, path=f"{JOBPATH}{os.pathsep}{tmp_path}")
    assert done.stdout == "5 True\n", done.stderr


def test_a_folder_of_that_name_is_not_gpuqueue(tmp_path):
    (tmp_path / "gpuqueue").mkdir()
    code = "from gpuqueue import checkpoint; print(checkpoint.should_stop())"
    done = bare(code, path=f"{JOBPATH}{os.pathsep}{tmp_path}")
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    "path", [FILE, JOBPATH / "gpuqueue.py", *sorted((FILE.parent / "integrations").glob("*.py"))],
    ids=lambda path: path.name,
)  # fmt: skip
def test_older_interpreters_can_read_it(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_import_is_light():
    code = (
        "import sys; before = set(sys.modules); from gpuqueue import checkpoint\n"
        "heavy = {'asyncio', 'ctypes', 'dataclasses', 'inspect', 'logging', 'multiprocessing',"
        " 'numpy', 'shutil', 'socket', 'subprocess', 'tempfile', 'torch', 'zipfile'}\n"
        "print(sorted(heavy & set(sys.modules) - before))"
    )
    assert run(code).stdout == "[]\n"


def test_import_takes_less_than_20_ms():
    code = (
        "import time, gpuqueue; began = time.process_time()\n"
        "from gpuqueue import checkpoint; print(time.process_time() - began)"
    )
    assert min(float(run(code).stdout) for _ in range(3)) < 0.020
