"""What earlier runs of a command teach, and what is kept with a job."""

import time

import nbformat
from conftest import until
from typer.testing import CliRunner

import gpuqueue
from gpuqueue.cli.app import app
from gpuqueue.client import default_client
from gpuqueue.client.cell import cell_payload
from gpuqueue.client.request import options_from
from gpuqueue.model import JobState


def test_the_third_run_is_expected_to_take_what_the_first_two_did(home):
    for _ in range(2):
        assert gpuqueue.submit(["sleep", "1"]).wait(60) == 0
    blockers = [gpuqueue.submit(["sleep", "600"], eta="10m") for _ in range(2)]
    third = gpuqueue.submit(["sleep", "1"])
    until(lambda: third.record.learned is not None, what="it is taught")
    assert 1.0 <= third.record.learned < 3.0
    told = gpuqueue.submit(["sleep", "1"], eta="5m")
    until(lambda: told.record.latest is not None, what="it is promised")
    assert told.record.learned is None
    other = gpuqueue.submit(["sleep", "2"])
    until(lambda: other.record.state is JobState.QUEUED)
    assert other.record.learned is None
    for job in (*blockers, third, told, other):
        job.cancel()


def test_a_job_that_waits_learns_from_one_that_ends_meanwhile(home, tmp_path):
    command = ["sh", "-c", "until test -e go; do sleep 0.02; done"]
    first = gpuqueue.submit(command, cwd=tmp_path, eta="5m")
    blocker = gpuqueue.submit(["sleep", "600"], eta="10m")
    until(lambda: first.state is blocker.state is JobState.RUNNING)
    wall = gpuqueue.submit(["sleep", "600"], preset="exclusive")
    same = gpuqueue.submit(command, cwd=tmp_path)
    until(lambda: wall.record.latest is not None)
    assert same.record.learned is None
    (tmp_path / "go").touch()
    assert first.wait(60) == 0
    until(lambda: same.record.learned is not None, what="it is taught")
    # short enough now to go before the one that waits for the whole machine
    assert same.wait(60) == 0
    for job in (blocker, wall):
        job.cancel()


def test_a_promise_is_kept_with_the_job(home):
    blockers = [gpuqueue.submit(["sleep", "600"], eta="10m") for _ in range(2)]
    until(lambda: all(job.state is JobState.RUNNING for job in blockers))
    waiting = gpuqueue.submit(["sleep", "1"], eta="1m")
    until(lambda: waiting.record.latest is not None, what="it is promised")
    record = waiting.record
    assert abs(record.expected - (time.time() + 600)) < 60
    assert record.latest == record.expected + 3600
    wait = waiting._client.why(waiting.id)
    assert abs(wait.expected - record.expected) < 5
    for job in (*blockers, waiting):
        job.cancel()


def _cell(source, **options):
    client = default_client()
    work = (cell_payload(source, {}), options_from(options))
    return gpuqueue.Job(client, client.submit([work])[0].id)


def test_a_cell_learns_from_those_of_the_same_code(home):
    assert _cell("import time\ntime.sleep(1.2)", preset="cpu").wait(60) == 0
    wall = gpuqueue.submit(["sleep", "600"], preset="exclusive", eta="10m")
    until(lambda: wall.state is JobState.RUNNING)
    same = _cell("# once more\nimport time\n\ntime.sleep(1.2)", preset="cpu")
    until(lambda: same.record.learned is not None, what="it is taught")
    assert 1.2 <= same.record.learned < 30
    other = _cell("import time\ntime.sleep(1.3)", preset="cpu")
    until(lambda: other.record.latest is not None, what="it was planned")
    assert other.record.learned is None
    told = CliRunner().invoke(app, ["show", str(same.id)])
    assert "by earlier runs of this code" in told.stdout
    for job in (wall, same, other):
        job.cancel()


def test_a_notebook_learns_from_runs_of_the_same_file(home, tmp_path):
    path = tmp_path / "slow.ipynb"
    cell = nbformat.v4.new_code_cell("import time; time.sleep(1)")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert gpuqueue.submit(path, preset="cpu").wait(60) == 0
    wall = gpuqueue.submit(["sleep", "600"], preset="exclusive", eta="10m")
    until(lambda: wall.state is JobState.RUNNING)
    same = gpuqueue.submit("slow.ipynb", cwd=tmp_path, preset="cpu")
    until(lambda: same.record.learned is not None, what="it is taught")
    for job in (wall, same):
        job.cancel()
