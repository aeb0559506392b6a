"""What the panel asks besides what everybody does: pages, pictures, previews, moves."""

import sys
import time

import pytest
from server_fixtures import *  # noqa: F403
from server_fixtures import Rest

from gpuqueue.client import LocalClient

WHOLE = {"preset": "exclusive"}
STEPS = """
from gpuqueue import checkpoint
for step in range(1, 301):
    checkpoint.log(step, loss=1 / step, total_steps=300)
import time
time.sleep(600)
"""


def waiting(rest: Rest, count: int, **options: object) -> list[int]:
    """Jobs that wait behind one that has the whole machine."""
    first = rest.submit("sleep 600", options={**WHOLE, "eta": "10m"})["id"]
    rest.until_state(first, "running")
    more = {**WHOLE, "eta": "5m", **options}
    return [rest.submit("sleep 600", options=more)["id"] for _ in range(count)]


def order(rest: Rest) -> list[int]:
    return [job["id"] for job in rest.get("/queue").json["jobs"]]


def test_status_tells_of_the_host_and_of_what_one_may_do(rest: Rest) -> None:
    status = rest.get("/status", recent=0).json
    assert status["host"]["memory"]["total"] > status["host"]["memory"]["used"] > 0
    assert status["host"]["disks"][0]["free"] > 0
    assert status["server"]["may"] == {"write": True, "execute": True}
    assert isinstance(rest.get("/status").json["host"]["cpu"], float)


def test_ended_jobs_are_listed_as_many_as_asked_for(rest: Rest) -> None:
    """The last to end first, whatever their numbers; pages go on in the same order."""
    ids = [rest.submit("true", options={"preset": "cpu"})["id"] for _ in range(3)]
    long = rest.submit("sleep 600", options={"preset": "cpu"})["id"]
    ids += [rest.submit("true", options={"preset": "cpu"})["id"] for _ in range(2)]
    for job in ids:
        rest.ended(job)
    rest.until_state(long, "running")
    rest.post(f"/jobs/{long}/cancel")
    rest.ended(long)
    told = rest.get("/status", recent=4).json["recent"]
    times = [job["ended"] for job in told]
    assert told[0]["id"] == long
    assert times == sorted(times, reverse=True)
    first = rest.get("/jobs", order="ended", limit=4).json
    assert [job["id"] for job in first["jobs"]] == [job["id"] for job in told]
    assert first["next"] == told[-1]["id"]
    rest_of = rest.get("/jobs", order="ended", before=first["next"]).json
    assert rest_of["next"] is None
    assert {job["id"] for job in told + rest_of["jobs"]} == {*ids, long}
    refused = rest.get("/jobs", order="size")
    assert (refused.status, refused.json["field"]) == (400, "order")


def test_the_queue_comes_in_pages_in_its_order(rest: Rest) -> None:
    ids = waiting(rest, 4)
    page = rest.get("/queue", offset=1, limit=2).json
    assert (page["total"], page["offset"]) == (4, 1)
    assert [job["id"] for job in page["jobs"]] == ids[1:3]
    assert [job["wait"]["position"] for job in page["jobs"]] == [2, 3]
    assert rest.get("/queue", offset=9).json["jobs"] == []
    rest.post(f"/jobs/{ids[3]}/priority", {})
    assert order(rest) == [ids[3], *ids[:3]]


def test_counting_tells_how_many_and_whether_anything_changed(rest: Rest) -> None:
    assert rest.get("/counts").json["running"] == 0
    waiting(rest, 2)
    found = rest.get("/counts").json
    assert (found["running"], found["waiting"]) == (1, 2)
    rest.submit("sleep 600", options=WHOLE)
    assert rest.get("/counts").json["seq"] > found["seq"]


