"""Jobs are held to their shares by what works here: a mechanism of the tests' own."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import until
from holding_stage import *  # noqa: F403
from holding_stage import Lead, Stand

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.control.holding import FACT, Holder
from gpuqueue.errors import DoesNotFit, InvalidRequest
from gpuqueue.model import Hold, JobState
from gpuqueue.paths import Home
from gpuqueue.run.inherit import ADDED, added, unheld
from gpuqueue.share import Effect, Ladder

G = 2**30


def ready(job: gpuqueue.Job) -> gpuqueue.Job:
    until(lambda: job.state is JobState.RUNNING)
    return job


def kinds(client: LocalClient, job: gpuqueue.Job) -> list[str]:
    return [event.kind for event in client.store.events(job_id=job.id)]


def test_a_share_starts_with_what_holds_it(proven: Lead, client: LocalClient) -> None:
    job = gpuqueue.submit(["sh", "-c", "echo $STAND $OWN"], share=0.25, env={"OWN": "mine"})
    assert job.wait(60) == 0
    assert job.logs() == "250 ours\n"
    assert job.hold == Hold("capped", "admitted only", ("stand",), {})
    assert "share" in kinds(client, job)
    (bound,) = proven.stand.asked
    assert (dict(bound.compute), dict(bound.caps)) == ({"FAKE-0": 250}, {"FAKE-0": 6 * G})
    assert bound.base["OWN"] == "mine"
    assert bound.folder == client.home.attempt(job.id, 1)
    until(lambda: proven.stand.released == [bound.folder])
    assert job.to_dict()["hold"]["compute"] == "capped"


def test_whole_gpus_and_cpu_jobs_need_nothing(proven: Lead) -> None:
    for options in ({}, {"preset": "cpu"}, {"gpus": 2}):
        job = gpuqueue.submit(["sh", "-c", "echo none$STAND"], **options)
        assert job.wait(60) == 0
        assert job.logs() == "none\n"
        assert job.hold is None
    assert not proven.stand.asked


def test_nobody_waits_for_the_trial(home: Home, client: LocalClient, lead: Lead) -> None:
    lead.end()
    lead.stand.gate.clear()  # its trial does not end until it is let
    lead.__init__(home, lead.stand)
    job = gpuqueue.submit(["sh", "-c", "echo none$STAND"], share=0.25)
    assert job.wait(60) == 0
    assert job.logs() == "none\n"
    assert job.hold is not None
    assert job.hold.compute == "admitted only"
    assert "tried" in job.hold.missing["all"]
    # one that requires more waits for it, with its room
    client.store.set_fact(FACT, {"standings": {"compute": "capped"}, "reasons": {}})
    strict = gpuqueue.submit(["sh", "-c", "echo $STAND"], share=0.25, require="compute=hard")
    until(lambda: strict.state is JobState.STARTING)
    lead.stand.gate.set()
    assert strict.wait(60) == 0
    assert strict.logs() == "250\n"


def test_what_is_not_hard_is_refused_at_once(proven: Lead) -> None:
    with pytest.raises(DoesNotFit, match=r"requires memory=hard.*admitted only.*leave memory=hard"):
        gpuqueue.submit(["true"], share=0.25, require="memory=hard")
    with pytest.raises(DoesNotFit, match="--share"):
        gpuqueue.submit(["true"], mem="2G", require="compute=hard")
    with pytest.raises(InvalidRequest, match="compute=soft"):
        gpuqueue.submit(["true"], share=0.25, require="compute=soft")
    with pytest.raises(InvalidRequest, match="about a GPU"):
        gpuqueue.submit(["true"], preset="cpu", require="compute=hard")
    hard = gpuqueue.submit(["sh", "-c", "echo $STAND"], share=0.25, require="compute=hard")
    assert hard.wait(60) == 0
    assert hard.logs() == "250\n"
    # a whole GPU needs no cap
    assert gpuqueue.submit(["true"], require="compute=hard,memory=hard").wait(60) == 0


def test_one_that_cannot_be_had_for_a_job_does_not_start_it(proven: Lead) -> None:
    proven.stand.fails = "the daemon does not answer"
    loose = gpuqueue.submit(["true"], share=0.25)
    assert loose.wait(60) == 0
    assert loose.hold == Hold(missing={"stand": "the daemon does not answer"})
    hard = gpuqueue.submit(["true"], share=0.25, require=["compute=hard"])
    hard.wait(60)
    assert hard.state is JobState.CANCELLED
    assert "the daemon does not answer" in hard.reason
    assert hard.record.started is None


def test_a_job_that_runs_is_held_to_its_new_size(proven: Lead, client: LocalClient) -> None:
    job = ready(gpuqueue.submit(["sleep", "600"], share=0.25, mem="6G"))
    answer = job.resize(share=0.5)
    assert answer.applied == {"share": "now"}
    (bound,) = proven.stand.resized
    assert dict(bound.compute) == {"FAKE-0": 500}
    assert bound.folder == client.home.attempt(job.id, 1)
    assert [kind for kind in kinds(client, job) if kind.startswith("resiz")] == [
        "resizing", "resized",
    ]  # fmt: skip
    proven.stand.effect = Effect.NEXT_START
    assert job.resize(share=0.75, mem="8G").applied == {
        "share": "at its next start", "mem": "admitted only",
    }  # fmt: skip
    proven.stand.fails = "the daemon does not answer"
    answer = job.resize(share=0.5)
    assert (answer.share, answer.problem) == (500, "the daemon does not answer")
    assert "the daemon does not answer" in str(answer)
    rows = client.store._rows("SELECT compute, until FROM placements WHERE job = ?", (job.id,))
    assert [row[0] for row in rows] == [250, 500, 750, 500]
    assert [row[1] is None for row in rows] == [False, False, False, True]


def test_a_burst_is_held_to_all_and_promised_its_share(proven: Lead) -> None:
    with pytest.raises(InvalidRequest, match="--share"):
        gpuqueue.submit(["true"], burst=True)
    with pytest.raises(InvalidRequest, match="compute=hard"):
        gpuqueue.submit(["true"], share=0.25, burst=True, require="compute=hard")
    job = gpuqueue.submit(["sh", "-c", "echo $STAND $GPUQUEUE_COMPUTE; sleep 600"], share=0.25,
                          burst=True)  # fmt: skip
    until(lambda: job.logs())
    assert job.logs() == "1000 0.25\n"
    assert job.placement is not None
    assert job.placement.grants[0].compute == 250
    assert job.hold is not None
    assert job.hold.compute == "admitted only"
    # the rest of the GPU is still there for others, to the last thousandth
    other = gpuqueue.submit(["sh", "-c", "echo $STAND; sleep 600"], share=0.75)
    until(lambda: other.logs())
    assert other.logs() == "750\n"
    assert other.placement is not None
    assert other.placement.gpus == job.placement.gpus
    assert job.resize(share=0.1).share == 100
    assert dict(proven.stand.resized[-1].compute) == {job.placement.gpus[0]: 1000}


def test_a_contradiction_is_told(
    proven: Lead, client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    procs = tmp_path / "procs"
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(procs))
    proven.stand.doubts = ("Process 1 is not held.",)
    # pretend processes are read by a lead that was told of the file
    proven.again()
    job = gpuqueue.submit(["sh", "-c", "echo pid=$$; sleep 600"], share=0.25)
    until(lambda: "pid=" in job.logs())
    pid = int(job.logs().strip()[4:])
    assert job.placement is not None
    procs.write_text(f"{pid}:{job.placement.gpus[0].removeprefix('FAKE-')}:100\n")
    until(lambda: job.hold is not None and job.hold.doubts)
    assert job.why().endswith("Process 1 is not held.")
    assert frozenset({pid}) in proven.stand.users
    assert kinds(client, job).count("doubt") == 1


def test_a_lead_that_takes_over_lets_go_of_what_ended(
    proven: Lead, client: LocalClient, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    job = ready(gpuqueue.submit(["sh", "-c", f"until [ -e '{flag}' ]; do sleep 0.1; done"],
                                share=0.25))  # fmt: skip
    until(lambda: job.hold is not None and job.hold.by)
    proven.end()
    flag.write_text("")
    until(lambda: (client.home.attempt(job.id, 1) / "exit.json").exists())
    proven.__init__(client.home, proven.stand)
    assert job.wait(60) == 0
    until(lambda: client.home.attempt(job.id, 1) in proven.stand.released)
    # and one that finds only its record does it again, for nobody knows whether it was done
    proven.again()
    until(lambda: client.home.attempt(job.id, 1) in proven.stand.released)


def test_who_is_asked_about_before_the_trial_is_over(proven: Lead, client: LocalClient) -> None:
    job = gpuqueue.submit(["true"], share=0.25)
    job.wait(60)
    record = client.job(job.id)
    gate = Stand()  # never tried
    holder = Holder(client.home, lambda *_: Ladder([gate]))
    holder.know(client.machine().gpus)
    # what an earlier lead has made ready is not started with less, and no more is what requires it
    assert record.hold is not None
    assert holder.must_ask(record)
    until(lambda: not holder.must_ask(replace(record, hold=None)), what="the moment is over")
    strict = replace(record.request, require=("compute",))
    assert holder.must_ask(replace(record, hold=None, request=strict))
    assert holder.trying
    gate.gate.set()
    holder.close()


def test_what_was_added_is_not_handed_on(proven: Lead) -> None:
    base = {"OWN": "mine", "LD_PRELOAD": "/own.so", "A": "1"}
    made = added({"OWN": "ours", "LD_PRELOAD": "/cap.so:/own.so", "NEW": "x"}, base)
    inside = {**base, **made}
    assert json.loads(made[ADDED])["OWN"] == ["ours", "mine"]
    assert unheld(inside) == base
    # what the job has changed itself stays, and of a list of libraries only ours goes
    inside |= {"OWN": "changed", "LD_PRELOAD": "/more.so:/cap.so:/own.so"}
    assert unheld(inside) == base | {"OWN": "changed", "LD_PRELOAD": "/more.so:/own.so"}
    assert unheld(added({"LD_PRELOAD": "/cap.so"}, {})) == {}
    assert unheld({"A": "1"}) == {"A": "1"}
    assert unheld({"A": "1", ADDED: "nonsense"}) == {"A": "1"}


def test_a_job_that_a_job_submits_starts_from_its_user_s_environment(proven: Lead) -> None:
    def outer() -> int:
        inner = gpuqueue.submit(["sh", "-c", "echo $OWN none$STAND"], preset="cpu", tag="inner")
        assert os.environ["STAND"] == "250"
        return inner.id

    inner = gpuqueue.job(gpuqueue.submit(outer, share=0.25, env={"OWN": "mine"}).result(60))
    assert inner.wait(60) == 0
    assert inner.logs() == "mine none\n"


def test_what_did_not_work_is_tried_again_as_a_job_starts(
    home: Home, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_AUTOSTART", "0")
    monkeypatch.setattr("gpuqueue.share.ladder._RETRY", 0.0)
    stand = Stand(usable=False)
    stand.gate.set()
    lead = Lead(home, stand)
    try:
        told = until(lambda: (client.store.fact(FACT) or {}).get("standings"))
        assert told["compute"] == "admitted only"
        stand.usable = True  # the GPU was full, say
        job = gpuqueue.submit(["true"], share=0.25)
        assert job.wait(60) == 0
        assert job.hold is not None
        assert job.hold.compute == "capped"
        until(lambda: client.store.fact(FACT)["standings"]["compute"] == "capped")
    finally:
        lead.end()
