"""gpuqueue in a Jupyter server that is nothing else: no kernels, no files, no user interface.

It leads before the server's slow imports begin, so that jobs need not wait for those.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuqueue.control.lead import Lead

__all__ = ["main"]

_PROGRAM = "jupyter gpuqueue serve"


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM; running jobs go on. With ``ui_port = 0`` nothing listens."""
    parser = argparse.ArgumentParser(
        _PROGRAM,
        description="Run the controller, with its REST interface on loopback.",
        epilog="Everything else is an option of Jupyter's server, such as --certfile and "
        "--keyfile. A token is always required: `jupyter server list` shows it.",
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=int, help="the setting ui_port by default; 0: no port")
    parser.add_argument("--ip", default="127.0.0.1", help="another address needs a certificate")
    parser.add_argument("--sock", help="the path of a UNIX socket to listen on, and on no port")
    parser.add_argument(
        "--fake", metavar="GPUS", help="pretend GPUs, such as 1xH100:80G, instead of those here"
    )
    asked, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)

    from gpuqueue.control.lead import Lead
    from gpuqueue.errors import GpuqueueError
    from gpuqueue.gpus.fake import parse_fake
    from gpuqueue.paths import find_home
    from gpuqueue.settings import SettingsFile

    try:
        if asked.fake is not None:
            if asked.fake != "none":
                parse_fake(asked.fake, "--fake")
            os.environ["GPUQUEUE_FAKE_GPUS"] = asked.fake
        home = find_home()
        settings = SettingsFile(home.config)
    except GpuqueueError as error:
        sys.exit(f"{_PROGRAM}: {error}")
    port = settings.current.ui_port if asked.port is None else asked.port
    if not 0 <= port <= 65535:
        sys.exit(f"{_PROGRAM}: --port: write a number from 0 to 65535")
    if asked.sock and asked.port is not None:
        sys.exit(f"{_PROGRAM}: --sock: leave out --port; a socket is instead of one")
    if port == 0 and not asked.sock:
        from gpuqueue.control import headless

        headless.main()
        return
    # (the server corrects the address, once it knows all of it)
    lead = Lead(home, kind="serve", url="" if asked.sock else f"http://127.0.0.1:{port}/")
    lead.start()
    place = [f"--sock={asked.sock}"] if asked.sock else [f"--ip={asked.ip}", f"--port={port}"]
    try:
        _serve(lead, [*place, *rest])
    finally:
        if lead.is_alive():  # the server ended before it could end the lead
            lead.stop(leave_behind=True)


def _serve(lead: Lead, arguments: list[str]) -> None:
    from gpuqueue_jupyter.extension import GpuqueueExtension
    from gpuqueue_jupyter.server import QueueServer

    GpuqueueExtension.early_lead = lead
    server = QueueServer.instance(jpserver_extensions={"gpuqueue_jupyter": True})
    server.initialize(arguments, find_extensions=False)
    server.start()
