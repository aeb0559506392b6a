"""Taking the GPUs back and giving them again, by REST; every answer is checked by the fixture."""

from typing import Any

import pytest
from conftest import until
from gpuqueue_jupyter.extension import EVENT_SCHEMA, GpuqueueExtension
from server_fixtures import *  # noqa: F403
from server_fixtures import Rest


def test_there_and_back(rest: Rest) -> None:
    before = rest.get("/status").json["mode"]
    assert before == {
        "name": "normal", "by": "", "soft": False, "since": None, "program": "", "holding": [],
        "moved": [],
    }  # fmt: skip
    job = rest.submit(["sleep", "600"], options={"tag": "long"})["id"]
    rest.until_state(job, "running")
    answer = rest.post("/free", {"soft": True})
    assert answer.status == 200
    assert answer.json["jobs"] == [{"id": job, "tag": "long", "does": "freeze", "memory": None}]
    assert answer.json["message"].startswith(f"The GPUs are yours: job {job} is frozen")
    mode = rest.get("/status").json["mode"]
    assert (mode["name"], mode["by"], mode["soft"]) == ("free", "person", True)
    (held,) = mode["holding"]
    assert held == {"job": job, "tag": "long", "notebook": False, "gpu": 0, "memory": None}
    assert answer.json["mode"] == mode
    assert rest.job(job)["frozen_at"] == pytest.approx(mode["since"], abs=5)
    waiting = rest.submit("true")["id"]
    assert rest.job(waiting)["wait"]["reason"] == "free mode"
    answer = rest.post("/resume")
    assert (answer.status, answer.json["mode"]["name"]) == (200, "normal")
    assert rest.job(job)["state"] == "running"
    assert rest.job(job)["frozen"] > 0
    assert rest.ended(waiting)["returncode"] == 0


def test_accepted_while_a_job_is_still_stopping(rest: Rest, home: Any) -> None:
    home.config.write_text("grace = 600\n")
    program = "trap '' TERM; echo up; while true; do sleep 0.1; done"
    job = rest.submit(["sh", "-c", program], options={"restartable": True})["id"]
    until(lambda: "up" in rest.get(f"/jobs/{job}/log").json["text"])
    answer = rest.post("/free")
    assert (answer.status, answer.json["mode"]["name"]) == (202, "freeing")
    assert answer.json["jobs"][0]["does"] == "restart"
    assert rest.post("/resume", {}).status == 200


def test_what_is_not_understood(rest: Rest) -> None:
    assert rest.post("/free", {"soft": "yes"}).json["field"] == "soft"
    assert rest.post("/free", {"hard": True}).json["field"] == "hard"
    assert rest.post("/resume", {"soft": True}).json["field"] == "soft"
    assert rest.get("/status").json["mode"]["name"] == "normal"


def test_an_agent_s_server_obeys_a_browser_only(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDECODE", "1")
    answer = rest.post("/free")
    assert answer.status == 403
    assert "for the person at this machine" in answer.json["message"]
    assert rest.get("/status").json["mode"]["name"] == "normal"
    origin = rest.client.get_url("").split("/")
    headers = {"Authorization": f"token {rest.token}", "Origin": f"{origin[0]}//{origin[2]}"}
    assert rest.ask("POST", "/free", {}, headers=headers).status == 200
    assert rest.ask("POST", "/resume", {}, headers=headers).status == 200


def test_listeners_hear_of_it(rest: Rest, extension: GpuqueueExtension) -> None:
    heard: list[dict[str, Any]] = []

    async def listen(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        heard.append(dict(data))

    logger = extension.serverapp.event_logger
    logger.add_listener(schema_id=EVENT_SCHEMA["$id"], listener=listen)
    rest.post("/free")
    rest.spin(lambda: any(notice["kind"] in ("mode", "many") for notice in heard))
    assert {notice["job"] for notice in heard if notice["kind"] == "mode"} == {None}
    rest.post("/resume")
