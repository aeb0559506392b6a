"""Loggers and their handlers: in words where that can be, or as the notebook's own objects."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "described",
    "drop_handlers",
    "handlers_of_ones_own",
    "loggers",
    "make_handler",
    "put_handlers",
]

_NOT_THE_USERS = (
    "IPKernelApp",
    "CellKernelApp",
    "AheadApp",
    "traitlets",
    "tornado",
    "asyncio",
    "ipykernel",
    "parso",
    "jupyter",
)


def loggers() -> dict[str, Any]:
    """The loggers that are not as they are made: torch alone makes hundreds that are."""
    found: dict[str, Any] = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
        and (logger.level or logger.handlers or logger.disabled or not logger.propagate)
        and not name.startswith(_NOT_THE_USERS)
    }
    return {"": logging.root, **dict(sorted(found.items()))}


def _has_name(handler: Any) -> bool:
    """Whether a variable of the notebook is that handler: then it travels as itself."""
    core = sys.modules.get("IPython.core.getipython")
    space = getattr(core.get_ipython() if core is not None else None, "user_ns", {})
    return any(value is handler for value in list(space.values()))


def described(handler: Any) -> Any:
    """A handler in words; None for one that no words can make again."""
    stream = getattr(handler, "stream", None)
    formatter = handler.formatter
    if (
        handler.filters
        or _has_name(handler)
        or (formatter is not None and type(formatter) is not logging.Formatter)
    ):
        return None
    if type(handler) is logging.StreamHandler and stream in (sys.stderr, sys.stdout):
        where = "stdout" if stream is sys.stdout else "stderr"
    elif type(handler) is logging.FileHandler:
        where = [handler.baseFilename, handler.encoding]  # type: ignore[assignment]
    else:
        return None
    style: Any = None if formatter is None else type(formatter._style)  # noqa: SLF001
    letter = next((k for k, v in logging._STYLES.items() if v[0] is style), "%")  # noqa: SLF001
    words = None if formatter is None else [formatter._fmt, formatter.datefmt, letter]  # noqa: SLF001
    return [where, handler.level, words]


def make_handler(words: Any) -> Any:
    """The handler that words say."""
    where, level, form = words
    made: logging.Handler
    if isinstance(where, str):
        made = logging.StreamHandler(sys.stdout if where == "stdout" else sys.stderr)
    else:
        made = logging.FileHandler(where[0], "a", where[1], delay=True)
    made.setLevel(level)
    if form is not None:
        made.setFormatter(logging.Formatter(*form))
    return made


HANDLER = "<handler "
"""Begins the name of a value: a logger's name and a handler that the notebook has made up."""


def handlers_of_ones_own() -> dict[str, tuple[str, Any]]:
    """Handlers that variables have, or whose class, formatter or filters are the notebook's.

    With the names of their loggers.
    """
    found = [
        (name, handler)
        for name, logger in loggers().items()
        for handler in logger.handlers
        if _has_name(handler)
        or any(
            getattr(part, "__module__", "") == "__main__"
            for part in (handler, handler.formatter, *handler.filters)
        )
    ]
    return {f"{HANDLER}{number}>": pair for number, pair in enumerate(found)}


def put_handlers(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Add handlers that have come to their loggers; returns them with the names of those."""
    pairs = [value for name, value in values.items() if name.startswith(HANDLER)]
    for name, handler in pairs:
        logger = logging.getLogger(name or None)
        if handler not in logger.handlers:
            logger.addHandler(handler)
    return pairs


def drop_handlers(pairs: Iterable[Sequence[Any]]) -> None:
    """Take handlers from their loggers."""
    for name, handler in pairs:
        if handler is not None:
            logging.getLogger(name or None).removeHandler(handler)
