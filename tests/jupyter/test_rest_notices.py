"""Changes reach the server's event stream, soon and not in floods."""

import json
from typing import Any

import jsonschema
import pytest
from gpuqueue_jupyter.extension import EVENT_SCHEMA, GpuqueueExtension
from gpuqueue_jupyter.notices import MOST, notices_of
from server_fixtures import *  # noqa: F403
from server_fixtures import Rest

from gpuqueue.client import LocalClient
from gpuqueue.client.payload import script_payload
from gpuqueue.client.request import options_from
from gpuqueue.model import Event


@pytest.fixture
def heard(extension: GpuqueueExtension) -> list[dict[str, Any]]:
    """What a listener on the server's event logger hears."""
    found: list[dict[str, Any]] = []

    async def listen(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        found.append(dict(data))

    extension.serverapp.event_logger.add_listener(schema_id=EVENT_SCHEMA["$id"], listener=listen)
    return found


def test_the_life_of_a_job_is_heard(rest: Rest, heard: list[dict[str, Any]]) -> None:
    job = rest.submit("exit 1")["id"]
    rest.spin(lambda: any(notice["state"] == "failed" for notice in heard))
    mine = [notice for notice in heard if notice["job"] == job]
    assert mine[0]["kind"] == "submitted"
    assert mine[0]["state"] == "queued"
    assert [notice["seq"] for notice in mine] == sorted({notice["seq"] for notice in mine})


def test_what_another_process_submits_is_heard(
    rest: Rest, heard: list[dict[str, Any]], client: LocalClient
) -> None:
    job = client.submit([(script_payload("true"), options_from({}))])[0].id
    rest.spin(lambda: any(notice["job"] == job for notice in heard))


def test_a_browser_hears_it_through_the_servers_own_stream(rest: Rest, jp_ws_fetch: Any) -> None:
    socket = rest.loop.run_until_complete(jp_ws_fetch("api", "events", "subscribe"))
    job = rest.submit("true")["id"]
    message = json.loads(rest.loop.run_until_complete(socket.read_message()))
    socket.close()
    assert message["schema_id"] == EVENT_SCHEMA["$id"]
    assert message["job"] == job


def test_a_flood_is_told_as_one(
    rest: Rest, heard: list[dict[str, Any]], client: LocalClient
) -> None:
    work = [(script_payload("true"), options_from({"preset": "cpu"}))] * 300
    jobs = client.submit(work)
    rest.spin(lambda: not client.store.live())
    rest.spin(lambda: heard and heard[-1]["seq"] == client.store.last_event())
    assert client.store.last_event() >= 3 * len(jobs)
    assert len(heard) < 600
    assert any(notice["kind"] == "many" for notice in heard)


def test_notices_are_as_the_schema_says_and_hold_nothing_else() -> None:
    events = [
        Event(1, 0.0, 3, "submitted", {}),
        Event(2, 0.0, 3, "ended", {"state": "failed", "reason": "secret words"}),
        Event(3, 0.0, None, "settings", {"x": 1}),
    ]
    notices = notices_of(events)
    for notice in [*notices, *notices_of(events * MOST)]:
        jsonschema.validate(notice, EVENT_SCHEMA)
    assert [notice["state"] for notice in notices] == ["queued", "failed", None]
    assert notices_of(events * MOST)[0]["count"] == 3 * MOST
    assert "secret" not in str(notices)
