"""A Jupyter server in this process with the extension in it, and a client that checks answers.

A module to import from, not a ``conftest.py``: pytest-jupyter's fixtures are for these tests only.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuqueue_jupyter
import jsonschema
import pytest
import yaml
from conftest import until
from gpuqueue_jupyter.extension import GpuqueueExtension
from gpuqueue_jupyter.handlers import API
from pytest_jupyter.jupyter_server import *  # noqa: F403
from tornado.httpclient import HTTPRequest, HTTPResponse

from gpuqueue.paths import Home

SPEC_FILE = Path(gpuqueue_jupyter.__file__).with_name("openapi.yaml")
SPEC = yaml.safe_load(SPEC_FILE.read_text(encoding="utf-8"))


def resolve(item: dict[str, Any]) -> dict[str, Any]:
    """What a reference in the OpenAPI file is to, or the item itself."""
    while "$ref" in item:
        found: Any = SPEC
        for name in item["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        item = found
    return item


def operation(method: str, path: str) -> dict[str, Any]:
    """The operation that the OpenAPI file has for a request."""
    for template, methods in SPEC["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            return methods[method.lower()]
    raise AssertionError(f"{method} {path} is not in openapi.yaml")


def check(method: str, path: str, status: int, content: bytes, kind: str) -> None:
    """Fail where an answer is not as the OpenAPI file says."""
    responses = operation(method, path)["responses"]
    assert str(status) in responses, f"{method} {path}: {status} is not in openapi.yaml"
    described = resolve(responses[str(status)])["content"]
    kind = kind.split(";", maxsplit=1)[0]
    assert kind in described
    if kind == "application/json":
        schema = described[kind]["schema"]
        whole = {**schema, "components": SPEC["components"]}
        jsonschema.Draft202012Validator(whole).validate(json.loads(content))


@dataclass
class Answer:
    """What came back."""

    status: int
    content: bytes
    headers: Any

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Rest:
    """Asks the server in this process; every answer is checked against the OpenAPI file."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: Any, base_url: str, token: str
    ) -> None:
        self.loop, self.client, self.token = loop, client, token
        self.base = urllib.parse.quote(base_url, safe="/%+")

    def fetch(self, method: str, address: str, **options: Any) -> HTTPResponse:
        """One request to an address on the server."""
        request = HTTPRequest(
            self.client.get_url(address),
            method=method,
            allow_nonstandard_methods=True,
            follow_redirects=False,
            request_timeout=60,
            **options,
        )
        fetching = super(type(self.client), self.client).fetch(request, raise_error=False)
        return self.loop.run_until_complete(asyncio.wait_for(fetching, 60))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        checked: bool = True,
        query: str = "",
    ) -> Answer:
        """One request below the API's address."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if headers is None:
            headers = {"Authorization": f"token {self.token}"}
        address = f"{self.base}{API}{path}{query}"
        found = self.fetch(method, address, body=body, headers=headers)
        answer = Answer(found.code, found.body or b"", found.headers)
        if checked:
            check(method, path, found.code, answer.content, found.headers["Content-Type"])
        return answer

    def get(self, path: str, **parameters: Any) -> Answer:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        return self.ask("GET", path, query=query)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.ask("POST", path, body)

    def submit(self, command: Any, **members: Any) -> dict[str, Any]:
        """A job that was accepted."""
        answer = self.post("/jobs", {"command": command, **members})
        assert answer.status == 201, answer.content
        return answer.json

    def job(self, job_id: int) -> dict[str, Any]:
        return self.get(f"/jobs/{job_id}").json

    def ended(self, job_id: int) -> dict[str, Any]:
        """The job, once it has ended."""
        return self.until_state(job_id, "succeeded", "failed", "cancelled")

    def until_state(self, job_id: int, *states: str) -> dict[str, Any]:
        """The job, once it is in one of these states."""
        until(lambda: self.job(job_id)["state"] in states, what=f"job {job_id} is {states}")
        return self.job(job_id)

    def spin(self, condition: Callable[[], Any]) -> None:
        """Let the server work until something is true."""

        def look() -> bool:
            self.loop.run_until_complete(asyncio.sleep(0.01))
            return bool(condition())

        until(look, what="while the server works")


@pytest.fixture
def jp_server_config(home: Home) -> dict[str, Any]:
    """Strict about handlers that forget to ask who is there."""
    return {
        "ServerApp": {
            "jpserver_extensions": {"gpuqueue_jupyter": True, "jupyter_server_terminals": False},
            "allow_unauthenticated_access": False,
            "reraise_server_extension_failures": True,
        }
    }


@pytest.fixture
def extension(
    home: Home, jp_serverapp: Any, jp_asyncio_loop: asyncio.AbstractEventLoop
) -> Iterator[GpuqueueExtension]:
    """The extension of a server that has started."""
    point = jp_serverapp.extension_manager.extension_points["gpuqueue"]
    jp_asyncio_loop.run_until_complete(point.start(jp_serverapp))
    yield point.app
    jp_asyncio_loop.run_until_complete(point.app.stop_extension())


@pytest.fixture
def rest(
    extension: GpuqueueExtension,
    jp_asyncio_loop: asyncio.AbstractEventLoop,
    http_server_client: Any,
    jp_base_url: str,
) -> Rest:
    """The way to ask it."""
    token = extension.serverapp.identity_provider.token
    return Rest(jp_asyncio_loop, http_server_client, jp_base_url, token)
