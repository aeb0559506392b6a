"""A preemptible job makes room for one of higher priority, and comes back."""

from conftest import until
from freeing_jobs import TRAIN

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.model import JobState
from gpuqueue.run.files import is_resumable, read_exit


def _runs_twice(folder, name):
    """The first time it waits to be stopped, the second time it ends well."""
    mark = folder / name
    return ["sh", "-c", f"echo x >> '{mark}'; test $(wc -l < '{mark}') = 2 || sleep 600"]


def test_it_is_stopped_put_back_and_run_again(home, tmp_path):
    home.config.write_text("grace = 5\ngpus = [0]\n")
    low = gpuqueue.submit(_runs_twice(tmp_path, "low"), preemptible=True)
    until(lambda: (tmp_path / "low").exists())
    until(lambda: low.state is JobState.RUNNING)
    next_low = gpuqueue.submit(["true"])
    high = gpuqueue.submit(["true"], priority=1)
    assert high.wait(60) == 0
    assert low.wait(60) == 0
    assert next_low.wait(60) == 0
    assert (tmp_path / "low").read_text() == "x\nx\n"
    assert low.record.attempt == 2
    # what was stopped comes before what waited behind it
    assert high.record.started < low.record.started < next_low.record.started
    assert low.record.asked == ""


def test_who_did_not_offer_it_stays(home, tmp_path):
    home.config.write_text("gpus = [0]\nslots = 4\n")
    low = gpuqueue.submit(["sleep", "600"], restartable=True)
    until(lambda: low.state is JobState.RUNNING)
    high = gpuqueue.submit(["true"], priority=1)
    small = gpuqueue.submit(["true"], priority=1, preset="cpu")
    assert small.wait(60) == 0
    assert high.state is JobState.QUEUED
    assert low.state is JobState.RUNNING
    low.cancel()
    assert high.wait(60) == 0


def test_a_cancel_ends_it_while_it_makes_room(home, tmp_path):
    home.config.write_text("grace = 30\ngpus = [0]\n")
    (tmp_path / "stubborn.py").write_text(
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "pathlib.Path('ready').touch()\n"
        "while not pathlib.Path('go').exists():\n"
        "    time.sleep(0.02)\n"
    )
    low = gpuqueue.submit(["python", "stubborn.py"], cwd=tmp_path, preemptible=True)
    until(lambda: (tmp_path / "ready").exists())
    until(lambda: low.state is JobState.RUNNING)
    high = gpuqueue.submit(["true"], priority=1)
    until(lambda: low.state is JobState.EVICTING)
    low.cancel()
    until(lambda: low.record.asked == "cancel")
    (tmp_path / "go").touch()
    assert high.wait(60) == 0
    until(lambda: low.state is JobState.CANCELLED)


def test_a_resumable_job_saves_and_goes_on(home, tmp_path):
    home.config.write_text("grace = 60\ngpus = [0]\n")
    (tmp_path / "train.py").write_text(TRAIN)
    low = gpuqueue.submit(["python", "train.py"], cwd=tmp_path, preemptible=True)
    until(lambda: is_resumable(home.attempt(low.id, 1)) and low.state is JobState.RUNNING)
    high = gpuqueue.submit(["true"], priority=1)
    assert high.wait(60) == 0
    until(lambda: low.record.attempt == 2 and len((tmp_path / "seen").read_text().split("\n")) == 3)
    first, second = (line.split() for line in (tmp_path / "seen").read_text().splitlines())
    assert first == ["0", "0", "False"]
    assert int(second[0]) > 0
    assert second[1:] == ["1", "True"]
    (tmp_path / "go").touch()
    assert low.wait(60) == 0
    events = default_client().store.events(job_id=low.id)
    kinds = [event.kind for event in events if event.kind != "code"]
    assert kinds == ["submitted", "starting", "started", "evicting", "requeued", "starting",
                     "started", "ended"]  # fmt: skip
    read = read_exit(home.attempt(low.id, 1))
    assert (read["returncode"], read["asked"]) == (0, "")  # it was no signal that stopped it


def test_one_that_does_not_step_aside_in_time_is_stopped(home, tmp_path):
    home.config.write_text("grace = 0.2\nsave_time = 0.2\ngpus = [0]\n")
    (tmp_path / "deaf.py").write_text(
        "import time\nfrom gpuqueue import checkpoint\ncheckpoint.should_stop()\ntime.sleep(600)\n"
    )
    low = gpuqueue.submit(["python", "deaf.py"], cwd=tmp_path, preemptible=True)
    until(lambda: is_resumable(home.attempt(low.id, 1)) and low.state is JobState.RUNNING)
    high = gpuqueue.submit(["true"], priority=1)
    assert high.wait(60) == 0
    until(lambda: low.record.attempt == 2)
    low.cancel()


def test_a_job_that_ends_as_it_is_asked_has_succeeded(home, tmp_path):
    home.config.write_text("gpus = [0]\n")
    (tmp_path / "last.py").write_text(
        "import pathlib, time\n"
        "from gpuqueue import checkpoint\n"
        "checkpoint.should_stop()\n"
        "pathlib.Path('ready').touch()\n"
        "while not pathlib.Path('go').exists():\n"
        "    time.sleep(0.01)\n"
    )
    low = gpuqueue.submit(["python", "last.py"], cwd=tmp_path, preemptible=True)
    until(lambda: (tmp_path / "ready").exists() and low.state is JobState.RUNNING)
    high = gpuqueue.submit(["true"], priority=1)
    until(lambda: low.state is JobState.EVICTING)
    (tmp_path / "go").touch()
    assert low.wait(60) == 0
    assert (low.record.attempt, low.state) == (1, JobState.SUCCEEDED)
    assert high.wait(60) == 0


def test_one_that_saves_makes_room_before_one_that_does_not(home, tmp_path):
    home.config.write_text("gpus = [0, 1]\nslots = 8\n")
    (tmp_path / "train.py").write_text(TRAIN)
    saves = gpuqueue.submit(["python", "train.py"], cwd=tmp_path, preemptible=True)
    until(lambda: is_resumable(home.attempt(saves.id, 1)) and saves.state is JobState.RUNNING)
    loses = gpuqueue.submit(["sleep", "600"], preemptible=True)
    until(lambda: loses.state is JobState.RUNNING)
    # by its age it would be the last to go
    assert gpuqueue.submit(["true"], priority=1).wait(60) == 0
    assert loses.record.attempt == 1
    assert any(e.kind == "evicting" for e in saves._client.store.events(job_id=saves.id))
    for job in (saves, loses):
        job.cancel()
