"""Who may do what is the person's own: taking the GPUs back and giving them again.

This keeps an agent from doing it by mistake. It is no wall: whoever runs as this user
can do what this user can. docs/free.md names the sources of the variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum

from gpuqueue.errors import NotYours

__all__ = ["MARKERS", "Scope", "agent_of", "require_person", "scope_of"]

MARKERS = {
    "CLAUDECODE": "Claude Code",
    "GEMINI_CLI": "Gemini CLI",
    "CODEX_SANDBOX": "Codex",
    "CODEX_SANDBOX_NETWORK_DISABLED": "Codex",
    "CURSOR_AGENT": "Cursor",
    "GOOSE_TERMINAL": "goose",
    "AI_AGENT": "an agent",
}
"""Variables that coding agents set for the commands that they run, whatever the value."""


class Scope(StrEnum):
    """On whose behalf something is asked."""

    PERSON = "person"
    AGENT = "agent"
    JOB = "job"


def scope_of(env: Mapping[str, str] | None = None, *, browser: bool = False) -> tuple[Scope, str]:
    """Who asks, judged by the environment, and the word for it.

    ``browser`` is a session with which somebody logged in: it is a person's whatever the
    environment of the server is. Where a token comes to have a scope of its own, it is read here.
    """
    if browser:
        return Scope.PERSON, "a person"
    env = os.environ if env is None else env
    if name := _marker(env):
        return Scope.AGENT, f"{MARKERS[name]} ({name} is set)"
    if "GPUQUEUE_ATTEMPT_DIR" in env:
        return Scope.JOB, f"job {env.get('GPUQUEUE_JOB_ID', '?')}"
    return Scope.PERSON, "a person"


def agent_of(env: Mapping[str, str] | None = None, *, browser: bool = False) -> str:
    """The coding agent that asks, by its name; empty for a person. As `scope_of` tells it."""
    name = "" if browser else _marker(os.environ if env is None else env)
    return MARKERS[name] if name else ""


def _marker(env: Mapping[str, str]) -> str:
    return next((name for name in MARKERS if env.get(name)), "")


def require_person(
    what: str, env: Mapping[str, str] | None = None, *, browser: bool = False
) -> None:
    """Refuse what only the person at the machine may do.

    Raises
    ------
    NotYours
        An agent asks, or a job does.
    """
    scope, who = scope_of(env, browser=browser)
    if scope is not Scope.PERSON:
        raise NotYours(
            f"{what} is for the person at this machine, and this was asked by {who}. Use a "
            "terminal of your own, or the panel in the browser."
        )
