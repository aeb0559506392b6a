"""MPS that hangs, lies, dies or is somebody else's: what becomes of it, and what the user reads."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mps_stage import ONE, PATIENT, QUICK, Stage, drivers, stage
from share_cards import needs_compiler, state, tell

from gpuqueue.errors import MpsError, MpsSilent
from gpuqueue.model import ProcessId
from gpuqueue.run.files import ExitFile
from gpuqueue.run.kernelshare import keep_lock, name_kernel, write_grant
from gpuqueue.run.process import alive, identify
from gpuqueue.share.mps import PIPE, book, canary, daemon, place
from gpuqueue.share.mps.clients import end
from gpuqueue.share.mps.ending import end_job, is_under_mps
from gpuqueue.share.mps.place import place_of
from gpuqueue.share.mps.variables import variables

__all__ = ["drivers", "stage"]

pytestmark = needs_compiler

HEALTH = "get_default_active_thread_percentage"


def have_daemon(stage: Stage) -> int:
    with stage.control().session() as session:
        daemon.ensure(session)
    found = daemon.running(stage.place())
    assert found is not None
    return found.pid


def ask(stage: Stage, limits=PATIENT) -> bool:
    """Have a daemon that answers; whether it was started."""
    with stage.control(limits=limits).session() as session:
        return daemon.ensure(session)


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while (found := identify(pid)) is not None and alive(found):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- the daemon -----------------------------------------------------------------------------------


def test_two_processes_start_it_at_once(stage: Stage):
    code = (
        "import sys; from pathlib import Path\n"
        "from gpuqueue.share.mps import daemon; from gpuqueue.share.mps.control import Control\n"
        "from gpuqueue.share.mps.place import place_of\n"
        f"control = Control(place_of({ONE!r}, Path(sys.argv[1])))\n"
        "sys.stdin.readline()\n"
        "with control.session() as session: print(daemon.ensure(session))"
    )
    where = str(Path(daemon.__file__).parents[3])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(stage.root)],
            env={**stage.base, "PYTHONPATH": where},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        tell(process)
    said = sorted(process.communicate()[0].strip() for process in processes)
    assert said == ["False", "False", "True"]
    assert stage.commands.count("-d") == 1
    assert len(stage.daemons()) == 1


def test_a_daemon_that_was_killed_is_started_anew(stage: Stage):
    first = have_daemon(stage)
    os.kill(first, signal.SIGKILL)
    until_gone(first)
    assert stage.place().pipe.joinpath("control").exists()  # what it left does not stand in the way
    assert ask(stage)
    assert have_daemon(stage) != first


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"silent": [HEALTH]}, f"answered `{HEALTH}` with ''"),
        ({"answer": {HEALTH: "ok"}}, "'ok', where a number was due"),
        ({"answer": {HEALTH: "nan"}}, "'nan', where a number was due"),
        ({"hang": [HEALTH]}, "has not answered"),
        ({"answer": {"get_server_list": "none"}}, "'none', where pids were due"),
    ],
)
def test_a_stuck_daemon_is_replaced_only_when_nothing_uses_it(stage: Stage, how, said: str):
    first = have_daemon(stage)
    process = stage.start(variables(stage.place(), 50, None))
    stage.behave(**how)
    limits = QUICK if "hang" in how else PATIENT
    with pytest.raises(MpsSilent) as found:
        ask(stage, limits)
    assert str(found.value).startswith(f"The MPS daemon of {ONE} (pid {first}) is stuck: ")
    assert said in str(found.value)
    assert str(found.value).endswith(
        f"It is replaced when what uses it has ended (pid {process.pid})."
    )
    assert alive(identify(first))
    process.kill()
    process.communicate()
    if HEALTH in str(how) and "hang" not in how:
        with pytest.raises(MpsSilent):
            ask(stage, QUICK)  # the new one is no better, and is not left behind
        assert stage.daemons() == []
    if HEALTH in str(how):
        stage.behave()
    assert ask(stage, limits)
    stage.behave()
    assert have_daemon(stage) != first


def test_a_control_program_that_cannot_be_killed_is_left_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    have_daemon(stage)
    stage.behave(hang=[HEALTH])
    kill, left = subprocess.Popen.kill, []
    with monkeypatch.context() as patch, stage.control(limits=QUICK).session() as session:
        patch.setattr(subprocess.Popen, "kill", lambda one: left.append(one))  # as in a driver
        with pytest.raises(MpsSilent, match="has not answered"):
            session.check()
    (process,) = left
    kill(process)


def test_nothing_is_believed_only_of_a_daemon_that_answers(stage: Stage):
    have_daemon(stage)
    with stage.control().session() as session:
        assert session.servers() == ()
        stage.behave(silent=["get_"])
        with pytest.raises(MpsSilent, match="where a number was due"):
            session.servers()


def test_a_server_in_fault_is_replaced_when_its_victims_have_ended(stage: Stage):
    mps = stage.mps()
    mps.probe()
    job = stage.job("a")
    process = stage.start(dict(mps.environment(job)))
    stage.behave(fault=True)
    (said,) = mps.verify(job, [process.pid])
    assert re.fullmatch(
        f"The MPS server of {ONE} \\(pid \\d+\\) is in fault: a program on it has failed, all "
        "others there end with it, and new ones are refused until they have.",
        said,
    )
    with pytest.raises(MpsError, match=f"is in fault. It is replaced when .* {process.pid}"):
        mps.environment(stage.job("b"))
    assert book.shares(stage.place()) == {job.folder: 25}  # the one that failed is not counted
    process.kill()
    process.communicate()
    starts = stage.commands.count("-d")
    mps.environment(stage.job("b"))
    assert stage.commands.count("-d") == starts + 1


@pytest.mark.parametrize("how", ["payload", "kernel", "lock"])
def test_a_daemon_is_left_to_a_cell_that_does_not_show_it(stage: Stage, how: str):
    mps = stage.mps()
    mps.probe()
    cell = stage.job("cell")
    process = stage.become(dict(mps.environment(cell)))
    first = have_daemon(stage)
    assert daemon.users(stage.place()) == ()
    assert mps.verify(cell, [process.pid]) == ()
    runs = running_as(how, cell.folder, identify(process.pid))
    stage.behave(silent=[HEALTH])
    with pytest.raises(MpsSilent, match=r"replaced when what uses it has ended \(job in /"):
        mps.environment(stage.job("b"))
    assert alive(identify(first))
    assert alive(identify(process.pid))
    process.kill()
    process.communicate()
    os.close(runs)
    stage.behave(answer={"get_server_list": "none"})
    with pytest.raises(MpsError):
        mps.environment(stage.job("b"))  # no better, but it was replaced
    until_gone(first)


def running_as(how: str, folder: Path, process: ProcessId) -> int:
    """Say that a job runs, in one of the ways that its directory can tell; a handle to close."""
    if how == "lock":
        return keep_lock(folder)
    if how == "kernel":
        write_grant(folder, {})
        name_kernel(folder, process)
    else:
        exits = ExitFile(str(folder))
        exits.name(process)
        exits.close()
    return os.open(os.devnull, os.O_RDONLY)


def test_the_pipe_directory_is_gone(stage: Stage):
    mps = stage.mps()
    mps.probe()
    job = stage.job("a")
    mps.environment(job)
    for path in stage.place().pipe.iterdir():
        path.unlink()
    stage.place().pipe.rmdir()
    (said,) = mps.verify(job, [])
    assert said.startswith("Whether the job is held to its share of compute cannot be seen: MPS on")
    assert "Cannot find MPS control daemon process" in said
    assert mps.environment(job)[PIPE] == str(stage.place().pipe)
    assert mps.verify(job, []) == ()
    assert len(stage.daemons()) == 1


def test_a_daemon_that_went_is_told_of_each_process(stage: Stage):
    mps = stage.mps()
    job = stage.job("a")
    mps.environment(job)
    pid = have_daemon(stage)
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    stage.place().note.unlink()
    (said,) = mps.verify(job, [4711])
    assert said.startswith(f"Process 4711 uses {ONE} and is not held to the job's share of compute")
    mps.release(job)
    mps.release(job)
    assert not stage.place().pipe.exists()


def test_left_overs_of_an_earlier_boot(stage: Stage):
    place = stage.place()
    place.pipe.mkdir()
    (place.pipe / "control").touch()
    # the number is somebody else's by now: this process's
    (place.pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    here = identify(os.getpid())
    place.note.write_text(json.dumps({"pid": here.pid, "start": here.start, "boot": "earlier"}))
    gone = {"job": str(stage.folder), "percent": 90, "boot": "earlier"}
    (place.jobs / "0123456789abcdef").write_text(json.dumps(gone))
    (place.jobs / "torn").write_text("{")
    assert daemon.running(place) is None
    assert book.shares(place) == {}
    assert list(place.jobs.iterdir()) == []
    assert ask(stage)


def test_a_daemon_without_a_note_is_found_by_its_own_file(stage: Stage):
    first = have_daemon(stage)
    stage.place().note.unlink()  # whoever started it was killed before it was written
    assert have_daemon(stage) == first


def test_a_daemon_that_never_listens(stage: Stage):
    (stage.place().log / "control.log").write_text("an earlier one\n")
    stage.behave(late=True)
    with pytest.raises(MpsSilent) as found:
        ask(stage, QUICK)
    said = str(found.value)
    assert said.startswith(
        f"An MPS daemon was started for {ONE} and was not there within 4 s. MPS on {ONE} refused"
    )
    assert said.endswith(" Its log ends with: it waits")
    assert (stage.place().log / "control.old").read_text() == "an earlier one\n"
    assert stage.daemons() == []


def test_a_daemon_that_does_not_quit_is_killed(stage: Stage):
    stage.behave(deaf=True)
    have_daemon(stage)
    with stage.control(limits=QUICK).session() as session:
        assert daemon.end_if_idle(session)
    assert stage.daemons() == []


def test_clients_that_have_ended_keep_no_daemon(stage: Stage):
    have_daemon(stage)
    with subprocess.Popen(["true"]) as gone:
        pass
    stage.behave(answer={"get_server_list": "1", "get_client_list": f"{gone.pid}"})
    with stage.control().session() as session:
        assert daemon.end_if_idle(session)
    assert stage.daemons() == []
    have_daemon(stage)
    stage.behave(answer={"get_server_list": "1", "get_client_list": f"{os.getpid()}"})
    with stage.control().session() as session:
        assert not daemon.end_if_idle(session)


def test_an_idle_daemon_that_hangs_is_killed(stage: Stage, caplog):
    mps = stage.mps(limits=QUICK)
    mps.probe()
    job = stage.job("a")
    mps.environment(job)
    stage.behave(hang=["quit"])
    mps.release(job)
    assert stage.daemons() == []
    assert "an idle MPS daemon is killed" in caplog.text


def test_a_daemon_that_says_yes_and_does_not(stage: Stage):
    mps = stage.mps()
    mps.probe()
    stage.behave(silent=["set_default"])
    with pytest.raises(MpsError, match=f"daemon of {ONE} was told 25 per cent and says 100"):
        mps.environment(stage.job("a"))
    stage.behave()
    mps.environment(stage.job("a", 500))
    stage.start(variables(stage.place(), 50, None))
    stage.behave(silent=["set_active"])
    with pytest.raises(MpsError, match=r"was told 60 per cent and says 50 of its server \d+"):
        mps.environment(stage.job("b", 600))
    with pytest.raises(MpsError, match="was told 70"):
        mps.resize(stage.job("a", 700))


def test_somebody_talks_for_too_long(stage: Stage):
    have_daemon(stage)
    with open(stage.place().lock, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(MpsSilent, match=r"Another process has talked .* for more than 4 s"):
            ask(stage, QUICK)


def test_no_control_program_any_more(stage: Stage):
    mps = stage.mps()
    mps.probe()
    (stage.folder / "bin" / "nvidia-cuda-mps-control").unlink()
    with pytest.raises(MpsError, match="There is no nvidia-cuda-mps-control on the PATH any more"):
        mps.environment(stage.job("a"))
    (stage.folder / "bin" / "nvidia-cuda-mps-control").write_text("#!/nowhere\n")
    (stage.folder / "bin" / "nvidia-cuda-mps-control").chmod(0o700)
    with pytest.raises(MpsError, match="cannot be started"):
        mps.environment(stage.job("a"))


# -- its place ------------------------------------------------------------------------------------


def test_a_folder_of_another_user(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    stage.place()
    monkeypatch.setattr(place.os, "geteuid", lambda: 12345)
    with pytest.raises(MpsError, match=r"mps belongs to another user \(uid \d+\)\.$"):
        stage.place()


def test_a_folder_that_is_none_or_too_long(tmp_path: Path):
    short = Path(f"/tmp/gq-test-{os.getpid()}")
    try:
        short.symlink_to(tmp_path)
        with pytest.raises(MpsError, match="is not a folder"):
            place_of(ONE, short)
        short.unlink()
        short.write_text("")
        with pytest.raises(MpsError, match="cannot be made"):
            place_of(ONE, short)
    finally:
        short.unlink(missing_ok=True)
    with pytest.raises(MpsError, match="too long a path for the sockets of MPS"):
        place_of(ONE, tmp_path / ("x" * 60))


def test_the_usual_folder_is_short_and_private(monkeypatch: pytest.MonkeyPatch, stage: Stage):
    monkeypatch.setattr(place.os, "geteuid", lambda: 4294967295)
    (usual, _) = place._roots()
    assert len(os.fsencode(usual / "0123456789ab" / "pipe" / "nvidia-cuda-mps-control.pid")) < 108
    assert len(os.fsencode(usual / "0123456789ab" / "pipe")) <= place.LONGEST
    monkeypatch.undo()
    stage.root.mkdir(mode=0o777)
    stage.root.chmod(0o777)
    have_daemon(stage)
    for folder in (stage.root, stage.place().pipe):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert place.is_ours(str(stage.place().pipe), stage.root)
    assert not place.is_ours("/run/mps", stage.root)
    assert not place.is_ours("", stage.root)


# -- the trial ------------------------------------------------------------------------------------


def test_a_trial_that_hangs_is_given_up_and_believed_for_minutes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    stage.behave(hang=["get_server_list"])
    probe = stage.mps(limits=QUICK).probe()
    assert not probe.usable
    assert "has not answered `get_server_list` in 4 s" in probe.reason
    stage.behave()
    assert stage.mps().probe() == probe
    monkeypatch.setattr("gpuqueue.share.proofs._FAILURE_HOLDS", 0.0)
    assert stage.mps().probe().usable


def test_a_trial_without_a_gpu(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    probe = stage.mps(LD_LIBRARY_PATH="/nowhere").probe()
    assert probe.reason.startswith("A program under MPS could not use the GPU: libcuda.so.1")
    monkeypatch.setattr(canary, "_PROGRAM", "")
    with contextlib.suppress(FileNotFoundError):
        (stage.folder / "proofs" / f"proof-mps-{ONE}.json").unlink()
    assert stage.mps().probe().reason == "A program under MPS ended without a word."


def test_a_trial_that_mps_does_not_have(stage: Stage):
    stage.behave(answer={"get_client_list": "1\n2"})
    reason = stage.mps().probe().reason
    assert reason == (
        f"A program was started under MPS on {ONE} and MPS does not have it: it ran with the whole "
        "GPU."
    )


# -- ending clients -------------------------------------------------------------------------------


def under(stage: Stage) -> tuple[Path, subprocess.Popen[str]]:
    mps = stage.mps()
    mps.probe()
    job = stage.job("a")
    return job.folder, stage.start(dict(mps.environment(job)))


def test_a_client_is_let_go_of_before_it_is_killed(stage: Stage):
    folder, process = under(stage)
    assert is_under_mps(folder)
    os.kill(process.pid, signal.SIGSTOP)
    while state(process.pid) != "T":
        time.sleep(0.01)
    (ended,) = end_job_here(stage, folder, process, PATIENT)
    assert (ended.released, ended.sentence) == (True, "")
    assert process.wait() == -signal.SIGKILL
    terminate = next(word for word in stage.commands if word.startswith("terminate_client"))
    assert terminate.endswith(f" {process.pid}")


def end_job_here(stage: Stage, folder: Path, process: subprocess.Popen[str], limits=QUICK):
    os.environ["FAKE_MPS"] = stage.base["FAKE_MPS"]
    path = os.environ["PATH"]
    os.environ["PATH"] = stage.base["PATH"]
    try:
        return end_job(folder, [identify(process.pid)], limits)
    finally:
        os.environ["PATH"] = path
        del os.environ["FAKE_MPS"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"hang": ["terminate_client"]}, "has not answered `terminate_client"),
        ({"keeps": True}, "still has it after it was told to let go"),
        ({"hang": ["get_server_list"]}, "has not answered `get_server_list`"),
        ({"answer": {"get_client_list": "?"}}, "where pids were due"),
    ],
)
def test_a_client_that_will_not_go_is_killed_all_the_same(stage: Stage, how, said: str):
    folder, process = under(stage)
    stage.behave(**how)
    (ended,) = end_job_here(stage, folder, process)
    assert not ended.released
    assert ended.sentence.startswith("It was killed while MPS had it; others on the GPU may fail. ")
    assert said in ended.sentence
    assert process.wait() == -signal.SIGKILL


def test_after_a_hang_the_daemon_is_not_asked_again(stage: Stage):
    _, first = under(stage)
    second = stage.start(variables(stage.place(), 25, None))
    stage.behave(hang=["terminate_client"])
    ended = end(stage.control(limits=QUICK), [identify(first.pid), identify(second.pid)])
    assert [one.released for one in ended] == [False, False]
    assert sum(word.startswith("terminate_client") for word in stage.commands) == 1
    assert {first.wait(), second.wait()} == {-signal.SIGKILL}
    # the card is empty now, so the next job has a new daemon
    stage.behave()
    stage.mps(limits=QUICK).environment(stage.job("b"))
    assert ask(stage) is False


def test_a_process_that_mps_does_not_have_is_just_killed(stage: Stage):
    under(stage)
    with subprocess.Popen(["sleep", "60"]) as other:
        ended = end(stage.control(), [identify(other.pid)])
    assert ended[0].released
    assert other.returncode == -signal.SIGKILL
    assert not any(word.startswith("terminate_client") for word in stage.commands)
    with pytest.raises(MpsError, match="is not under MPS"):
        end_job(stage.folder, [])


def test_ending_as_a_program(stage: Stage):
    folder, process = under(stage)
    stage.behave(keeps=True)
    where = str(Path(daemon.__file__).parents[3])
    words = [sys.executable, "-m", "gpuqueue.share.mps.ending", str(folder), str(process.pid)]
    done = subprocess.run(
        words, env={**stage.base, "PYTHONPATH": where}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stdout.startswith("It was killed while MPS had it;")
    assert done.stdout.count("\n") == 1
    assert process.wait() == -signal.SIGKILL
