"""The payload of a ``function`` job: call it, keep what it returns or raises."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from gpuqueue.run.code import load_call
from gpuqueue.run.devicememory import is_out_of_memory, peak_of_torch
from gpuqueue.run.files import OUTCOME, RESULT, write_json

__all__ = ["run"]


def run(job_dir: str, attempt: str, _spec: Mapping[str, Any]) -> NoReturn:
    """Call the pickled function; exit 0 if it returned and its result could be kept."""
    sys.modules["__main__"].__dict__.pop("main", None)
    try:
        with open(os.path.join(job_dir, "payload"), "rb") as file:
            function, args, kwargs = load_call(file)
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is told
        _fail(attempt, error)
    try:
        _keep(attempt, ("value", value))
    except OSError as error:
        _fail(attempt, error, f"its result, a {type(value).__name__}, was not kept in {attempt}: ")
    except BaseException as error:  # noqa: BLE001 - pickling runs the user's code too
        _fail(attempt, error, f"its result, a {type(value).__name__}, cannot be pickled: ")
    if told := _memory_told():
        with contextlib.suppress(OSError):  # nothing hangs on it
            write_json(os.path.join(attempt, OUTCOME), told, flush=False)
    _leave(0)


def _memory_told(error: BaseException | None = None) -> dict[str, Any]:
    peak = peak_of_torch()
    told: dict[str, Any] = {} if peak is None else {"peak": peak}
    if is_out_of_memory(error):
        told["out_of_memory"] = True
    return told


def _keep(attempt: str, value: tuple[str, Any]) -> None:
    import cloudpickle

    partial = os.path.join(attempt, RESULT + ".part")
    try:
        with open(partial, "wb") as file:
            cloudpickle.dump(value, file, protocol=5)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        # on a full disk there is room now to say so
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    os.rename(partial, os.path.join(attempt, RESULT))


def _fail(attempt: str, error: BaseException, prefix: str = "") -> NoReturn:
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            code = 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        told = {"reason": f"it called exit({code})"} | _memory_told(error)
        write_json(os.path.join(attempt, OUTCOME), told)
        if code == 0:
            _keep(attempt, ("value", None))
        _leave(code)
    # the first frame is this module's own call
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    sys.stderr.write(text)
    words = f"{prefix}{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):  # the log has it, and the exit code is what counts
        write_json(os.path.join(attempt, OUTCOME), {"reason": words[:2000]} | _memory_told(error))
    try:
        _keep(attempt, ("error", (error.with_traceback(None), text)))
        with open(os.path.join(attempt, RESULT), "rb") as file:
            pickle.load(file)  # some exceptions can be written but not read again
    except BaseException:  # noqa: BLE001 - the text is what remains
        with contextlib.suppress(OSError):
            _keep(attempt, ("error", (None, text)))
    _leave(130 if isinstance(error, KeyboardInterrupt) else 1)


def _leave(code: int) -> NoReturn:
    """Exit as the interpreter would: exit handlers run, output is flushed."""
    sys.exit(code)
