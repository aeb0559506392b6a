"""``ps`` and ``top``."""

import json

from cli_program import ok, refused
from conftest import until

import gpuqueue
from gpuqueue.model import JobState


def rows(*words):
    return [line.split() for line in ok(*words).splitlines()]


def test_a_row_for_each_job_that_is_there(home):
    home.config.write_text("gpus = [0, 1]\n")
    assert rows("ps") == [["ID", "NAME", "STATE", "SHARE", "CARDS", "COMMAND"]]
    gpuqueue.submit(["true"], preset="cpu").wait(60)
    share = gpuqueue.submit(["sleep", "600"], share=0.25, tag="small")
    whole = gpuqueue.submit(["sleep", "601"], gpus=1)
    no_gpu = gpuqueue.submit(["sleep", "602"], preset="cpu")
    later = gpuqueue.submit(["sleep", "603"], preset="two")
    asks = gpuqueue.submit(["sleep", "604"], share=0.5, after=later)
    until(lambda: {job.state for job in (share, whole, no_gpu)} == {JobState.RUNNING})
    found = rows("ps")[1:]
    assert [row[:5] for row in found] == [
        [str(share.id), "small", "running", "0.25", found[0][4]],
        [str(whole.id), "sleep", "running", "1", found[1][4]],
        [str(no_gpu.id), "sleep", "running", "-", "-"],
        [str(later.id), "sleep", "queued", "-", "-"],
        [str(asks.id), "sleep", "queued", "0.5", "-"],
    ]
    assert {found[0][4], found[1][4]} == {"0", "1"}
    assert [row[-2:] for row in found] == [["sleep", str(600 + n)] for n in range(5)]
    assert [job["id"] for job in json.loads(ok("ps", "--json"))["jobs"]] == [
        job.id for job in (share, whole, no_gpu, later, asks)
    ]


def test_a_row_for_each_gpu(home):
    share = gpuqueue.submit(["sleep", "600"], share=0.25, mem="6G", slots=0)
    other = gpuqueue.submit(["sleep", "600"], share=0.5, mem="6G", slots=0)
    whole = gpuqueue.submit(["sleep", "600"], gpus=1, slots=0)
    until(lambda: {job.state for job in (share, other, whole)} == {JobState.RUNNING})
    head, *cards = ok("top").splitlines()
    assert head.split() == ["CARD", "GPU", "SEATS-FREE", "MEM-FREE", "JOBS"]
    found = sorted((line.split()[-3:] for line in cards), reverse=True)
    assert found == [["0.25", "12G", f"{share.id},{other.id}"], ["0", "0B", str(whole.id)]]
    assert [gpu["index"] for gpu in json.loads(ok("top", "--json"))["gpus"]] == [0, 1]


def test_what_ended_last_is_told_first(home):
    slow = gpuqueue.submit(["sh", "-c", "until test -e go; do sleep 0.02; done"], cwd=home.root)
    until(lambda: slow.state is JobState.RUNNING)
    quick = [gpuqueue.submit(["true"], preset="cpu") for _ in range(3)]
    for job in quick:
        assert job.wait(60) == 0
    (home.root / "go").touch()
    assert slow.wait(60) == 0
    assert gpuqueue.status().recent[0].id == slow.id
    assert "has already ended" in refused("resize", str(slow.id), "--share", "0.5", code=1)