class TestMoving:
    def test_right_before_or_after_another(self, rest: Rest) -> None:
        a, b, c, d = waiting(rest, 4)
        assert rest.post(f"/jobs/{d}/move", {"before": a}).status == 200
        assert order(rest) == [d, a, b, c]
        rest.post(f"/jobs/{d}/move", {"after": b})
        assert order(rest) == [a, b, d, c]
        rest.post(f"/jobs/{a}/move", {"after": c})
        assert order(rest) == [b, d, c, a]

    def test_it_takes_the_priority_of_its_neighbour_and_no_other_changes(self, rest: Rest) -> None:
        a, b, c = waiting(rest, 3)
        rest.post(f"/jobs/{a}/priority", {"value": 5})
        rest.post(f"/jobs/{c}/move", {"before": a})
        assert order(rest) == [c, a, b]
        assert [rest.job(job)["request"]["priority"] for job in (a, b, c)] == [5, 0, 5]

    def test_never_ahead_of_a_job_that_it_comes_after(self, rest: Rest) -> None:
        (a,) = waiting(rest, 1)
        b = rest.submit("true", options={**WHOLE, "after": [a]})["id"]
        answer = rest.post(f"/jobs/{b}/move", {"before": a})
        assert answer.status == 409
        assert f"job {b} comes after job {a}" in answer.json["message"]
        assert rest.post(f"/jobs/{a}/move", {"after": b}).status == 409
        assert order(rest) == [a, b]

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "before"),
            ({"before": 2, "after": 3}, "before"),
            ({"before": "2"}, "before"),
            ({"after": 1}, "after"),
            ({"behind": 2}, "behind"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, rest: Rest, body: object, field: str) -> None:
        answer = rest.post("/jobs/1/move", body)
        assert (answer.status, answer.json["field"]) == (400, field)

    def test_only_among_jobs_that_wait(self, rest: Rest) -> None:
        (a,) = waiting(rest, 1)
        answer = rest.post(f"/jobs/{a}/move", {"before": a - 1})
        assert answer.status == 409
        assert "is running" in answer.json["message"]
        assert rest.post(f"/jobs/{a}/move", {"before": 999}).status == 409
        assert rest.post("/jobs/999/move", {"before": a}).status == 404


def test_the_timeline_has_what_was_what_is_and_what_is_foreseen(rest: Rest) -> None:
    done = rest.submit("true", options=WHOLE)["id"]
    rest.ended(done)
    (next_one,) = waiting(rest, 1)
    found = rest.get("/timeline").json
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    bars = {when: [bar for bar in found["bars"] if bar["when"] == when] for when in
            ("past", "now", "next")}  # fmt: skip
    assert {bar["job"] for bar in bars["past"]} == {done}
    assert {bar["job"] for bar in bars["next"]} == {next_one}
    assert [len(each) for each in bars.values()] == [2, 2, 2]
    (current,) = {(bar["start"], bar["end"]) for bar in bars["now"]}
    (coming,) = {(bar["start"], bar["end"]) for bar in bars["next"]}
    assert current[1] - current[0] == pytest.approx(600, abs=30)
    assert coming[0] == pytest.approx(current[1], abs=5)
    assert coming[1] - coming[0] == pytest.approx(300)
    assert not [b for b in rest.get("/timeline", back=0).json["bars"] if b["when"] == "past"]


def test_a_jobs_progress_is_told(rest: Rest) -> None:
    job = rest.submit([sys.executable, "-c", STEPS], options={"preset": "cpu"})["id"]
    rest.spin(lambda: (rest.job(job).get("progress") or {}).get("step") == 300)
    (shown,) = rest.get("/status").json["running"]
    assert shown["progress"]["metrics"] == {"loss": 1 / 300, "total_steps": 300}
    found = rest.get(f"/jobs/{job}/progress", points=5).json
    assert found["count"] == 300
    assert [note["step"] for note in found["points"]] == [1, 76, 151, 225, 300]
    assert not found["ended"]


def test_a_job_that_notes_nothing_has_no_progress(rest: Rest) -> None:
    job = rest.submit("true", options={"preset": "cpu"})["id"]
    rest.ended(job)
    found = rest.get(f"/jobs/{job}/progress").json
    assert (found["points"], found["ended"]) == ([], True)


class TestPreview:
    def test_on_an_idle_machine_it_would_start_at_once(self, rest: Rest) -> None:
        rest.spin(lambda: rest.get("/status").json["server"]["leading"])
        asked = {"command": ["python", "-V"], "options": {"mem": "6G", "eta": "10m"}}
        found = rest.post("/preview", asked).json
        assert found["now"]
        assert len(found["gpus"]) == 1
        assert found["end"] - found["at"] == pytest.approx(600)
        assert found["request"]["memory"] == 6 << 30
        assert rest.get("/jobs").json["jobs"] == []

    def test_behind_others_it_tells_when_and_why(self, rest: Rest) -> None:
        waiting(rest, 1)
        found = rest.post("/preview", {"command": "true", "options": WHOLE}).json
        assert not found["now"]
        assert found["wait"]["position"] == 2
        assert found["wait"]["expected"] - time.time() == pytest.approx(900, abs=30)
        assert found["gpus"] == [0, 1]
        front = {"command": "true", "options": {**WHOLE, "priority": True}}
        assert rest.post("/preview", front).json["wait"]["position"] == 1

    def test_what_cannot_be_is_refused_as_a_submit_would_be(self, rest: Rest) -> None:
        answer = rest.post("/preview", {"command": "true", "options": {"mem": "900G"}})
        assert answer.status == 400
        answer = rest.post("/preview", {"command": "true", "options": {"mem": "lots"}})
        assert (answer.status, answer.json["field"]) == (400, "mem")


