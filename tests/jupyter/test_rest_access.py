"""Who may ask: tokens, cookies, authorizers, other origins, and awkward addresses."""

import getpass
import urllib.parse
from typing import Any

import pytest
from gpuqueue_jupyter.handlers import API, RESOURCE, ROUTES
from jupyter_server.auth import Authorizer, User
from server_fixtures import *  # noqa: F403
from server_fixtures import Rest

from gpuqueue.client import LocalClient
from gpuqueue.client.payload import script_payload
from gpuqueue.client.request import options_from

EVERY = [
    (method, path.replace("{id}", "1"))
    for path, handler in ROUTES
    for method in ("GET", "POST")
    if method.lower() in vars(handler)
]


@pytest.mark.parametrize(("method", "path"), EVERY)
def test_nobody_is_let_in_without_a_token(rest: Rest, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "token wrong"}, {"Cookie": "_xsrf=a"}):
        body = {} if method == "POST" else None
        assert rest.ask(method, path, body, headers=headers).status == 403


class Deny(Authorizer):
    """Lets nobody do anything, and notes what was asked."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012 - cleared by the fixture

    def is_authorized(self, handler: Any, user: User, action: str, resource: str) -> bool:
        self.asked.append((action, resource))
        return False


class TestAnAuthorizer:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: dict[str, Any]) -> dict[str, Any]:
        Deny.asked.clear()
        jp_server_config["ServerApp"]["authorizer_class"] = Deny
        return jp_server_config

    @pytest.mark.parametrize(("method", "path"), EVERY)
    def test_is_asked_about_every_verb(self, rest: Rest, method: str, path: str) -> None:
        assert rest.ask(method, path, {} if method == "POST" else None).status == 403
        runs = method == "POST" and path in ("/jobs", "/preview", "/jobs/1/retry")
        action = "execute" if runs else {"GET": "read", "POST": "write"}[method]
        assert Deny.asked == [(action, RESOURCE)]


def _login(rest: Rest) -> str:
    """The cookies of a browser that came with the token once."""
    found = rest.fetch("GET", f"{rest.base}api/status?token={rest.token}")
    cookies = [text.split(";")[0] for text in found.headers.get_list("Set-Cookie")]
    return "; ".join(cookies)


def test_a_cookie_needs_the_other_token_to_change_things(rest: Rest) -> None:
    cookie = _login(rest) + "; _xsrf=abcdef"
    assert rest.ask("GET", "/status", headers={"Cookie": cookie}).status == 200
    asked = {"command": "true"}
    assert rest.ask("POST", "/jobs", asked, headers={"Cookie": cookie}).status == 403
    headers = {"Cookie": cookie, "X-XSRFToken": "guessed"}
    assert rest.ask("POST", "/jobs", asked, headers=headers).status == 403
    headers = {"Cookie": cookie, "X-XSRFToken": "abcdef"}
    assert rest.ask("POST", "/jobs", asked, headers=headers).status == 201


def test_a_page_of_another_origin_is_refused(rest: Rest) -> None:
    cookie = _login(rest)
    headers = {"Cookie": cookie, "Origin": "https://evil.example", "Host": "127.0.0.1"}
    answer = rest.ask("GET", "/status", headers=headers, checked=False)
    assert answer.status in (403, 404)


def test_the_owner_is_the_servers_user_where_people_are_not_told_apart(rest: Rest) -> None:
    assert rest.submit("true")["owner"] == getpass.getuser()


def test_the_owner_is_who_asks_where_the_server_knows(
    rest: Rest, extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = extension.serverapp.identity_provider
    monkeypatch.setattr(provider, "get_user", lambda _handler: User("ann"))
    monkeypatch.setattr(provider, "is_token_authenticated", lambda _handler: True)
    job = rest.submit("true")
    assert job["owner"] == "ann"
    assert [found["id"] for found in rest.get("/jobs", owner="ann").json["jobs"]] == [job["id"]]


def test_a_person_on_a_hub_is_the_same_owner_in_a_kernel(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ann@lab")
    assert client.submit([(script_payload("true"), options_from({}))])[0].owner == "ann@lab"


@pytest.mark.parametrize(
    "jp_base_url",
    # (a raw space or a parenthesis is more than the server itself bears)
    ["/", "/user/ann%40lab/x%20y/", "/a+b.c/", "/ünï/"],
)
class TestABaseUrl:
    def test_is_before_every_address(self, rest: Rest, jp_base_url: str) -> None:
        assert rest.get("/status").status == 200
        job = rest.submit("true")
        assert rest.get(f"/jobs/{job['id']}").json["id"] == job["id"]

    def test_is_not_optional(self, rest: Rest, jp_base_url: str) -> None:
        headers = {"Authorization": f"token {rest.token}"}
        found = rest.fetch("GET", f"/{API}/status", headers=headers)
        assert found.code == (200 if jp_base_url == "/" else 404)
        doubled = f"{rest.base}{urllib.parse.quote(jp_base_url[1:], safe='/%')}{API}/status"
        found = rest.fetch("GET", doubled, headers=headers)
        assert found.code == (200 if jp_base_url == "/" else 404)
