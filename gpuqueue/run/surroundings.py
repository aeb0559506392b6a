"""What a cell sees besides its variables: the table, and the part that Python and IPython have."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from typing import Any

from gpuqueue.run.libraries import LIBRARIES, Surrounding
from gpuqueue.run.loghandlers import described, loggers, make_handler

__all__ = [
    "SURROUNDINGS",
    "Surrounding",
    "put_warnings",
    "take_warnings",
]


def _module(name: str) -> Any:
    return sys.modules[name]


def _shell() -> Any:
    core = sys.modules.get("IPython.core.getipython")
    return core.get_ipython() if core is not None else None


# -- Python itself ----------------------------------------------------------------------------


def _take_path() -> list[str]:
    return list(sys.path)


def _put_path(state: list[str]) -> None:
    sys.path[:] = state


def _take_limits() -> list[int]:
    digits = sys.get_int_max_str_digits() if hasattr(sys, "get_int_max_str_digits") else 0
    return [sys.getrecursionlimit(), digits]


def _put_limits(state: list[int]) -> None:
    sys.setrecursionlimit(state[0])
    if state[1] and hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(state[1])


def _take_random() -> Any:
    return _module("random").getstate()


def _put_random(state: Any) -> None:
    _module("random").setstate(state)


def _take_locale() -> str:
    import locale

    return locale.setlocale(locale.LC_ALL)


def _put_locale(state: str) -> None:
    import locale

    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, state)


def _take_decimal() -> Any:
    return _module("decimal").getcontext().copy()


def _put_decimal(state: Any) -> None:
    _module("decimal").setcontext(state)


_unknown_filters: list[tuple[Any, Any]] = []
"""Warning filters for categories of libraries that this process has not imported, last first, each
with the one that follows it."""


def take_warnings() -> list[Any]:
    """The warning filters, in words."""

    def words(pattern: Any) -> Any:
        return pattern if pattern is None or isinstance(pattern, str) else (
            pattern.pattern, pattern.flags,
        )  # fmt: skip

    found = [
        [action, words(message), [kind.__module__, kind.__qualname__], words(module), line]
        for action, message, kind, module, line in _filters()
    ]
    for entry, follower in _unknown_filters:
        found.insert(found.index(follower) if follower in found else len(found), entry)
    return found


def _filters() -> list[Any]:
    import warnings

    return list(warnings.filters)


def put_warnings(state: list[Any]) -> None:
    """Make the warning filters these, of categories that are known here."""
    import warnings

    if take_warnings() == state:
        return

    def pattern(words: Any) -> Any:
        return words if words is None or isinstance(words, str) else re.compile(*words)

    _unknown_filters.clear()
    made: list[Any] = []
    follower = None
    for entry in reversed(state):
        action, message, (home, name), module, line = entry
        kind = getattr(sys.modules.get(home), name, None)
        if isinstance(kind, type):
            made.insert(0, (action, pattern(message), kind, pattern(module), line))
        else:
            _unknown_filters.append((entry, follower))
        follower = entry
    if list(warnings.filters) != made:
        warnings.filters[:] = made  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001


def _take_logging() -> Any:
    import logging

    state = {}
    for name, logger in loggers().items():
        handlers = [words for words in map(described, logger.handlers) if words is not None]
        if logger.level or handlers or logger.disabled or not logger.propagate:
            state[name] = [logger.level, handlers, logger.disabled, logger.propagate]
    names = {level: name for level, name in logging._levelToName.items() if level % 10}  # noqa: SLF001
    catches = logging._warnings_showwarning is not None  # type: ignore[attr-defined]  # noqa: SLF001
    return [logging.root.manager.disable, state, names, catches]


def _put_logging(state: Any) -> None:
    import logging

    # each setting of a level goes through all loggers, of which torch alone has hundreds
    if logging.root.manager.disable != state[0]:
        logging.disable(state[0])
    for level, name in state[2].items():
        logging.addLevelName(level, name)
    logging.captureWarnings(state[3])
    usual: list[Any] = [0, [], False, True]
    now = _take_logging()[1]
    for name in sorted({*state[1], *now}):
        wanted = state[1].get(name, usual)
        if now.get(name, usual) != wanted:
            _put_logger(logging.getLogger(name or None), *wanted)


def _put_logger(
    logger: Any, level: int, handlers: list[Any], disabled: bool, propagate: bool
) -> None:
    if logger.level != level:
        logger.setLevel(level)
    logger.disabled, logger.propagate = disabled, propagate
    here = [(handler, described(handler)) for handler in logger.handlers]
    if [words for _, words in here if words is not None] != handlers:
        for handler, words in here:
            if words is not None:
                logger.removeHandler(handler)
        for words in handlers:
            logger.addHandler(make_handler(words))


# -- IPython ----------------------------------------------------------------------------------

_OF_SHELL = ("ast_node_interactivity", "autocall", "automagic", "colors", "sphinxify_docstring")


def _take_shell() -> Any:
    shell = _shell()
    if shell is None:
        return None
    text = shell.display_formatter.formatters["text/plain"]
    return {
        "shell": {name: getattr(shell, name) for name in _OF_SHELL if hasattr(shell, name)},
        "xmode": getattr(getattr(shell, "InteractiveTB", None), "mode", None),
        "text": {n: getattr(text, n) for n in ("pprint", "max_seq_length", "float_format")},
        "digits": str(text.float_precision),
        "folders": list(shell.user_ns.get("_dh", [])),
        "aliases": sorted(
            set(shell.alias_manager.aliases) - set(shell.alias_manager.default_aliases)
        ),
    }


def _put_shell(state: Any) -> None:
    shell = _shell()
    if shell is None or state is None:
        return
    for name, value in state["shell"].items():
        if getattr(shell, name, value) != value:
            setattr(shell, name, value)
    if state["xmode"] and shell.InteractiveTB.mode != state["xmode"]:
        shell.InteractiveTB.set_mode(mode=state["xmode"])
    text = shell.display_formatter.formatters["text/plain"]
    if str(text.float_precision) != state["digits"]:
        text.float_precision = state["digits"]
    for name, value in state["text"].items():
        if getattr(text, name) != value:
            setattr(text, name, value)
    shell.user_ns["_dh"][:] = state["folders"]
    for name, command in set(state["aliases"]) - set(shell.alias_manager.aliases):
        shell.alias_manager.define_alias(name, command)


def _take_extensions() -> Any:
    shell = _shell()
    if shell is None:
        return None
    modes = {}
    reloader = getattr(shell.magics_manager.registry.get("AutoreloadMagics"), "_reloader", None)
    if reloader is not None:
        complete = getattr(reloader, "autoload_obj", False)
        modes["autoreload"] = (
            "0" if not reloader.enabled else "3" if complete else "2" if reloader.check_all else "1"
        )
    loaded = shell.extension_manager.loaded
    return [sorted(name for name in loaded if name not in ("gpuqueue", "storemagic")), modes]


def _put_extensions(state: Any) -> None:
    shell = _shell()
    if shell is None or state is None:
        return
    for name in state[0]:
        if name not in shell.extension_manager.loaded:
            with contextlib.suppress(Exception):  # it says so itself where it is asked for
                shell.extension_manager.load_extension(name)
    mode = state[1].get("autoreload")
    if mode is not None and (_take_extensions()[1]).get("autoreload") not in (None, mode):
        with contextlib.suppress(Exception):
            shell.run_line_magic("autoreload", mode)


def _inline() -> Any:
    return _module("matplotlib_inline.config").InlineBackend.instance(parent=_shell())


def _take_inline() -> Any:
    backend = _inline()
    return [
        sorted(backend.figure_formats), dict(backend.print_figure_kwargs), backend.close_figures,
        dict(backend.rc), backend.figure_format, backend in getattr(_shell(), "configurables", ()),
    ]  # fmt: skip


def _put_inline(state: Any) -> None:
    importlib.import_module("matplotlib_inline.config")
    if _shell() is None or _take_inline() == state:
        return
    backend = _inline()
    if state[5:] == [True] and backend not in _shell().configurables:
        backend.shell = _shell()
        _shell().configurables.append(backend)  # where %config looks
    backend.print_figure_kwargs, backend.close_figures, backend.rc = state[1], state[2], state[3]
    if state[4:] and state[4] != backend.figure_format:
        backend.figure_format = state[4]  # which sets the formats, too
    backend.figure_formats = set(state[0])


SURROUNDINGS: tuple[Surrounding, ...] = (
    Surrounding("import path", "", _take_path, _put_path),
    Surrounding("limits of the interpreter", "", _take_limits, _put_limits),
    Surrounding("locale", "", _take_locale, _put_locale),
    Surrounding("IPython's extensions", "IPython", _take_extensions, _put_extensions),
    Surrounding("IPython's settings", "IPython", _take_shell, _put_shell),
    Surrounding("decimal context", "decimal", _take_decimal, _put_decimal),
    Surrounding("logging", "logging", _take_logging, _put_logging),
    *LIBRARIES,
    Surrounding("inline figures", "matplotlib_inline.config", _take_inline, _put_inline),
    Surrounding("random state", "random", _take_random, _put_random),
    Surrounding("warning filters", "", take_warnings, put_warnings),
)
