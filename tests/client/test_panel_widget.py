"""The panel in a cell: what its kernel answers, and what is shown where it cannot be."""

import sys
from typing import Any

import pytest

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.errors import GpuqueueError


def ask(client: LocalClient, method: str, path: str, body: Any = None, **query: str) -> Any:
    from gpuqueue_widgets.answering import answer

    arguments = {name: [value.encode()] for name, value in query.items()}
    return answer(client, method, path, arguments, body)


def test_the_kernel_answers_as_the_server_would(client: LocalClient) -> None:
    status, told = ask(client, "GET", "/status", limit="1")
    assert status == 200
    assert told["server"]["may"] == {"write": True, "execute": True}
    assert [gpu["index"] for gpu in told["gpus"]] == [0, 1]
    status, job = ask(client, "POST", "/jobs", {"command": "true", "options": {"tag": "a"}})
    assert (status, job["tag"], job["origin"]["kind"]) == (201, "a", "notebook")
    client.wait(job["id"], 60)
    status, told = ask(client, "GET", f"/jobs/{job['id']}")
    assert (status, told["state"]) == (200, "succeeded")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("POST", "/status", None, 404),
        ("GET", "/jobs/7", None, 404),
        ("GET", "/jobs/x", None, 404),
        ("POST", "/jobs", {"command": 5}, 400),
        ("POST", "/jobs", "text", 400),
        ("POST", "/jobs/7/cancel", {}, 404),
    ],
)
def test_what_cannot_be_is_told(
    client: LocalClient, method: str, path: str, body: Any, status: int
) -> None:
    found, told = ask(client, method, path, body)
    assert found == status
    assert told["message"]


def test_a_message_gets_its_answer(client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget")
    widget = gpuqueue.panel()
    sent: list[Any] = []
    monkeypatch.setattr(widget, "send", sent.append)
    widget._heard(widget, {"id": "a-1", "method": "GET", "path": "/counts", "body": None}, [])
    widget._heard(widget, {"id": "a-2", "method": "GET", "path": "/queue?limit=x"}, [])
    widget._heard(widget, "nonsense", [])
    widget._heard(widget, {"method": "GET"}, [])
    assert [(one["id"], one["status"]) for one in sent] == [("a-1", 200), ("a-2", 400)]
    assert sent[0]["body"]["running"] == 0
    assert "panel of the queue" in repr(widget)


def test_without_anywidget_it_says_how_to_get_it(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "gpuqueue_widgets.widget", raising=False)
    with pytest.raises(GpuqueueError, match="pip install 'jupyter-gpuqueue"):
        gpuqueue.panel()
    job = gpuqueue.submit(["sleep", "60"])
    assert set(job._repr_mimebundle_()) == {"text/plain", "text/html"}
    job.cancel()


def test_a_job_shows_as_plain_text_where_there_is_no_notebook(client: LocalClient) -> None:
    job = gpuqueue.submit(["sleep", "60"])
    assert set(job._repr_mimebundle_()) == {"text/plain", "text/html"}
    job.cancel()
