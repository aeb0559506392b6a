"""How errors show under a cell: what went wrong and what to do, without our own frames."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuqueue.errors import GpuqueueError

__all__ = ["cell_error", "refused", "silent"]


@contextlib.contextmanager
def refused(shell: Any) -> Iterator[None]:
    """Errors of ours are shown as one sentence; a cell's syntax error as Python shows it."""
    try:
        yield
    except GpuqueueError as error:
        wrong = error.__cause__
        if isinstance(wrong, SyntaxError):
            lines = shell.SyntaxTB.structured_traceback(type(wrong), wrong, [])
            name, words = type(wrong).__name__, str(wrong)
            raise cell_error({"ename": name, "evalue": words, "traceback": lines}) from None
        raise _with_lines(error, [f"{type(error).__name__}: {error}"]) from None


def _with_lines(error: BaseException, lines: Sequence[str]) -> BaseException:
    """Have IPython show these lines as the error's traceback."""
    kept = list(lines)
    error._render_traceback_ = lambda: kept  # type: ignore[attr-defined]
    return error


def silent(shell: Any, error: BaseException) -> BaseException:
    """Have IPython show nothing of an error; of any other it shows what it would."""
    show = shell.showtraceback

    def showtraceback(*args: Any, **words: Any) -> None:
        if sys.exc_info()[1] is not error:
            show(*args, **words)

    shell.showtraceback = showtraceback
    return error


def cell_error(output: Mapping[str, Any], original: Any = None) -> BaseException:
    """The exception to raise for a cell's ``error`` output.

    The job's own exception where it could travel, else one of the same name; either way it is
    shown with the traceback that the job had.
    """
    name, words, lines = output["ename"], output["evalue"], output["traceback"]
    # IPython insists on showing a SyntaxError in its own way, with the frames that raised it
    own_way = isinstance(original, SyntaxError)
    if isinstance(original, BaseException) and type(original).__name__ == name and not own_way:
        with contextlib.suppress(Exception):
            if str(original) == words:
                return _with_lines(original, lines)
    base = getattr(builtins, name, None)
    if not (isinstance(base, type) and issubclass(base, BaseException)):
        base = Exception
    if issubclass(base, SyntaxError):
        base = Exception
    for parent in (base, Exception):
        made = type(name, (parent,), {"__module__": "__main__", "__str__": lambda _: words})
        with contextlib.suppress(Exception):
            return _with_lines(made(words), lines)
    return _with_lines(Exception(words), lines)
