"""The page at ``<base>/gpuqueue/``: the panel by itself, with its files beside it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from jupyter_server.base.handlers import AuthenticatedFileHandler, JupyterHandler
from tornado import web

from gpuqueue_jupyter.handlers import RESOURCE, authorized

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FILES", "PAGE", "PageHandler", "StaticHandler"]

PAGE = "gpuqueue/?"
FILES = "gpuqueue/static/(.*)"

_HTML = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>GPU queue</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{base}gpuqueue/static/panel.css">
<style>
html, body {{ height: 100%; margin: 0; background: #fff; }}
@media (prefers-color-scheme: dark) {{ html, body {{ background: #16191d; }} }}
#panel {{ max-width: 1320px; margin: 0 auto; }}
</style>
<body class="gq-own">
<main id="panel" class="gq-view" data-base="{base}" data-xsrf="{xsrf}" data-lab="{lab}">
<h1 style="position:absolute;clip-path:inset(50%)">GPU queue</h1>
<p>Looking at the queue… If this stays, the page's scripts could not be loaded: reload it, or see
<a href="{base}gpuqueue/api/v1/status">the state as data</a>.</p>
<noscript><p>This page needs JavaScript. <code>jupyter gpuqueue status</code> shows the same in a
terminal.</p></noscript>
</main>
<script type="module" src="{base}gpuqueue/static/page.mjs"></script>
</body>
</html>
"""


class PageHandler(JupyterHandler):
    """The page itself; whoever is not logged in is sent to the server's login."""

    auth_resource = RESOURCE

    @web.authenticated
    @authorized("read", resource=RESOURCE)
    def get(self) -> None:
        """Send it."""
        server: Any = self.serverapp
        lab = server.extension_manager.extensions.get("jupyterlab")
        base = html.escape(self.base_url, quote=True)
        token = self.xsrf_token  # asking for it sets the cookie that goes with it
        xsrf = html.escape(token.decode() if isinstance(token, bytes) else token, quote=True)
        self.set_header("Cache-Control", "no-cache")
        self.finish(_HTML.format(base=base, xsrf=xsrf, lab="lab" if lab and lab.enabled else ""))


class StaticHandler(AuthenticatedFileHandler):
    """The panel's modules and its style."""

    _track_activity = False

    def initialize(self, path: Path) -> None:  # type: ignore[override]
        """Take what the route gives."""
        super().initialize(str(path))

    def set_extra_headers(self, path: str) -> None:  # noqa: ARG002
        """Let the browser ask each time whether they are the same: they change with an update."""
        self.set_header("Cache-Control", "no-cache")

    def get_content_type(self) -> str:
        """Modules must be named as such, whatever this system's table of types says."""
        if self.absolute_path is not None and self.absolute_path.endswith(".mjs"):
            return "text/javascript"
        return str(super().get_content_type())
