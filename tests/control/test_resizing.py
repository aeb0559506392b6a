"""Another size for jobs that wait or run, with real processes on pretend GPUs."""

import os
import signal

import pytest
from conftest import end_leads, until

import gpuqueue
from gpuqueue.errors import DoesNotFit, InvalidRequest, NotAllowedNow
from gpuqueue.model import IntentKind, JobState, Size

pytestmark = pytest.mark.usefixtures("home")
G = 2**30


def up(*jobs):
    until(lambda: all(job.state is JobState.RUNNING for job in jobs), what="all run at once")


def rows(client, job):
    """Usage rows of a job: compute, memory, from, until."""
    return client.store._rows(
        "SELECT compute, memory, since, until FROM placements WHERE job = ? ORDER BY seq", (job.id,)
    )


def events(client, job):
    return [event for event in client.store.events(job_id=job.id) if event.kind == "resized"]


def test_a_running_job_grows_and_keeps_its_process(client):
    job = gpuqueue.submit(["sleep", "600"], share=0.25, mem="6G")
    up(job)
    pid = job.record.process
    answer = job.resize(share=0.5, mem="20G")
    assert (answer.share, answer.memory, answer.over) == (500, 20 * G, 0)
    assert answer.applied == {"share": "admitted only", "mem": "admitted only"}
    assert str(answer) == f"job {job.id} has share 0.5 (admitted only), mem 20G (admitted only)"
    record = job.record
    assert record.process == pid
    assert [(g.compute, g.memory) for g in record.placement.grants] == [(500, 20 * G)]
    # what it had asked for stays, and what it has since is told beside it
    assert (record.request.share, record.request.memory) == (250, 6 * G)
    assert record.resized == Size(500, 20 * G)
    first, second = rows(client, job)
    assert first[:2] == (250, 6 * G)
    assert second[:2] == (500, 20 * G)
    assert first[3] == second[2]
    assert second[3] is None
    (event,) = events(client, job)
    assert event.data["applied"] == {"compute": "admitted only", "memory": "admitted only"}
    assert event.at == first[3]
    job.cancel()
    job.wait(60)
    assert rows(client, job)[1][3] is not None


def test_the_room_is_really_given_and_really_taken(client):
    job = gpuqueue.submit(["sleep", "600"], share=0.5, mem="12G")
    beside = gpuqueue.submit(["sleep", "600"], share=0.5, mem="12G")
    up(job, beside)
    assert job.placement.gpus == beside.placement.gpus
    with pytest.raises(NotAllowedNow, match=r"GPU \d has 0\.5 of its compute for it.*for 0\.75"):
        job.resize(share=0.75)
    assert job.placement.grants[0].compute == 500
    assert len(rows(client, job)) == 1
    assert job.record.resized is None
    beside.resize(share=0.25, mem="4G")
    assert job.resize(share=0.75).share == 750
    # nobody was moved for it
    assert {job.state, beside.state} == {JobState.RUNNING}
    for one in (job, beside):
        one.cancel()
        one.wait(60)


def test_to_have_less_than_it_uses_is_told(tmp_path, monkeypatch, client):
    procs = tmp_path / "procs"
    procs.write_text("")
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(procs))
    job = gpuqueue.submit(["sh", "-c", "echo pid=$$; sleep 600"], mem="8G")
    until(lambda: "pid=" in job.logs())
    index = job.placement.gpus[0].removeprefix("FAKE-")
    procs.write_text(f"{job.logs().strip()[4:]}:{index}:7168\n")
    until(lambda: (job.record.peak or 0) == 7 * G, what="its memory is seen")
    answer = job.resize(mem="4G")
    assert answer.over == 3 * G
    assert "it uses 3G more than that" in str(answer)
    assert job.state is JobState.RUNNING
    assert job.record.excess == 3 * G
    job.cancel()
    job.wait(60)


def test_a_waiting_job_is_another_request(client):
    blocker = gpuqueue.submit(["sleep", "600"], preset="exclusive")
    up(blocker)
    job = gpuqueue.submit(["sleep", "600"], share=0.5, mem="12G")
    until(lambda: job.record.latest is not None or job._client.why(job.id) is not None)
    answer = job.resize(share=0.25, mem="2G")
    assert answer.applied == {"share": "at its next start", "mem": "at its next start"}
    request = job.record.request
    assert (request.share, request.memory, job.record.resized) == (250, 2 * G, None)
    with pytest.raises(DoesNotFit, match="asks for 25G of device memory"):
        job.resize(mem="25G")
    assert job.record.request.memory == 2 * G
    assert [event.data["memory"] for event in events(client, job)] == [2 * G]
    blocker.cancel()
    up(job)
    assert [(g.compute, g.memory) for g in job.placement.grants] == [(250, 2 * G)]
    job.cancel()
    job.wait(60)


def test_a_retry_and_a_job_that_is_put_back_ask_for_the_new_size(client):
    job = gpuqueue.submit(["sleep", "600"], share=0.25, mem="6G", restartable=True)
    up(job)
    job.resize(share=0.5)
    # its runner is killed: it is restartable, and waits or runs again
    os.kill(job.record.process.pid, signal.SIGKILL)
    until(lambda: job.record.attempt == 2)
    up(job)
    record = job.record
    assert (record.request.share, record.request.memory, record.resized) == (500, 6 * G, None)
    assert record.placement.grants[0].compute == 500
    job.resize(mem="5G")
    job.cancel()
    job.wait(60)
    again = job.retry()
    assert (again.record.request.share, again.record.request.memory) == (500, 5 * G)
    again.cancel()
    again.wait(60)


def test_a_wish_waits_for_a_lead(client, home):
    job = gpuqueue.submit(["sleep", "600"], share=0.25, mem="6G")
    up(job)
    end_leads(home)
    (wish,) = client.store.intend(IntentKind.RESIZE, [job.id], {"share": 500, "memory": None})
    client.wake("intent")
    until(lambda: client.store.intent(wish).done is not None)
    assert client.store.intent(wish).error == ""
    assert job.placement.grants[0].compute == 500
    job.cancel()
    job.wait(60)


def test_two_sizes_in_one_turn_are_counted_once(client):
    job = gpuqueue.submit(["sleep", "600"], share=0.25, mem="6G")
    up(job)
    values = [{"share": share, "memory": None} for share in (500, 750)]
    wishes = [client.store.intend(IntentKind.RESIZE, [job.id], value)[0] for value in values]
    client.wake("intent")
    until(lambda: all(client.store.intent(wish).done is not None for wish in wishes))
    assert job.placement.grants[0].compute == 750
    found = rows(client, job)
    assert [row[3] is None for row in found].count(True) == 1
    assert found[-1][:2] == (750, 6 * G)
    ends = [row[3] for row in found[:-1]]
    assert ends == [row[2] for row in found[1:]]
    job.cancel()
    job.wait(60)


def test_what_is_not_understood(client):
    cpu = gpuqueue.submit(["sleep", "600"], preset="cpu")
    with pytest.raises(InvalidRequest, match="about a GPU"):
        cpu.resize(share=0.5)
    with pytest.raises(InvalidRequest, match="share"):
        cpu.resize()
    with pytest.raises(InvalidRequest, match="mem"):
        cpu.resize(mem="much")
    cpu.cancel()
    cpu.wait(60)
    over = gpuqueue.submit(["true"], share=0.5)
    over.wait(60)
    with pytest.raises(NotAllowedNow, match="already"):
        over.resize(share=0.25)
