"""Whatever comes from outside gets a clear answer that names the field, and never a 500."""

import errno
import json
import sqlite3
from collections.abc import Iterator

import pytest
from conftest import until
from server_fixtures import *  # noqa: F403
from server_fixtures import Rest

from gpuqueue.client import LocalClient
from gpuqueue.errors import NoSpace
from gpuqueue.paths import Home
from gpuqueue.store.schema import VERSION


def refused(rest: Rest, body: object, field: str) -> str:
    """Submit what must be refused for one field; returns the message."""
    answer = rest.post("/jobs", body)
    assert answer.status == 400, answer.content
    assert answer.json["field"] == field
    assert rest.get("/jobs").json["jobs"] == []
    return answer.json["message"]


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1]", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"command": "\\ud800"}',
     b"1" * 5000, b"{" + b" " * (1 << 20) + b"}", b"NaN", b"\x00"],
)  # fmt: skip
def test_a_body_that_is_no_object(rest: Rest, body: bytes) -> None:
    refused(rest, body, "body")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "command"),
        (b"", "command"),
        ({"command": None}, "command"),
        ({"command": 5}, "command"),
        ({"command": []}, "command"),
        ({"command": ["a", 1]}, "command"),
        ({"command": {"a": 1}}, "command"),
        ({"command": "  "}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"command": ["echo", "a\0b"]}, "command"),
        ({"command": ["no-such-program-here"]}, "command"),
        ({"command": ["python", "gone.py"]}, "command"),
        ({"command": "true", "options": [1]}, "options"),
        ({"command": "true", "options": "x"}, "options"),
        ({"command": "true", "options": {"gpu": 1}}, "gpu"),
        ({"command": "true", "options": {"gpus": 1.5}}, "gpus"),
        ({"command": "true", "options": {"gpus": -1}}, "gpus"),
        ({"command": "true", "options": {"gpus": 10**30}}, "gpus"),
        ({"command": "true", "options": {"gpus": True}}, "gpus"),
        ({"command": "true", "options": {"gpus": [1]}}, "gpus"),
        ({"command": "true", "options": {"gpus": 9}}, "request"),
        ({"command": "true", "options": {"share": 2}}, "share"),
        ({"command": "true", "options": {"share": "1e99999"}}, "share"),
        ({"command": "true", "options": {"share": {}}}, "share"),
        ({"command": "true", "options": {"mem": "six"}}, "mem"),
        ({"command": "true", "options": {"mem": 10**300}}, "mem"),
        ({"command": "true", "options": {"mem": "900G"}}, "request"),
        ({"command": "true", "options": {"eta": 0}}, "eta"),
        ({"command": "true", "options": {"eta": []}}, "eta"),
        ({"command": "true", "options": {"priority": 2**40}}, "priority"),
        ({"command": "true", "options": {"priority": "9" * 5000}}, "priority"),
        ({"command": "true", "options": {"preset": []}}, "preset"),
        ({"command": "true", "options": {"preset": "huge"}}, "preset"),
        ({"command": "true", "options": {"after": 99}}, "after"),
        ({"command": "true", "options": {"after": [{}]}}, "after"),
        ({"command": "true", "options": {"after": {"a": 1}}}, "after"),
        ({"command": "true", "options": {"after": -1}}, "after"),
        ({"command": "true", "options": {"tag": ""}}, "tag"),
        ({"command": "true", "options": {"tag": "x" * 1000}}, "tag"),
        ({"command": "true", "options": {"tag": "a\nb"}}, "tag"),
        ({"command": "true", "options": {"key": 3}}, "key"),
        ({"command": "true", "options": {"restartable": 1}}, "restartable"),
        ({"command": "true", "options": {"wait": "no"}}, "wait"),
        ({"command": "true", "cwd": "/no/such/place"}, "cwd"),
        ({"command": "true", "cwd": 5}, "cwd"),
        ({"command": "true", "cwd": "a\0"}, "cwd"),
        ({"command": "true", "cwd": "x" * 100_000}, "cwd"),
        ({"command": "true", "env": ["A"]}, "env"),
        ({"command": "true", "env": {"A": 1}}, "env"),
        ({"command": "true", "env": {"": "x"}}, "env"),
        ({"command": "true", "env": {"A=B": "x"}}, "env"),
        ({"command": "true", "env": {"A": "x\0"}}, "env"),
        ({"command": "true", "parameters": {"x": 1}}, "x"),
        ({"command": "true", "parameters": 4}, "parameters"),
        ({"command": "true", "comand": "x"}, "comand"),
    ],
)  # fmt: skip
def test_a_submission_that_is_wrong(rest: Rest, body: object, field: str) -> None:
    refused(rest, body, field)


