"""NVIDIA's ``cuda-checkpoint`` for as much as is needed here, by the driver's own functions.

``python cudastate.py --get-state --pid 7`` and ``--action lock|checkpoint|restore|unlock --pid 7
[--timeout ms]``, as that program has them (https://github.com/NVIDIA/cuda-checkpoint). The driver
has the functions from version 570 on. It is a program of its own because a driver may hang, and
stands alone: standard library only. Ends with 1 and the reason on standard error where the driver
refuses.
"""

from __future__ import annotations

import argparse
import ctypes

_STATES = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")
"""``CUprocessState``, in the order of its numbers."""
_ARGUMENTS = 64
"""Bytes of each function's structure of arguments: all zero but for a lock's time limit."""


class _LockArguments(ctypes.Structure):
    """``CUcheckpointLockArgs``."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_ubyte * (_ARGUMENTS - 4)))


def _ask(name: str, *words: object) -> None:
    function = getattr(_driver(), name, None)
    if function is None:
        raise SystemExit(f"the driver has no {name}; it is there from version 570 on")
    if answer := function(*words):
        raise SystemExit(f"{name} answered {answer}{_meaning(answer)}")


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SystemExit(f"there is no NVIDIA driver: {error}") from None


def _meaning(answer: int) -> str:
    text = ctypes.c_char_p()
    explain = getattr(_driver(), "cuGetErrorString", None)
    if explain is None or explain(answer, ctypes.byref(text)) or not text.value:
        return ""
    return f" ({text.value.decode(errors='replace')})"


def main(words: list[str] | None = None) -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--timeout", type=int, default=0, help="milliseconds, for lock")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--get-state", action="store_true")
    what.add_argument("--action", choices=("lock", "checkpoint", "restore", "unlock"))
    asked = parser.parse_args(words)
    _ask("cuInit", 0)
    if asked.get_state:
        state = ctypes.c_int()
        _ask("cuCheckpointProcessGetState", asked.pid, ctypes.byref(state))
        print(_STATES[state.value] if 0 <= state.value < len(_STATES) else state.value)
        return
    arguments = _LockArguments(timeout_ms=asked.timeout if asked.action == "lock" else 0)
    name = f"cuCheckpointProcess{asked.action.capitalize()}"
    _ask(name, asked.pid, ctypes.byref(arguments))


if __name__ == "__main__":
    main()
