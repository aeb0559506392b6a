"""The person takes the GPUs back and gives them again, with real jobs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from conftest import until
from freeing_jobs import (
    COUNT,
    DEAF,
    TRAIN,
    count,
    free,
    kinds,
    python,
    resumable,
    resume,
    stands_still,
)

import gpuqueue
from gpuqueue import checkpoint
from gpuqueue.client import default_client
from gpuqueue.model import (
    JobState,
    ModeName,
)
from gpuqueue.run.files import is_resumable
from gpuqueue.run.process import alive, descendants


@pytest.fixture
def mode(home):
    return default_client().store.mode


def test_each_kind_of_job_and_back(home, tmp_path, mode, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "4x24G")
    home.config.write_text("slots = 9\n")
    saves = resumable(tmp_path / "saves", TRAIN)
    again = python(tmp_path / "again", COUNT, restartable=True)
    plain = python(tmp_path / "plain", COUNT, tag="plain")
    until(lambda: count(tmp_path / "plain"))
    no_gpu = python(tmp_path / "cpu", COUNT, preset="cpu")
    behind = gpuqueue.submit(["true"], preset="two")

    answer = free()
    assert {job["id"]: job["does"] for job in answer.jobs} == {
        saves.id: "evict", again.id: "restart", plain.id: "freeze",
    }  # fmt: skip
    assert mode().name is ModeName.FREE
    (held,) = answer.mode["holding"]
    assert held == {
        "job": plain.id, "tag": "plain", "notebook": False, "gpu": 2, "memory": None,
    }  # fmt: skip
    for text in (answer.message, str(gpuqueue.status())):
        assert f"ob {plain.id} (plain) still holds memory of GPU 2" in text
        assert f"`jupyter gpuqueue cancel {plain.id}` releases it" in text
    # those that stepped aside are in front, and have not failed
    for job in (saves, again):
        assert (job.state, job.returncode, job.record.attempt) == (JobState.QUEUED, None, 1)
        assert job.reason.startswith("evicted: ")
        assert job.record.order < behind.record.order
    assert plain.reason == "frozen by free mode"
    assert stands_still(plain)
    before = count(tmp_path / "plain")
    # nothing starts, whatever it is
    small = gpuqueue.submit(["true"], preset="cpu")
    assert "free mode" in small.why()
    assert default_client().plan().waits[small.id].reason == "free mode"
    with pytest.raises(gpuqueue.DoesNotFit, match="free mode"):
        gpuqueue.submit(["true"], preset="cpu", wait=False)
    going = count(tmp_path / "cpu")
    until(lambda: count(tmp_path / "cpu") > going)  # a job without a GPU goes on
    assert count(tmp_path / "plain") == before

    answer = resume()
    assert answer.settled
    assert {job["id"]: job["does"] for job in answer.jobs} == {
        plain.id: "continue", saves.id: "start", again.id: "start",
    }  # fmt: skip
    until(lambda: count(tmp_path / "plain") > before)
    assert plain.record.attempt == 1
    assert small.wait(60) == 0
    seen = tmp_path / "saves" / "seen"
    until(lambda: len(seen.read_text().splitlines()) == 2)
    first, second = (line.split() for line in seen.read_text().splitlines())
    assert first == ["0", "0", "False"]
    assert int(second[0]) > 0
    assert second[1:] == ["1", "True"]
    for name in ("saves", "again", "plain", "cpu"):
        (tmp_path / name / "go").touch()
    for job in (saves, again, plain, no_gpu, behind):
        assert job.wait(60) == 0
    assert (saves.record.attempt, again.record.attempt) == (2, 2)
    assert kinds(saves).count("evicting") == 1
    assert [event.data["name"] for event in default_client().store.events()
            if event.kind == "mode"] == ["freeing", "free", "normal"]  # fmt: skip


def test_one_that_does_not_step_aside_in_time_is_frozen_and_named(home, tmp_path, mode):
    home.config.write_text("evict_timeout = 1\n")
    deaf = resumable(tmp_path / "deaf", DEAF, tag="deaf")
    answer = free()
    assert deaf.state is JobState.FROZEN
    assert alive(deaf.record.process)
    assert stands_still(deaf)
    assert deaf.reason == "frozen by free mode: it did not save and exit within 1s"
    assert "1 (deaf) still holds" in answer.message
    assert "did not save and exit" in str(gpuqueue.status())
    resume()
    # the question is taken back: it runs to its end as if it had not been asked
    (tmp_path / "deaf" / "go").touch()
    assert deaf.wait(60) == 0
    assert (deaf.state, deaf.record.attempt) == (JobState.SUCCEEDED, 1)


def test_softly_all_are_frozen_at_once(home, tmp_path, mode):
    saves = resumable(tmp_path / "a", TRAIN)
    other = python(tmp_path / "b", COUNT, restartable=True)
    until(lambda: count(tmp_path / "b"))
    answer = free(soft=True)
    assert answer.settled
    assert [job["does"] for job in answer.jobs] == ["freeze", "freeze"]
    assert (mode().name, mode().soft) == (ModeName.FREE, True)
    for job in (saves, other):
        assert job.state is JobState.FROZEN
        assert stands_still(job)
        assert "evicting" not in kinds(job)
    resume()
    going = count(tmp_path / "b")
    until(lambda: count(tmp_path / "b") > going)
    assert (tmp_path / "a" / "seen").read_text().count("\n") == 1
    for job in (saves, other):
        job.cancel()


def test_what_was_frozen_softly_steps_aside_when_more_is_wanted(home, tmp_path, mode):
    saves = resumable(tmp_path / "a", TRAIN)
    other = python(tmp_path / "b", COUNT, restartable=True)
    free(soft=True)
    assert {saves.state, other.state} == {JobState.FROZEN}
    answer = free()
    assert [job["does"] for job in answer.jobs] == ["evict", "restart"]
    assert not mode().soft
    assert {saves.state, other.state} == {JobState.QUEUED}
    assert free(soft=True).mode["soft"] is False  # they are free already


def test_time_frozen_is_no_run_time(home, tmp_path, mode):
    job = python(tmp_path / "a", COUNT, eta="1h")
    blocked = gpuqueue.submit(["true"], gpus=2)
    until(lambda: blocked.record.latest)
    promised = blocked.record.latest
    free()
    began = job.record.frozen_at
    until(lambda: time.time() > began + 1)
    assert job.record.ran(began + 100) == job.record.ran(began)
    assert default_client().plan().expected == {}
    resume()
    record = job.record
    assert record.frozen_at is None
    assert record.frozen >= 1
    expected = default_client().plan().expected[blocked.id]
    assert expected == pytest.approx(record.started + record.frozen + 3600, abs=0.5)
    assert blocked.record.latest >= promised + 1
    (tmp_path / "a" / "go").touch()
    job.wait(60)
    assert job.record.ran(0) == pytest.approx(
        job.record.ended - job.record.started - record.frozen, abs=0.01
    )


def test_a_free_that_is_taken_back_while_a_job_still_runs(home, tmp_path, mode):
    """One that has not heard yet goes on as if nothing had been; none is lost."""
    home.config.write_text("evict_timeout = 600\n")
    deaf = resumable(tmp_path / "deaf", DEAF)
    answer = gpuqueue.free()
    until(lambda: deaf.state is JobState.EVICTING)
    assert not answer.settled
    assert mode().name is ModeName.FREEING
    resume()
    assert deaf.state is JobState.RUNNING
    (tmp_path / "deaf" / "go").touch()
    assert deaf.wait(60) == 0
    assert (deaf.state, deaf.record.attempt) == (JobState.SUCCEEDED, 1)


SLOW = """
import sys, time
from pathlib import Path
from gpuqueue import checkpoint
if checkpoint.resuming():
    sys.exit(0)
