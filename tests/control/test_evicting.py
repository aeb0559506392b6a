"""A preemptible job makes room for one of higher priority, and comes back."""

from conftest import until

import gpuqueue
from gpuqueue.model import JobState


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
