"""A controller in the background, with nothing listening: what a submit starts if none runs."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType

from gpuqueue.control.lead import Lead
from gpuqueue.paths import find_home

__all__ = ["STAND_IN", "main"]

STAND_IN = "--stand-in"
"""Started because a controller was killed, not because somebody asked."""
_PRECEDENCE = 2.5


def main() -> None:
    """Lead until told to stop, or until there has been no job for ``idle_exit`` seconds."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asked = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if STAND_IN in sys.argv[1:]:
        asked.wait(_PRECEDENCE)
    lead = Lead(find_home(), kind="headless", idle_exit=True)
    lead.start()
    while lead.is_alive() and not asked.wait(1.0):
        pass
    lead.stop()


if __name__ == "__main__":
    main()
