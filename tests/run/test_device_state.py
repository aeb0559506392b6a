"""Moving a process's GPU memory, with a stub of ``cuda-checkpoint`` and a pretend driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stub_checkpoint import Stub

from gpuqueue.run import cudastate, devicestate
from gpuqueue.run.devicecanary import try_out
from gpuqueue.run.devicestate import DeviceTool, NotMoved, bring_back, find_tool, move_out

OUT = ["lock moves", "checkpoint moves"]
BACK = ["restore moves", "unlock moves"]


@pytest.fixture
def stub(tmp_path):
    return Stub(tmp_path / "stub with space")


@pytest.fixture
def tool(stub):
    return DeviceTool((str(stub.program),))


@pytest.fixture
def me():
    """A process that has nothing to do."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_there_and_back(stub, tool, me):
    stub.hold(me, 0, 100)
    move_out(tool, me, 20)
    assert stub.done(me) == OUT
    assert (stub.state(me), stub.procs.read_text()) == ("checkpointed", "")
    move_out(tool, me, 20)  # it is there already
    assert stub.done(me) == OUT
    bring_back(tool, me, 20)
    bring_back(tool, me, 20)
    assert stub.done(me) == [*OUT, *BACK]
    assert (stub.state(me), stub.procs.read_text()) == ("running", f"{me}:0:100\n")


@pytest.mark.parametrize("state", ["locked", "checkpointed"])
def test_what_another_has_begun_is_ended(stub, tool, me, state):
    stub.state(me, state)
    move_out(tool, me, 20)
    assert stub.done(me) == ([] if state == "checkpointed" else ["checkpoint moves"])
    stub.state(me, state)
    bring_back(tool, me, 20)
    assert stub.done(me)[-1] == "unlock moves"


def test_a_step_under_way_is_waited_for(stub, tool, me):
    stub.state(me, "checkpointing")
    with pytest.raises(NotMoved, match="still checkpointing after 0 s"):
        bring_back(tool, me, 0.2)
    assert stub.done(me) == []


def test_a_refused_lock_leaves_it_as_it_was(stub, tool, me):
    stub.tell("lock", "fail")
    with pytest.raises(NotMoved, match=r"^lock: could not lock$") as caught:
        move_out(tool, me, 20)
    assert not caught.value.stuck
    assert stub.done(me) == ["lock moves"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fail", "checkpoint: could not checkpoint"),
        ("hang", "checkpoint: no answer in 1 s"),
        ("lie", "the process is 'locked'"),
    ],
)
def test_after_a_failed_copy_its_calls_go_on(stub, tool, me, how, words):
    stub.tell("checkpoint", how)
    with pytest.raises(NotMoved, match=words) as caught:
        move_out(tool, me, 1)
    assert not caught.value.stuck
    assert stub.done(me) == [*OUT, "unlock moves"]
    assert stub.state(me) == "running"


def test_one_that_cannot_be_let_go_is_said_to_be_stuck(stub, tool, me):
    stub.tell("checkpoint", "fail")
    stub.tell("unlock", "fail")
    with pytest.raises(NotMoved, match=r"may wait for ever .unlock: could not unlock") as caught:
        move_out(tool, me, 20)
    assert caught.value.stuck
    stub.tell("unlock", "")
    bring_back(tool, me, 20)
    assert stub.state(me) == "running"


@pytest.mark.parametrize(
    ("action", "how"), [("restore", "fail"), ("restore", "lie"), ("unlock", "lie")]
)
def test_a_way_back_that_fails_can_be_tried_again(stub, tool, me, action, how):
    move_out(tool, me, 20)
    stub.tell(action, how)
    with pytest.raises(NotMoved):
        bring_back(tool, me, 20)
    stub.tell(action, "")
    bring_back(tool, me, 20)
    assert stub.state(me) == "running"


def test_a_failed_driver_is_told(stub, tool, me):
    stub.state(me, "failed")
    with pytest.raises(NotMoved, match="'failed'"):
        move_out(tool, me, 20)
    assert stub.done(me) == []


