"""``ui``: the panel's page, found and opened."""

import os
import stat
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuqueue.cli import page
from gpuqueue.cli.app import app
from gpuqueue.client import LocalClient

ADDRESS = "http://localhost:1/a%40b/gpuqueue/?token=s%26ecret"


def test_the_token_is_in_a_file_of_ones_own_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def opened(url: str) -> bool:
        path = Path(url.removeprefix("file://"))
        seen.extend([url, stat.S_IMODE(os.stat(path).st_mode), path.read_text(), path])
        return True

    monkeypatch.setattr(webbrowser, "open", opened)
    monkeypatch.setattr(page, "_LOADING", 0)
    assert page.open_page(ADDRESS)
    url, mode, text, path = seen
    assert "token" not in url
    assert mode == 0o600
    assert f"url={ADDRESS}" in text
    assert not path.exists()


def test_without_a_server_print_says_how_to_get_one(
    client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    result = CliRunner().invoke(app, ["ui", "--print"])
    assert result.exit_code == 1
    assert "serve" in result.output


def test_a_server_that_has_another_queue_is_passed_over(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [
        {"url": "http://127.0.0.1:9/", "token": "x", "pid": 1},
        {"url": "ftp://x/", "pid": 2},
    ]
    monkeypatch.setattr(page, "_servers", lambda: servers)
    assert page.page_address(client) is None
    monkeypatch.setattr(page, "_home_of", lambda server: str(client.home.root))
    assert page.page_address(client) == "http://127.0.0.1:9/gpuqueue/?token=x"
