"""Behind a reverse proxy that keeps the front of the path, takes it off or puts it on."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates
from gpuqueue_jupyter.extension import EVENT_SCHEMA
from gpuqueue_jupyter.handlers import API
from server_fixtures import *  # noqa: F403
from server_fixtures import Rest
from tiny_proxy import TinyProxy
from tornado.httpclient import HTTPRequest, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.websocket import websocket_connect

PREFIX = "/user/ann%40lab/x%20y"


class Outside:
    """Someone who knows the proxy's address only."""

    def __init__(self, rest: Rest, url: str, ca: Path | None = None) -> None:
        self.rest, self.url, self.ca = rest, url, None if ca is None else str(ca)
        self.headers = {"Authorization": f"token {rest.token}"}

    def ask(self, method: str, url: str, body: Any = None) -> HTTPResponse:
        """One request; ``url`` is a whole address."""
        sent = None if body is None else json.dumps(body)
        request = HTTPRequest(
            url,
            method=method,
            body=sent,
            headers=self.headers,
            allow_nonstandard_methods=True,
            follow_redirects=False,
            ca_certs=self.ca,
        )

        async def fetch() -> HTTPResponse:
            client = SimpleAsyncHTTPClient(force_instance=True)
            try:
                return await client.fetch(request, raise_error=False)
            finally:
                client.close()

        return self.rest.loop.run_until_complete(asyncio.wait_for(fetch(), 60))

    def get(self, address: str) -> Any:
        """JSON of an address below the API's."""
        answer = self.ask("GET", f"{self.url}{API}/{address}")
        assert answer.code == 200, answer.body
        return json.loads(answer.body)

    def hears(self, act: Callable[[], Any]) -> dict[str, Any]:
        """What the event stream says first when something is done."""
        request = HTTPRequest(
            f"{self.url}api/events/subscribe".replace("http", "ws", 1),
            headers=self.headers,
            ca_certs=self.ca,
        )
        loop = self.rest.loop
        stream = loop.run_until_complete(asyncio.wait_for(websocket_connect(request), 60))
        act()
        message = loop.run_until_complete(asyncio.wait_for(stream.read_message(), 60))
        stream.close()
        return dict(json.loads(message or "{}"))


@pytest.fixture
def proxied(rest: Rest, http_server: Any, jp_http_port: int) -> Iterator[Callable[..., Outside]]:
    """Puts a proxy before the server; gives the way to ask it."""
    made: list[TinyProxy] = []

    def proxy(
        front: str, *, target: int | str = jp_http_port, ca: Path | None = None, **how: Any
    ) -> Outside:
        async def start() -> TinyProxy:
            return TinyProxy(target, **how)

        made.append(rest.loop.run_until_complete(start()))
        scheme = "http" if ca is None else "https"
        return Outside(rest, f"{scheme}://127.0.0.1:{made[0].port}{front}", ca)

    yield proxy
    for proxy_ in made:
        proxy_.stop()


def works(outside: Outside) -> None:
    """Ask, queue, follow every address that is told, and hear of it, all through the proxy."""
    assert len(outside.get("gpus")["gpus"]) == 2

    answers: list[HTTPResponse] = []
    asked = {"command": "true"}
    heard = outside.hears(
        lambda: answers.append(outside.ask("POST", f"{outside.url}{API}/jobs", asked))
    )
    made = json.loads(answers[0].body)
    assert answers[0].code == 201
    assert (heard["schema_id"], heard["job"]) == (EVENT_SCHEMA["$id"], made["id"])

    address = urllib.parse.urljoin(answers[0].effective_url, answers[0].headers["Location"])
    assert address == f"{outside.url}{API}/jobs/{made['id']}"
    assert json.loads(outside.ask("GET", address).body)["id"] == made["id"]

    outside.rest.ended(made["id"])
    again = outside.ask("POST", f"{address}/retry", {})
    address = urllib.parse.urljoin(again.effective_url, again.headers["Location"])
    found = json.loads(outside.ask("GET", address).body)
    assert (again.code, found["retry_of"]) == (201, made["id"])


@pytest.mark.parametrize("jp_base_url", [f"{PREFIX}/"])
class TestTheServerKnowsItsPrefix:
    def test_and_the_proxy_keeps_it(
        self, proxied: Callable[..., Outside], jp_base_url: str
    ) -> None:
        works(proxied(f"{PREFIX}/"))

    def test_and_the_proxy_puts_it_on(
        self, proxied: Callable[..., Outside], jp_base_url: str
    ) -> None:
        works(proxied("/gpu/", takes="/gpu", puts=PREFIX))

    def test_twice_is_not_found(self, proxied: Callable[..., Outside], jp_base_url: str) -> None:
        doubled = proxied(f"{PREFIX}/", puts=PREFIX)
        assert doubled.ask("GET", f"{doubled.url}{API}/gpus").code == 404


@pytest.mark.parametrize("jp_base_url", ["/"])
def test_a_prefix_that_the_server_does_not_know(
    proxied: Callable[..., Outside], jp_base_url: str
) -> None:
    works(proxied(f"{PREFIX}/", takes=PREFIX))


@pytest.mark.skipif(sys.platform == "win32", reason="no UNIX sockets")
def test_a_unix_socket(
    proxied: Callable[..., Outside], rest: Rest, extension: Any, tmp_path: Path
) -> None:
    path = os.path.relpath(tmp_path / "q")  # the whole path may be too long for a socket
    server = HTTPServer(extension.serverapp.web_app)

    async def listen() -> None:
        server.add_socket(bind_unix_socket(path))

    rest.loop.run_until_complete(listen())
    works(proxied(rest.base, target=path))
    server.stop()


def test_tls_before_it_with_a_certificate_of_ones_own(
    proxied: Callable[..., Outside], rest: Rest, certificates: Certificates
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    outside = proxied(rest.base, ssl_options=context, ca=certificates.authority)
    works(outside)
    stranger = Outside(rest, outside.url)
    with pytest.raises(ssl.SSLError):
        stranger.get("gpus")


def test_nothing_on_the_way_keeps_an_answer(rest: Rest) -> None:
    job = rest.submit("true")["id"]
    for path in ("/status", f"/jobs/{job}", f"/jobs/{job}/log", "/jobs/999", "/openapi.yaml"):
        assert rest.get(path).headers["Cache-Control"] == "no-store"
    refused = rest.ask("GET", "/status", headers={})
    assert (refused.status, refused.headers["Cache-Control"]) == (403, "no-store")