while not checkpoint.should_stop():
    time.sleep(0.01)
Path("heard").touch()
while not Path("go").exists():
    time.sleep(0.01)
sys.exit(0)
"""


def test_one_that_has_heard_leaves_though_they_are_given_back(home, tmp_path, mode):
    job = python(tmp_path / "a", SLOW)
    until(lambda: is_resumable(home.attempt(job.id, 1)))
    gpuqueue.free()
    until((tmp_path / "a" / "heard").exists)
    answer = resume()
    assert "job 1 starts again in its turn" in answer.message
    what = "saves its state, for it has heard of free mode, and starts again in its turn"
    assert (job.state, job.reason) == (JobState.EVICTING, what)
    (tmp_path / "a" / "go").touch()
    assert job.wait(60) == 0
    assert job.record.attempt == 2


def test_a_function_and_a_line_of_the_shell_step_aside(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)

    def work():
        if checkpoint.resuming():
            return "went on"
        while not checkpoint.should_stop():
            time.sleep(0.01)
        sys.exit(0)

    function = gpuqueue.submit(work)
    line = gpuqueue.submit(f"'{sys.executable}' train.py; echo $?")
    until(lambda: all(is_resumable(home.attempt(job.id, 1)) for job in (function, line)))
    free()
    assert (function.state, line.state) == (JobState.QUEUED, JobState.QUEUED)
    (tmp_path / "go").touch()
    resume()
    assert function.result(60) == "went on"
    assert line.wait(60) == 0
    assert line.record.attempt == 2


def test_one_that_fails_when_it_is_asked_has_failed(home, tmp_path):
    text = SLOW.replace('Path("heard").touch()', "sys.exit(3)")
    job = python(tmp_path / "a", text)
    until(lambda: is_resumable(home.attempt(job.id, 1)))
    free()
    assert (job.state, job.returncode) == (JobState.FAILED, 3)
    resume()


def test_softly_while_jobs_still_save_freezes_them_at_once(home, tmp_path, mode):
    home.config.write_text("evict_timeout = 600\n")
    deaf = resumable(tmp_path / "deaf", DEAF)
    assert not gpuqueue.free().settled
    answer = free(soft=True)
    assert (answer.settled, mode().soft) == (True, True)
    assert deaf.state is JobState.FROZEN
    assert stands_still(deaf)
    resume()
    (tmp_path / "deaf" / "go").touch()
    assert deaf.wait(60) == 0
    assert (deaf.state, deaf.record.attempt) == (JobState.SUCCEEDED, 1)


def test_nothing_to_free_and_nothing_to_resume(home, mode):
    there = "The queue has the GPUs already: free mode is not on, so there is nothing to resume."
    assert resume().message == f"{there} Nothing runs or waits."
    answer = free()
    assert answer.settled
    assert answer.message.startswith("The GPUs are yours.")
    assert answer.sentence == "The GPUs are yours."
    since = mode().since
    again = free()
    assert again.mode["since"] == since
    assert again.sentence.startswith("The GPUs are yours already, since ")
    assert again.message == (
        f"{again.sentence}\n`jupyter gpuqueue resume` gives them back to the queue."
    )
    assert resume().message == "The queue has the GPUs again."
    assert mode().normal
    job = gpuqueue.submit(["sleep", "600"], preset="exclusive")
    gpuqueue.submit(["true"], preset="exclusive")
    gpuqueue.submit(["true"], preset="exclusive")
    until(lambda: job.state is JobState.RUNNING)
    assert resume().sentence == f"{there} 1 job runs, 2 jobs wait."


def test_an_answer_is_one_sentence_and_rows(home, tmp_path):
    saves = [resumable(tmp_path / name, TRAIN, share="0.25", mem="1G") for name in "ab"]
    keeps = python(tmp_path / "c", COUNT, tag="keeps", share="0.25", mem="1G")
    answer = free()
    assert answer.sentence == (
        "The GPUs are yours: 2 jobs save and step aside, 1 job is frozen where it is."
    )
    rows = {row["job"]: row for row in answer.to_dict()["rows"]}
    assert [rows[job.id]["words"] for job in saves] == ["saves and steps aside"] * 2
    (row,) = free().rows
    gpu = next(iter(default_client().job(keeps.id).placement.grants)).gpu
    index = {gpu.uuid: gpu.index for gpu in default_client().machine().gpus}[gpu]
    assert row == {
        "job": keeps.id, "tag": "keeps", "notebook": False, "does": "", "words": "",
        "holds": f"memory of GPU {index}", "moved": "",
        "release": f"jupyter gpuqueue cancel {keeps.id}",
    }  # fmt: skip
    resume()


def test_only_the_person_may(home, monkeypatch):
    monkeypatch.setenv("CLAUDECODE", "1")
    for ask in (gpuqueue.free, gpuqueue.resume):
        with pytest.raises(gpuqueue.GpuqueueError, match=r"for the person .* Claude Code"):
            ask()
    monkeypatch.delenv("CLAUDECODE")
    job = gpuqueue.submit(["python", "-c", "import gpuqueue; gpuqueue.resume()"])
    assert job.wait(60) == 1
    assert f"asked by job {job.id}" in job.logs()
    assert default_client().store.open_intents() == []
    assert Path(home.root).exists()


def test_what_it_holds_is_told_where_the_driver_tells(home, tmp_path, mode, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(tmp_path / "procs"))
    (tmp_path / "procs").touch()
    job = python(tmp_path / "a", COUNT, tag="big", gpus=2)
    (payload,) = descendants(job.record.process.pid)
    (tmp_path / "procs").write_text(f"{payload}:0:6144\n{payload}:1:1024\n{payload + 1}:1:3\n")
    until(lambda: (default_client().machine().used or {}).get(job.id))
    answer = free()
    assert answer.jobs == [{"id": job.id, "tag": "big", "does": "freeze", "memory": 7 << 30}]
    assert (
        f"Job {job.id} (big) still holds 6G of GPU 0 and 1G of GPU 1; "
        f"`jupyter gpuqueue cancel {job.id}` releases it."
    ) in answer.message.splitlines()
    assert [each["memory"] for each in answer.mode["holding"]] == [6 << 30, 1 << 30]
