"""Tells, for a kernel that holds a share, whether a cell runs in it. Quick to import.

Free mode freezes a kernel that is busy, and leaves an idle one in peace.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

__all__ = ["begin", "end", "rest"]

_SHARE = "GPUQUEUE_SHARE"
_note = ""
_file: Any = None
_tidier: Any = None
"""For which share the file is open, the file, and who listens for it."""


def begin(shell: Any) -> None:
    """Tell from now on; a kernel that waits for its share is made to notice when it needs one."""
    shell.events.register("pre_run_cell", _cell_begins)
    shell.events.register("post_run_cell", _cell_ends)
    if _SHARE not in os.environ:
        return
    from gpuqueue.magics.late import arm, is_late

    if is_late():
        arm()
    else:
        _tell(busy=_in_cell(shell))


def end(shell: Any) -> None:
    """Tell no longer."""
    for event, callback in (("pre_run_cell", _cell_begins), ("post_run_cell", _cell_ends)):
        with contextlib.suppress(ValueError):
            shell.events.unregister(event, callback)


def rest() -> None:
    """Tell that what is left of this cell uses no GPU: it is the one that gives them away."""
    if _SHARE in os.environ:
        _tell(busy=False)


def _in_cell(shell: Any) -> bool:
    """Whether a cell runs: the one that loads the extension, perhaps, and then works on."""
    return bool(getattr(getattr(shell, "display_trap", None), "is_active", False))


def _cell_begins(*_: Any) -> None:
    if _SHARE in os.environ:
        _tell(busy=True)
        if _file is not None and _file.is_over():
            _notice()


def _notice() -> None:
    """Somebody has given the share back: say so, once, and let this process see no GPU."""
    from gpuqueue.client.ownshare import forget_share

    if words := forget_share():
        print(f"gpuqueue: {words}", file=sys.stderr)


def _cell_ends(*_: Any) -> None:
    if _SHARE in os.environ:
        if _is_late():
            from gpuqueue.magics.late import catch_up

            catch_up()
        _tell(busy=False)


def _listen(folder: str) -> Any:
    from gpuqueue.magics.tidying import Tidier

    return Tidier(folder)


def _is_late() -> bool:
    return '"late":true' in os.environ[_SHARE]


def _tell(*, busy: bool) -> None:
    global _note, _file, _tidier  # noqa: PLW0603 - a process has one share
    note = os.environ[_SHARE]
    if note != _note:
        from gpuqueue.run.kernelshare import Busy, own_share

        if _file is not None:
            _file.close()
        _note, _file = note, None
        folder = own_share().get("folder")
        # what is noted of the same share may change, and two would take each other's rings
        if _tidier is not None and _tidier.folder != folder:
            _tidier.close()
            _tidier = None
        if folder:
            with contextlib.suppress(OSError):  # it has ended, and been cleared away
                _file = Busy(folder)
                _tidier = _tidier or _listen(folder)
    if _file is not None:
        _file.tell(busy=busy)