def test_which_program(stub, monkeypatch):
    monkeypatch.setenv("PATH", str(stub.folder))
    assert find_tool().words == (str(stub.program),)
    monkeypatch.setenv("PATH", "")
    assert find_tool().words[-1].endswith("cudastate.py")
    with pytest.raises(NotMoved, match=r"^state: .*nowhere"):
        DeviceTool(("/nowhere/at-all",)).state(1)


# -- the driver's own functions, and the trial -----------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_device_state.c")
    words = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*words, str(source)], check=True)
    return folder


@pytest.fixture
def driver(stub, library, monkeypatch):
    """The stub behind the driver's functions; the program that asks them."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_CHECKPOINT", str(stub.program))
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(stub.procs))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    return DeviceTool((sys.executable, "-I", "-S", cudastate.__file__))


def test_the_drivers_functions(stub, driver, me):
    move_out(driver, me, 20)
    assert driver.state(me) == "checkpointed"
    bring_back(driver, me, 20)
    assert stub.done(me) == [*OUT, *BACK]
    stub.tell("lock", "fail")
    with pytest.raises(NotMoved, match=r"cuCheckpointProcessLock answered 999 .unknown error."):
        move_out(driver, me, 20)


def test_no_driver_or_an_old_one(me, driver, monkeypatch, tmp_path):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(NotMoved, match="no NVIDIA driver"):
        driver.state(me)
    empty = tmp_path / "old.c"
    empty.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    words = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(empty)]
    subprocess.run(words, check=True)
    with pytest.raises(NotMoved, match=r"no cuCheckpointProcessGetState; .* version 570"):
        driver.state(me)


def held_by(stub):
    def held(pid):
        lines = [line.split(":") for line in stub.procs.read_text().splitlines()]
        return sum(int(size) << 20 for process, _, size in lines if int(process) == pid)

    return held


@pytest.mark.parametrize("own", [False, True])
def test_the_trial(stub, tool, driver, own):
    proof = try_out(driver if own else tool, "1", held_by(stub))
    assert proof.problem == ""
    assert proof.freed == 64 << 20
    assert proof.out > 0 < proof.back
    (pid,) = {line.split()[1] for line in (stub.folder / "log").read_text().splitlines()}
    assert stub.done(int(pid)) == [*OUT, *BACK]
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("told", "words"),
    [
        (("checkpoint", "keep"), "the GPU is emptier by 0 bytes"),
        (("checkpoint", "lie"), "the process is 'locked'"),
        (("lock", "fail"), "could not lock"),
        (("restore", "fail"), "could not restore"),
    ],
)
def test_a_trial_that_shows_that_it_does_not_work(stub, tool, told, words):
    stub.tell(*told)
    assert words in try_out(tool, "0", held_by(stub)).problem


def test_a_trial_whose_memory_comes_back_changed(stub, tool, driver, monkeypatch):
    monkeypatch.setenv("FAKE_SPOILS", "1")
    assert try_out(tool, "0", held_by(stub)).problem == "memory came back changed"


def test_a_trial_without_a_gpu_or_readings(stub, tool, driver, monkeypatch, tmp_path):
    assert "does not tell" in try_out(tool, "0", lambda pid: 0).problem
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "no GPU could be used: there is no NVIDIA driver" in try_out(tool, "0", len).problem


def test_a_trial_that_hangs_ends(stub, tool, driver, monkeypatch):
    monkeypatch.setattr("gpuqueue.run.devicecanary._SECONDS", 1)
    stub.tell("checkpoint", "hang")
    assert "no answer in 1 s" in try_out(tool, "0", held_by(stub)).problem
    monkeypatch.setattr(devicestate, "LOCKING", 0.1)
    monkeypatch.setattr(devicestate, "_ANSWER", 1)
    stub.tell("lock", "hang")
    assert "lock: no answer" in try_out(tool, "0", held_by(stub)).problem


def test_a_program_that_cannot_be_killed_costs_no_more_than_its_time(stub, tool, me, monkeypatch):
    kill, left = subprocess.Popen.kill, []
    stub.state(me, "locked")
    stub.tell("checkpoint", "hang")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda one: left.append(one))  # as in a driver
        with pytest.raises(NotMoved, match="checkpoint: no answer in 0 s"):
            tool.act("checkpoint", me, 0.1)
    (process,) = left
    kill(process)