def test_infinity_is_refused_by_field(rest: Rest) -> None:
    for name in ("eta", "gpus", "share", "mem", "priority"):
        refused(rest, f'{{"command": "true", "options": {{"{name}": 1e999}}}}'.encode(), name)


def test_a_secret_is_in_no_message(rest: Rest) -> None:
    assert "hunter2" not in refused(rest, {"command": "true", "env": {"A": ["hunter2"]}}, "env")
    assert "hunter2" not in refused(rest, {"command": "true", "env": {"A": "hunter2\0"}}, "env")


def test_a_message_does_not_send_everything_back(rest: Rest) -> None:
    assert len(refused(rest, {"command": "true", "options": {"mem": "x" * 900_000}}, "mem")) < 3000


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/status", "limit=-1", "limit"),
        ("/status", "limit=1e3", "limit"),
        ("/status", "limt=1", "limt"),
        ("/jobs", "limit=0", "limit"),
        ("/jobs", "limit=1001", "limit"),
        ("/jobs", "limit=" + "9" * 5000, "limit"),
        ("/jobs", "limit=%D9%A3", "limit"),
        ("/jobs", "before=x", "before"),
        ("/jobs", "before=99999999999999999999", "before"),
        ("/jobs", "state=asleep", "state"),
        ("/jobs", "state=", "state"),
        ("/jobs", "owner=%FF", "owner"),
        ("/jobs", "owner=a&owner=b", "owner"),
        ("/jobs/1/log", "offset=-1", "offset"),
        ("/jobs/1/log", "limit=99999999", "limit"),
        ("/jobs/1/log", "lines=1&offset=3", "lines"),
        ("/jobs/1/log", "format=xml", "format"),
        ("/jobs/1/log", "attempt=7", "attempt"),
        ("/jobs/1/events", "since=-3", "since"),
        ("/jobs/1/outputs", "offset=a", "offset"),
        ("/gpus", "x=1", "x"),
        ("/settings", "x=1", "x"),
        ("/jobs/1", "verbose=1", "verbose"),
    ],
)
def test_a_parameter_that_is_wrong(rest: Rest, path: str, query: str, field: str) -> None:
    rest.submit("true")
    answer = rest.ask("GET", path, query=f"?{query}")
    assert answer.status == 400, answer.content
    assert answer.json["field"] == field


def test_what_jupyterlab_adds_to_an_address_is_allowed(rest: Rest) -> None:
    assert rest.ask("GET", "/status", query="?1700000000000&no_track_activity=1").status == 200


@pytest.mark.parametrize("job", ["0", "99", "x", "-1", "9" * 18, "9" * 19, "9" * 400, "1.0", "%C3"])
def test_a_job_that_is_not(rest: Rest, job: str) -> None:
    paths = ["", "/log", "/outputs", "/events"]
    answers = [rest.ask("GET", f"/jobs/{job}{path}") for path in paths]
    verbs = ["cancel", "interrupt", "retry", "priority"]
    answers += [rest.ask("POST", f"/jobs/{job}/{verb}", {}) for verb in verbs]
    wanted = 400 if job == "%C3" else 404
    assert [answer.status for answer in answers] == [wanted] * 8


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/swap", {}, "jobs"),
        ("/swap", {"jobs": 3}, "jobs"),
        ("/swap", {"jobs": [1]}, "jobs"),
        ("/swap", {"jobs": [1, 1]}, "jobs"),
        ("/swap", {"jobs": [1, "2"]}, "jobs"),
        ("/swap", {"jobs": [1, 2**80]}, "jobs"),
        ("/swap", {"pair": [1, 2]}, "pair"),
        ("/jobs/1/priority", {"value": "high"}, "value"),
        ("/jobs/1/priority", {"value": 2**60}, "value"),
        ("/jobs/1/priority", {"value": True}, "value"),
        ("/jobs/1/priority", {"front": True}, "front"),
        ("/jobs/1/retry", {"priority": 1}, "priority"),
        ("/jobs/1/cancel", {"now": True}, "now"),
        ("/jobs/1/interrupt", b"{", "body"),
    ],
)
def test_a_wish_that_is_wrong(rest: Rest, path: str, body: object, field: str) -> None:
    rest.submit("true")
    answer = rest.post(path, body)
    assert answer.status == 400, answer.content
    assert answer.json["field"] == field


