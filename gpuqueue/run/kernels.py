"""What starting a kernel takes, for cells and for notebooks. Standard library only."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from typing import Any

__all__ = ["remove_when_told_to_end", "short_folder"]


def short_folder() -> str | None:
    """A folder for sockets, whose paths may have about 100 bytes; None is the system's own."""
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108
        if folder and len(os.fsencode(folder)) < 60 and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def remove_when_told_to_end(folder: str) -> None:
    """Have SIGTERM, which a cancelled job gets, remove a folder before it ends this process."""

    def end(number: int, _: Any) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
