"""A Jupyter server with nothing but gpuqueue in it."""

from __future__ import annotations

import ipaddress
import sys
from typing import Any

from jupyter_server.serverapp import ServerApp
from traitlets import default

__all__ = ["QueueServer"]


class QueueServer(ServerApp):
    """Jupyter's server without kernels, contents, terminals and other extensions.

    It reads ``jupyter_gpuqueue_config``, not the configuration of the user's other servers.
    """

    name = "jupyter-gpuqueue"
    description = "The GPU queue's controller with its REST interface."
    default_services = ("api", "security", "shutdown", "events")  # type: ignore[assignment]

    @default("allow_root")
    def _allow_root(self) -> bool:
        return True  # as a controller in the background does; nobody else may reach it

    @default("allow_unauthenticated_access")
    def _allow_unauthenticated_access(self) -> bool:
        return False

    @default("answer_yes")
    def _answer_yes(self) -> bool:
        return True

    @default("open_browser")
    def _open_browser(self) -> bool:
        return False

    @default("no_browser_open_file")
    def _no_browser_open_file(self) -> bool:
        return True  # such a file holds the token

    @default("default_url")
    def _default_url(self) -> str:
        return "/gpuqueue/"

    def init_configurables(self) -> None:
        """Refuse to be reached without protection, before anything listens."""
        if not (self.sock or _is_loopback(self.ip) or self.certfile):
            sys.exit(
                f"jupyter gpuqueue serve: --ip={self.ip} can be reached from other machines, and "
                "without TLS they could read the token. Add --certfile (and --keyfile), or leave "
                "--ip out and reach it through `ssh -L`."
            )
        super().init_configurables()
        if not self.identity_provider.auth_enabled:
            sys.exit(
                "jupyter gpuqueue serve: a token is required; leave out what sets it to nothing."
            )

        if not sys.stderr.isatty():
            # what is not a terminal is a log, and a generated token would be written into it
            self.identity_provider.token_generated = False

    def running_server_info(self, kernel_count: bool = True) -> str:  # noqa: ARG002
        """Where to go."""
        return (
            f"The GPU queue is served at\n{self.display_url}\n"
            "`jupyter server list` shows this address with its token"
        )

    def _signal_stop(self, sig: Any, frame: Any) -> None:  # noqa: ARG002
        self.log.info("gpuqueue: stopping; jobs that run go on")
        self.stop(from_signal=True)


def _is_loopback(ip: str) -> bool:
    if ip == "localhost":
        return True
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False
