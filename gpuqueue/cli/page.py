"""The address of the panel on a Jupyter server of this user's."""

from __future__ import annotations

import html
import json
import os
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from gpuqueue.client import LocalClient

__all__ = ["open_page", "page_address"]

_PATIENCE = 5.0
_LOADING = 5.0


def page_address(client: LocalClient) -> str | None:
    """The page's address with its token, on a server that has this client's queue; else None.

    The server that leads is asked first. A token is only ever sent to the server whose own file
    names it.
    """
    home = str(client.home.root)
    lead = client.lead() or {}
    servers = sorted(_servers(), key=lambda server: server.get("pid") != lead.get("pid"))
    for server in servers:
        if _home_of(server) == home:
            token = server.get("token")
            query = f"?{urlencode({'token': token})}" if token else ""
            return f"{server['url']}gpuqueue/{query}"
    return None


def open_page(address: str) -> bool:
    """Open an address in the browser; whether one could be found.

    By a file that only this user may read and that is gone soon: an address in the browser's
    arguments, and with it the token, could be read by everybody on the machine.
    """
    import webbrowser

    handle, name = tempfile.mkstemp(prefix="gpuqueue-", suffix=".html")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            to = html.escape(address, quote=True)
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={to}">')
        if not webbrowser.open(f"file://{name}"):
            return False
        time.sleep(_LOADING)
        return True
    finally:
        os.unlink(name)


def _servers() -> Iterable[Mapping[str, Any]]:
    from jupyter_server.serverapp import list_running_servers

    return [server for server in list_running_servers() if not server.get("sock")]


def _home_of(server: Mapping[str, Any]) -> str | None:
    """The state directory that a server tells of; None where it has no gpuqueue."""
    url = f"{server['url']}gpuqueue/api/v1/status?limit=0&recent=0"
    if not url.startswith(("http://", "https://")):
        return None
    headers = {"Authorization": f"token {server.get('token', '')}"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked above
    context = None
    if url.startswith("https:"):
        # its own file says that it is this user's, on this machine; the certificate may be private
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE, context=context) as answer:  # noqa: S310
            return str(json.load(answer)["home"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
