"""GPU memory of frozen jobs on the host, with real jobs and a stub of ``cuda-checkpoint``."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import lead_process, until
from freeing_jobs import COUNT, FAMILY, TRAIN, count, free, python, resumable, resume, stands_still
from parking_stage import *  # noqa: F403
from parking_stage import holds

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.control import parking as module
from gpuqueue.control.lead import spawn_headless
from gpuqueue.control.machine import Machine
from gpuqueue.control.parking import Parking, Return
from gpuqueue.control.proving import PROOF
from gpuqueue.model import (
    Gpu,
    GpuProcess,
    Job,
    JobKind,
    JobState,
    Mode,
    ModeName,
    Origin,
    Reading,
    Request,
)
from gpuqueue.run.devicestate import DeviceTool
from gpuqueue.run.parked import Parked, parked_in, write_parked
from gpuqueue.run.process import alive, descendants, identify, marked, send_signal

OUT = ["lock moves", "checkpoint moves"]
BACK = ["restore moves", "unlock moves"]
GIB = 1 << 30


def test_moved_before_it_is_frozen_and_brought_back_before_it_goes_on(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT, tag="notebook")
    pid = holds(job, stub)
    answer = free()
    assert stub.done(pid) == OUT
    assert stub.procs.read_text() == ""
    assert job.reason == "frozen by free mode; 6G of its GPU memory are on the host"
    assert stands_still(job)
    assert answer.mode["holding"] == []
    moved = {"job": 1, "tag": "notebook", "gpu": 0, "notebook": False, "memory": 6 * GIB}
    assert answer.mode["moved"] == [moved]
    for text in (answer.message, str(gpuqueue.status())):
        assert "6G of job 1 (notebook) have been moved from GPU 0 to the host" in text
    before = count(tmp_path / "a")

    answer = resume()
    assert [one["does"] for one in answer.jobs] == ["continue"]
    until(lambda: count(tmp_path / "a") > before)
    until(lambda: job.state is JobState.RUNNING)
    assert stub.done(pid) == [*OUT, *BACK]
    assert job.reason == ""
    assert parked_in(home.attempt(1, 1)) is None
    (tmp_path / "a" / "go").touch()
    assert job.wait(60) == 0
    kinds = [event.kind for event in default_client().store.events(job_id=1)]
    assert kinds.count("frozen") == kinds.count("continued") == 1


def test_it_waits_for_room_on_its_gpu(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    pid = holds(job, stub)
    free(soft=True)
    before = count(tmp_path / "a")
    stranger = os.getpid()
    stub.hold(stranger, 0, 20 * 1024)
    until(lambda: default_client().machine().outside)
    resume()
    what = "its GPU memory is on the host and waits for 6G of GPU 0 to be free"
    until(lambda: job.reason == what)
    assert what in str(gpuqueue.status())
    assert job.state is JobState.FROZEN
    assert stub.done(pid) == OUT
    assert count(tmp_path / "a") == before
    # the queue gives its GPU to nobody else
    other = gpuqueue.submit(["true"], gpus=2)
    assert str(job.id) in other.why()
    stub.let_go(stranger)
    until(lambda: job.state is JobState.RUNNING)
    assert stub.done(pid) == [*OUT, *BACK]
    job.cancel()


def test_one_whose_memory_cannot_be_moved_is_frozen_and_says_so(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    pid = holds(job, stub)
    stub.tell("lock", "fail")
    answer = free()
    assert job.reason == (
        "frozen by free mode; its GPU memory stays where it is: lock: could not lock"
    )
    assert "still holds 6G of GPU 0" in answer.message
    assert answer.mode["moved"] == []
    resume()
    until(lambda: job.state is JobState.RUNNING)
    assert stub.done(pid) == ["lock moves"]
    job.cancel()


def test_a_lead_that_dies_meanwhile(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    pid = holds(job, stub)
    stub.tell("checkpoint", "wait")
    gpuqueue.free()
    until(lambda: stub.done(pid) == OUT)
    assert job.state is JobState.RUNNING
    lead = lead_process(home)
    send_signal(lead, signal.SIGKILL)
    until(lambda: lead_process(home) not in (None, lead) or spawn_headless(home))
    stub.go("checkpoint")
    until(lambda: job.state is JobState.FROZEN)
    assert stub.state(pid) == "checkpointed"
    assert stands_still(job)
    resume()
    until(lambda: job.state is JobState.RUNNING)
    assert stub.state(pid) == "running"
    assert job.record.attempt == 1
    job.cancel()


def test_given_back_while_it_is_being_moved(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    pid = holds(job, stub)
    stub.tell("checkpoint", "wait")
    gpuqueue.free()
    until(lambda: stub.done(pid) == OUT)
    resume()
    assert job.state is JobState.RUNNING
    stub.go("checkpoint")
    until(lambda: stub.done(pid) == [*OUT, *BACK])
    until(lambda: parked_in(home.attempt(1, 1)) is None)
    assert "frozen" not in [event.kind for event in default_client().store.events(job_id=1)]
    job.cancel()


def test_taken_back_while_it_comes_back(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    pid = holds(job, stub)
    free()
    stub.tell("restore", "wait")
    resume()
    until(lambda: stub.done(pid)[-1] == "restore moves")
    gpuqueue.free()
    assert default_client().store.mode().name is ModeName.FREEING
    stub.go("restore")
    until(lambda: default_client().store.mode().name is ModeName.FREE)
    assert job.state is JobState.FROZEN
    assert stub.done(pid) == [*OUT, *BACK, *OUT]
    assert stands_still(job)
    job.cancel()
    job.wait(60)
    assert job.state is JobState.CANCELLED


def test_one_that_saves_has_nothing_to_move(home, stub, tmp_path):
    saves = resumable(tmp_path / "a", TRAIN)
    family = python(tmp_path / "b", FAMILY)
    until((tmp_path / "b" / "up").exists)
    pid = holds(saves, stub)
    free()
    assert saves.state is JobState.QUEUED
    assert family.reason == "frozen by free mode"  # no process of it uses a GPU
    assert stub.done(pid) == []


def test_softly_frozen_it_does_not_come_back_to_save(home, stub, tmp_path):
    saves = resumable(tmp_path / "a", TRAIN)
    holds(saves, stub)
    free(soft=True)
    answer = free()
    assert [one["does"] for one in answer.jobs] == ["freeze"]
    assert saves.state is JobState.FROZEN
    resume()
    until(lambda: saves.state is JobState.RUNNING)
    assert saves.record.attempt == 1
    saves.cancel()


def test_off_by_the_setting(home, stub, tmp_path):
    home.config.write_text("move_gpu_memory = false\n")
    job = python(tmp_path / "a", COUNT)
    (pid,) = descendants(job.record.process.pid)
    stub.hold(pid, 0, 512)
    free()
    assert job.reason == "frozen by free mode"
    assert default_client().store.fact(PROOF) is None
    assert stub.done(pid) == []
    job.cancel()


def test_to_and_fro_in_haste(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    pid = holds(job, stub)
    for _ in range(3):
        gpuqueue.free()
        gpuqueue.resume()
    free()
    assert (job.state, stub.state(pid)) == (JobState.FROZEN, "checkpointed")
    gpuqueue.resume()
    gpuqueue.free()
    gpuqueue.resume()
    until(lambda: job.state is JobState.RUNNING and stub.state(pid) == "running")
    before = count(tmp_path / "a")
    until(lambda: count(tmp_path / "a") > before)
    job.cancel()


def test_its_runner_is_killed(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    holds(job, stub)
    free()
    send_signal(job.record.process, signal.SIGKILL)
    job.wait(60)
    assert job.reason.startswith("lost")
    assert marked("GPUQUEUE_ATTEMPT_DIR", str(home.attempt(1, 1))) == []
    resume()
    assert gpuqueue.submit(["true"]).wait(60) == 0


def test_the_database_is_lost(home, stub, tmp_path):
    python(tmp_path / "a", COUNT, tag="mine")
    pid = holds(gpuqueue.job(1), stub)
    free()
    lead = lead_process(home)
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (home.root / name).unlink(missing_ok=True)
    send_signal(lead, signal.SIGKILL)
    until(lambda: not alive(lead))
    gpuqueue.status()
    until(lambda: lead_process(home) or spawn_headless(home))
    until(gpuqueue.jobs)
    before = count(tmp_path / "a")
    resume()
    until(lambda: stub.state(pid) == "running")
    until(lambda: count(tmp_path / "a") > before)
    job = gpuqueue.job(1)
    until(lambda: job.state is JobState.RUNNING)
    assert job.tag == "recovered"
    job.cancel()


def test_no_room_to_note_it(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT)
    pid = holds(job, stub)
    (home.attempt(1, 1) / "device.json.part").mkdir()  # what is written first
    free()
    assert "its GPU memory stays where it is: " in job.reason
    assert stub.done(pid) == []
    resume()
    until(lambda: job.state is JobState.RUNNING)
    job.cancel()


def test_one_that_can_start_again_does_if_its_memory_never_comes_back(home, stub, tmp_path):
    job = python(tmp_path / "a", COUNT, restartable=True)
    pid = holds(job, stub)
    free(soft=True)
    stub.tell("restore", "fail")
    resume()
    until(lambda: job.record.attempt == 2, timeout=120)
    assert stub.done(pid) == [*OUT, *["restore moves"] * 3]
    told = [event.data for event in default_client().store.events(job_id=1)]
    (why,) = [data["reason"] for data in told if data.get("state") == "queued"]
    assert why == "evicted: was stopped, as its GPU memory could not be brought back"
    assert sum(data.get("state") == "evicting" for data in told) == 1
    job.cancel()


# -- what is not moved, and what does not come back ------------------------------------------------


@pytest.fixture
def place(home, stub, tmp_path, monkeypatch):
    """A `Parking` for a process that stands for a job, and what it sees of the machine."""
    runner = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
    pids = until(lambda: len(found := descendants(runner.pid)) == 2 and found)
    process = identify(runner.pid)
    job = Job(
        1, JobKind.SCRIPT, JobState.RUNNING, Request(), "a", "me", "sleep", "/", Origin(), 0, 1,
        attempt=1, process=process,
    )  # fmt: skip
    home.attempt(1, 1).mkdir(parents=True)
    gpu = Gpu("FAKE-0", 0, "Pretend GPU", 24 * GIB, fake=True)

    def see(*held, used=None):
        used = sum(size or 0 for _, size in held) if used is None else used
        processes = tuple(GpuProcess(pid, size) for pid, size in held)
        sight.machine = Machine((gpu,), (Reading("FAKE-0", used, processes=processes),))

    sight = SimpleNamespace(machine=Machine())
    prover = SimpleNamespace(
        tool=DeviceTool((str(stub.program),)), problem=lambda _: "", held=lambda *_: {}
    )
    settings = SimpleNamespace(current=SimpleNamespace(move_gpu_memory=True))
    parking = Parking(home, settings, sight, prover)
    monkeypatch.setattr(module, "_LAG", 0.0)
    monkeypatch.setattr(module, "_AGAIN", 3600.0)
    monkeypatch.setattr(module, "free_memory", lambda: 64 * GIB)
    yield SimpleNamespace(
        job=job, parking=parking, see=see, pids=pids, prover=prover, sight=sight,
        folder=home.attempt(1, 1),
    )  # fmt: skip
    os.killpg(runner.pid, signal.SIGKILL)
    runner.wait()


def refused(place):
    """Why it is not moved; nothing has been begun."""
    words = place.parking.move(place.job)
    assert not place.parking.any_out
    assert words is not None
    return words.removeprefix("; its GPU memory stays where it is: ")


def moved(place):
    return until(lambda: place.parking.move(place.job))


def brought(place):
    """What comes of the way back, once it is not under way any more."""

    def over():
        how, words = place.parking.bring(place.job)
        return how is not Return.UNDER_WAY and (how, words)

    return until(over)


def later(place):
    """As if the time had passed after which it is tried again."""
    for way in place.parking._back.values():
        way.again = 0.0


def test_what_is_not_moved(place, monkeypatch):
    one, two = place.pids
    place.see()
    assert refused(place) == ""
    place.see((one, GIB), (two, GIB))
    assert "several of its processes use a GPU" in refused(place)
    place.see((one, 70 * GIB))
    assert refused(place) == "70G, and 64G of the machine's memory are free"
    place.see((one, None), used=70 * GIB)  # it is not told: it may be all of it
    assert refused(place) == "70G, and 64G of the machine's memory are free"
    place.see((one, GIB))
    monkeypatch.setattr(module, "environment_of", lambda pid: {"CUDA_MPS_PIPE_DIRECTORY": "/x"})
    assert "MPS" in refused(place)
    place.prover.problem = lambda _: "not here"
    assert refused(place) == "not here"
    place.prover.problem = lambda _: None
    assert refused(place) == ""


def test_memory_of_several_jobs_is_reckoned_together(place, stub, monkeypatch):
    stub.tell("checkpoint", "wait")
    place.see((place.pids[0], 40 * GIB))
    assert place.parking.move(place.job) is None
    second = Job(
        2, JobKind.SCRIPT, JobState.RUNNING, Request(), "b", "me", "sleep", "/", Origin(), 0, 2,
        attempt=1, process=place.job.process,
    )  # fmt: skip
    assert "40G, and 24G of the machine's memory are free" in place.parking.move(second)
    stub.go("checkpoint")
    assert "40G of its GPU memory are on the host" in moved(place)


def test_what_stays_on_the_gpu_is_told(place):
    place.see((place.pids[0], GIB))
    place.prover.held = lambda *_: {"FAKE-0": GIB // 4}
    assert moved(place) == "; 768M of its GPU memory are on the host, 256M stay where they are"
    assert parked_in(place.folder).left == {"FAKE-0": GIB // 4}


def test_a_way_back_that_fails_is_tried_again_and_given_up(place, stub):
    pid = place.pids[0]
    place.see((pid, GIB))
    moved(place)
    place.see()
    stub.tell("restore", "fail")
    how, words = brought(place)
    assert (how, "could not be brought back: restore: could not restore" in words) == (
        Return.WAITS, True,
    )  # fmt: skip
    for _ in range(2):
        later(place)
        how, _ = brought(place)
    assert how is Return.LOST
    assert stub.done(pid) == [*OUT, *["restore moves"] * 3]
    assert parked_in(place.folder) is not None


def test_a_way_back_that_fails_once(place, stub):
    pid = place.pids[0]
    place.see((pid, GIB))
    moved(place)
    place.see()
    stub.tell("restore", "fail")
    assert brought(place)[0] is Return.WAITS
    stub.tell("restore", "")
    assert brought(place)[0] is Return.WAITS  # not yet
    later(place)
    assert brought(place)[0] is Return.BACK
    assert stub.state(pid) == "running"
    assert parked_in(place.folder) is None
    assert not place.parking.any_out


def test_one_that_is_killed_on_the_host(place, stub):
    place.see((place.pids[0], GIB))
    moved(place)
    os.kill(place.pids[0], signal.SIGKILL)
    stub.tell("restore", "fail")
    assert brought(place)[0] is Return.BACK  # whatever became of it is its runner's to tell


def test_one_that_is_stuck_is_brought_back_without_room(place, stub):
    pid = place.pids[0]
    place.see((pid, 20 * GIB))
    stub.tell("checkpoint", "fail")
    stub.tell("unlock", "fail")
    assert "may wait for ever" in moved(place)
    assert place.parking.is_out(place.job)
    stub.tell("unlock", "")
    assert brought(place)[0] is Return.BACK  # it holds that room itself
    assert stub.state(pid) == "running"


@pytest.mark.parametrize("at", [1, 2])
def test_no_room_to_note_what_is_left(place, stub, monkeypatch, at):
    pid = place.pids[0]
    place.see((pid, GIB))
    written = []

    def write(folder, parked):
        written.append(parked)
        if len(written) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_parked(folder, parked)

    monkeypatch.setattr(module, "write_parked", write)
    words = moved(place)
    if at == 1:
        assert "its GPU memory stays where it is: [Errno 28]" in words
        assert not place.parking.is_out(place.job)
        assert stub.done(pid) == []
        return
    assert words == "; 1G of its GPU memory are on the host"
    assert place.parking.is_out(place.job)
    assert parked_in(place.folder).process == identify(pid)
    place.see()
    assert brought(place)[0] is Return.BACK
    assert stub.state(pid) == "running"


def test_what_cannot_be_read_loses_nothing(place, stub, caplog):
    def broken(*_):
        raise ValueError("a reading that is none")

    place.see((place.pids[0], GIB))
    place.prover.held = broken
    assert moved(place) == "; its GPU memory is on the host"
    assert "a reading that is none" in caplog.text
    assert place.parking.is_out(place.job)
    place.see()
    assert brought(place)[0] is Return.BACK
    assert stub.state(place.pids[0]) == "running"


def test_no_room_and_a_lead_before_has_moved_it(place, stub, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    pid = place.pids[0]
    write_parked(place.folder, Parked(identify(pid), {"FAKE-0": GIB}))
    stub.state(pid, "checkpointed")
    monkeypatch.setattr(module, "write_parked", full)
    assert "are on the host" in moved(place)
    assert place.parking.is_out(place.job)
    assert brought(place)[0] is Return.BACK
    assert stub.state(pid) == "running"


def test_one_that_takes_too_long_is_frozen_all_the_same(place, stub, monkeypatch):
    pid = place.pids[0]
    monkeypatch.setattr(module, "_GRACE", -module._START)
    stub.tell("checkpoint", "wait")
    place.see((pid, GIB // 1024))
    assert "its GPU memory has not come to the host within " in moved(place)
    assert place.parking.is_out(place.job)
    assert place.parking.bring(place.job) == (Return.UNDER_WAY, "")
    stub.go("checkpoint")
    place.see()
    assert brought(place)[0] is Return.BACK
    assert stub.state(pid) == "running"


def test_a_reading_that_never_comes_keeps_nothing(place, stub, monkeypatch):
    go = threading.Event()
    pid = place.pids[0]
    monkeypatch.setattr(module, "_GRACE", -module._START)
    place.see((pid, GIB // 1024))
    place.prover.held = lambda *_: {} if go.wait(60) else {"FAKE-0": 1}
    try:
        until(lambda: place.parking.move(place.job) == "; its GPU memory is on the host")
        place.see()
        assert brought(place)[0] is Return.BACK
        assert stub.state(pid) == "running"
    finally:
        go.set()
    until(lambda: "gpuqueue-parking" not in [one.name for one in threading.enumerate()])
    assert parked_in(place.folder) is None


def test_a_note_of_a_process_that_has_ended(place, stub):
    pid = place.pids[0]
    gone = replace(identify(pid), start=1)  # its number is another's by now
    write_parked(place.folder, Parked(gone, {"FAKE-0": GIB}))
    place.see()
    assert place.parking.is_out(place.job)
    assert refused(place) == ""
    assert parked_in(place.folder) is None
    assert stub.done(pid) == []


def test_a_note_of_a_process_that_has_ended_is_made_anew(place, stub):
    pid = place.pids[0]
    write_parked(place.folder, Parked(replace(identify(pid), start=1), {"FAKE-0": GIB}))
    place.see((pid, 2 * GIB))
    assert moved(place) == "; 2G of its GPU memory are on the host"
    assert parked_in(place.folder) == Parked(identify(pid), {"FAKE-0": 2 * GIB})


def test_nothing_is_done_to_a_stranger_with_its_number(place, stub):
    pid = place.pids[0]
    write_parked(place.folder, Parked(replace(identify(pid), start=1), {"FAKE-0": GIB}))
    stub.state(pid, "checkpointed")
    assert place.parking.is_out(place.job)
    assert brought(place)[0] is Return.BACK
    assert stub.done(pid) == []
    assert parked_in(place.folder) is None


def test_one_of_another_container_is_left_to_it(place, stub):
    pid = place.pids[0]
    there = identify(pid)
    there = replace(there, boot=f"{there.boot.partition(':')[0]}:7777")
    write_parked(place.folder, Parked(there, {"FAKE-0": GIB}))
    stub.state(pid, "checkpointed")
    assert place.parking.move(place.job) == ""
    how, words = brought(place)
    assert how is Return.WAITS
    assert words.endswith("could not be brought back: it runs in another container")
    assert parked_in(place.folder) is not None
    assert stub.done(pid) == []


def test_it_is_forgotten_with_its_job(place):
    place.see((place.pids[0], GIB))
    moved(place)
    assert place.parking.any_out
    place.parking.look({}, Mode(ModeName.FREE))
    assert not place.parking.any_out


def test_a_note_that_is_not_whole_is_none(tmp_path):
    (tmp_path / "device.json").write_text('{"process": {"pid": 1')
    assert parked_in(tmp_path) is None
    (tmp_path / "device.json").write_text('{"process": {"pid": 1}, "memory": {}}')
    assert parked_in(tmp_path) is None
