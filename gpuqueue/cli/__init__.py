"""``gpuqueue`` and ``jupyter gpuqueue``: one program under two names.

It is thin: each command turns words into a request or a wish for the client and shows what the
store says. Modules here import what they need when a command runs, so that each starts quickly.
"""

from __future__ import annotations

import contextlib
import io
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the console scripts call this."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a file name that is not text, or a terminal that is not UTF-8, must not be an error
            with contextlib.suppress(ValueError):
                stream.reconfigure(errors="backslashreplace")
    try:
        from gpuqueue.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