def test_moving_in_a_long_queue_touches_only_what_lies_between(
    rest: Rest, client: LocalClient
) -> None:
    ids = waiting(rest, 6)
    before = client.store.last_event()
    rest.post(f"/jobs/{ids[3]}/move", {"before": ids[1]})
    moved = {event.job for event in client.store.events(before) if event.kind == "moved"}
    assert moved == set(ids[1:4])


def test_the_gpus_are_taken_back_and_given_again(rest: Rest) -> None:
    job = rest.submit("sleep 600", options=WHOLE)["id"]
    rest.until_state(job, "running")
    answer = rest.post("/free", {"soft": True})
    assert answer.status in (200, 202)
    rest.spin(lambda: rest.get("/status").json["mode"]["name"] == "free")
    assert rest.get("/status").json["mode"]["by"] == "person"
    assert rest.job(job)["state"] == "frozen"
    assert rest.post("/resume").status in (200, 202)
    rest.until_state(job, "running")
    assert rest.get("/status").json["mode"]["name"] == "normal"
    assert rest.post("/free", {"soft": "yes"}).json["field"] == "soft"


class TestLookingFor:
    """``match`` and ``state``: the same words for what lives and for what has ended."""

    def test_words_are_looked_for_in_all_that_names_a_job(self, rest: Rest) -> None:
        ended = rest.submit("echo Größe", options={"preset": "cpu", "tag": "sweep-a"})["id"]
        rest.ended(ended)
        other = rest.submit("true", options={"preset": "cpu", "tag": "other"})["id"]
        rest.ended(other)
        rest.submit("sleep 600", options={**WHOLE, "tag": "first", "eta": "10m"})
        a = rest.submit("sleep 601", options={**WHOLE, "tag": "Sweep-B"})["id"]
        b = rest.submit("sleep 600", options={**WHOLE, "tag": "eval"})["id"]
        found = rest.get("/status", match="sweep").json
        assert [job["id"] for job in found["waiting"]] == [a]
        assert [job["id"] for job in found["recent"]] == [ended]
        assert found["running"] == []
        assert found["matches"] == {"running": 0, "waiting": 1, "notebooks": 0}
        assert found["counts"] == {"running": 1, "waiting": 2, "notebooks": 0}
        assert [grant["tag"] for gpu in found["gpus"] for grant in gpu["grants"]][:1] == ["first"]
        for words, jobs in (("GRÖSSE", [ended]), (f"#{b}", [b]), (str(other), [other]), ("", None),
                            ("sweep echo", [ended]), ("sweep eval", [])):  # fmt: skip
            answer = rest.get("/status", match=words).json
            ids = [job["id"] for name in ("waiting", "recent") for job in answer[name]]
            assert jobs is None or ids == jobs, words
        assert "matches" not in rest.get("/status", match=" ").json

    def test_the_queue_and_the_history_in_pages(self, rest: Rest) -> None:
        ids = waiting(rest, 6, tag="even")
        odd = rest.submit("sleep 600", options={**WHOLE, "tag": "odd"})["id"]
        page = rest.get("/queue", match="even", offset=2, limit=3).json
        assert (page["total"], [job["id"] for job in page["jobs"]]) == (6, ids[2:5])
        page = rest.get("/queue", match="odd").json
        assert [(job["id"], job["wait"]["position"]) for job in page["jobs"]] == [(odd, 7)]
        page = rest.get("/jobs", match="even", limit=4).json
        assert [job["id"] for job in page["jobs"]] == ids[:1:-1]
        page = rest.get("/jobs", match="even", limit=4, before=page["next"]).json
        assert ([job["id"] for job in page["jobs"]], page["next"]) == (ids[1::-1], None)

    def test_states_narrow_what_is_listed(self, rest: Rest) -> None:
        failed = rest.submit("exit 3", options={"preset": "cpu"})["id"]
        rest.ended(failed)
        (job,) = waiting(rest, 1)
        found = rest.get("/status", state="failed,queued").json
        assert found["running"] == []
        assert [each["id"] for each in found["waiting"]] == [job]
        assert [each["id"] for each in found["recent"]] == [failed]
        assert rest.get("/status", state="running").json["recent"] == []
        assert rest.get("/status", state="gone").status == 400