def test_swap_with_a_job_that_is_not(rest: Rest) -> None:
    first = rest.submit("sleep 600")["id"]
    assert rest.post("/swap", {"jobs": [first, 99]}).status == 404


def test_a_verb_that_is_not(rest: Rest) -> None:
    for method, path in (("PUT", "/jobs"), ("DELETE", "/jobs/1"), ("GET", "/swap")):
        answer = rest.ask(method, path, body=b"" if method == "PUT" else None, checked=False)
        assert answer.status == 405
        assert answer.json["message"]


def test_a_full_disk(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise NoSpace(errno.ENOSPC, "no space left; nothing was queued")

    monkeypatch.setattr(LocalClient, "submit", full)
    answer = rest.post("/jobs", {"command": "true"})
    assert answer.status == 507
    assert answer.json["message"] == "no space left; nothing was queued"


def test_what_nobody_expected_is_logged_and_not_told(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the inside of something")

    monkeypatch.setattr(LocalClient, "job", broken)
    answer = rest.ask("GET", "/jobs/1", checked=False)
    assert answer.status == 500
    assert "inside" not in answer.json["message"]
    assert "the inside of something" in caplog.text


# -- a state directory that cannot be used ---------------------------------------------------


@pytest.fixture
def newer(home: Home) -> Iterator[Home]:
    """A state directory that a newer program wrote."""
    LocalClient(home).close()
    with sqlite3.connect(home.database) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    yield home
    with sqlite3.connect(home.database) as db:
        db.execute(f"PRAGMA user_version = {VERSION}")


def test_a_state_that_cannot_be_used_leaves_the_server_up(
    newer: Home, rest: Rest, caplog: pytest.LogCaptureFixture
) -> None:
    for method, path in (("GET", "/status"), ("GET", "/jobs/1/log"), ("POST", "/jobs/1/cancel")):
        answer = rest.ask(method, path, {} if method == "POST" else None)
        assert answer.status == 503
        assert "newer gpuqueue" in answer.json["message"]
    records = [*caplog.get_records("setup"), *caplog.records]
    told = [record for record in records if "newer gpuqueue" in record.getMessage()]
    assert [record.levelname for record in told] == ["ERROR"]
    assert rest.get("/openapi.yaml").status == 200
    findings = rest.get("/doctor").json
    assert not findings["ok"]
    assert any("newer gpuqueue" in check["sentence"] for check in findings["checks"])
    headers = {"Authorization": f"token {rest.token}"}
    assert rest.fetch("GET", f"{rest.base}api/status", headers=headers).code == 200


def test_a_state_that_was_repaired_is_used(
    newer: Home, rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rest.get("/status").status == 503
    with sqlite3.connect(newer.database) as db:
        db.execute(f"PRAGMA user_version = {VERSION}")
    monkeypatch.setattr("gpuqueue_jupyter.host._AGAIN", 0.0)
    until(lambda: rest.get("/status").status == 200)
    job = rest.submit("true")
    assert rest.ended(job["id"])["state"] == "succeeded"


def test_a_damaged_database(home: Home, rest: Rest) -> None:
    """Damage that comes while the server runs."""
    home.database.write_bytes(b"not a database" * 1000)
    for name in ("-wal", "-shm"):
        home.database.with_name(home.database.name + name).unlink(missing_ok=True)
    answer = rest.ask("GET", "/jobs")
    assert answer.status in (200, 503), json.loads(answer.content)
