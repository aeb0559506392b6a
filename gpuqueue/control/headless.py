"""A controller in the background, with nothing listening: what a submit starts if none runs."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from gpuqueue.control.lead import Lead
from gpuqueue.paths import find_home

__all__ = ["main"]


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
    lead = Lead(find_home(), kind="headless", idle_exit=True)
    lead.start()
    while lead.is_alive() and not asked.wait(1.0):
        pass
    lead.stop()


if __name__ == "__main__":
    main()
