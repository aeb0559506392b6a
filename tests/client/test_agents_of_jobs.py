"""Which coding agent asked for a job is known to the books."""

from __future__ import annotations

import pytest
from conftest import until

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.client.rights import MARKERS, agent_of
from gpuqueue.client.whose import origin_here, shown_origin
from gpuqueue.model import Origin


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may themselves be run by an agent."""
    for name in MARKERS:
        monkeypatch.delenv(name, raising=False)


def test_an_agent_is_told_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agent_of() == origin_here().agent == ""
    monkeypatch.setenv("GEMINI_CLI", "1")
    assert agent_of() == origin_here().agent == "Gemini CLI"
    # who is logged in at a browser is a person, whoever has started the server
    assert agent_of(browser=True) == ""
    monkeypatch.setenv("JPY_SESSION_NAME", "/books/a.ipynb")
    assert (origin_here().kind, origin_here().agent) == ("notebook", "Gemini CLI")


def test_names_for_people_keep_all_else() -> None:
    shown = shown_origin(Origin("terminal", "/a\udcff", "pts/1", "Codex"))
    assert shown == Origin("terminal", "/a\ufffd", "pts/1", "Codex")


def test_usage_by_agent(client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = gpuqueue.submit(["true"], share=0.25)
    monkeypatch.setenv("CLAUDECODE", "1")
    its = gpuqueue.submit(["true"], share=0.25)
    until(lambda: mine.done() and its.done())
    rows = {row["agent"]: row["jobs"] for row in gpuqueue.usage(by="agent")}
    assert rows == {"": 1, "Claude Code": 1}
    assert its.to_dict()["origin"]["agent"] == "Claude Code"
