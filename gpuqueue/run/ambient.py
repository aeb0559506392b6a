"""What a cell sees besides its variables: library settings, random states and the like.

One table, ``SURROUNDINGS``: for each library how its state is taken in one process and put into
another. The notebook takes what it has, the job puts it in place, and after the cell the job takes
it again; what is then different goes back. A library that has not been imported is never imported
for this: its state waits until somebody imports it.

To add a library, write two functions and add a line to the table. A state must be picklable, and
equal states must pickle alike.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["SURROUNDINGS", "Surrounding", "put", "take"]


@dataclass(frozen=True, slots=True)
class Surrounding:
    """One kind of state.

    Attributes
    ----------
    name
        What it is called in messages.
    module
        It is there when this module has been imported; empty means always.
    take, put
        Read it here; make it so here.
    """

    name: str
    module: str
    take: Callable[[], Any]
    put: Callable[[Any], None]


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


def _take_warnings() -> list[Any]:
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


def _put_warnings(state: list[Any]) -> None:
    import warnings

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


_NOT_THE_USERS = ("IPKernelApp", "traitlets", "tornado", "asyncio", "ipykernel", "parso", "jupyter")


def _loggers() -> dict[str, Any]:
    import logging

    found: dict[str, Any] = {
        name: logger
        for name, logger in sorted(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and not name.startswith(_NOT_THE_USERS)
    }
    return {"": logging.root, **found}


def _described(handler: Any) -> Any:
    """A handler in words; None for one that no words can make again."""
    import logging

    stream = getattr(handler, "stream", None)
    formatter = handler.formatter
    if handler.filters or (formatter is not None and type(formatter) is not logging.Formatter):
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


def _handler(words: Any) -> Any:
    import logging

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


def _take_logging() -> Any:
    import logging

    state = {}
    for name, logger in _loggers().items():
        handlers = [words for words in map(_described, logger.handlers) if words is not None]
        if logger.level or handlers or logger.disabled or not logger.propagate:
            state[name] = [logger.level, handlers, logger.disabled, logger.propagate]
    return [logging.root.manager.disable, state]


def _put_logging(state: Any) -> None:
    import logging

    logging.disable(state[0])
    for name in {*state[1], *_loggers()}:
        level, handlers, disabled, propagate = state[1].get(name, [0, [], False, True])
        logger = logging.getLogger(name or None)
        logger.setLevel(level)
        logger.disabled, logger.propagate = disabled, propagate
        here = [(handler, _described(handler)) for handler in logger.handlers]
        if [words for _, words in here if words is not None] != handlers:
            for handler, words in here:
                if words is not None:
                    logger.removeHandler(handler)
            for words in handlers:
                logger.addHandler(_handler(words))


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
        dict(backend.rc),
    ]  # fmt: skip


def _put_inline(state: Any) -> None:
    import importlib

    importlib.import_module("matplotlib_inline.config")
    if _shell() is None or _take_inline() == state:
        return
    backend = _inline()
    backend.print_figure_kwargs, backend.close_figures, backend.rc = state[1], state[2], state[3]
    backend.figure_formats = set(state[0])


# -- libraries --------------------------------------------------------------------------------


def _take_numpy() -> Any:
    numpy = _module("numpy")
    return [numpy.get_printoptions(), numpy.geterr()]


def _put_numpy(state: Any) -> None:
    numpy = _module("numpy")
    numpy.set_printoptions(**state[0])
    numpy.seterr(**state[1])


def _take_numpy_random() -> Any:
    return _module("numpy.random").get_state(legacy=False)


def _put_numpy_random(state: Any) -> None:
    _module("numpy.random").set_state(state)


def _take_pandas() -> Any:
    config = _module("pandas")._config.config  # noqa: SLF001
    found = {}
    for key, option in config._registered_options.items():  # noqa: SLF001
        if key not in config._deprecated_options:  # noqa: SLF001
            value = config.get_option(key)
            if value is not option.defval and value != option.defval:
                found[key] = value
    return found


def _put_pandas(state: Any) -> None:
    config = _module("pandas")._config.config  # noqa: SLF001
    now = _take_pandas()
    for key in now.keys() - state.keys():
        config.set_option(key, config._registered_options[key].defval)  # noqa: SLF001
    for key, value in state.items():
        if key in config._registered_options and now.get(key, now) != value:  # noqa: SLF001
            config.set_option(key, value)


_BACKEND = ("backend", "backend_fallback")


def _take_matplotlib() -> Any:
    matplotlib = _module("matplotlib")
    default = matplotlib.rcParamsDefault
    different = {
        key: value
        for key, value in dict.items(matplotlib.rcParams)
        if key not in _BACKEND and value != dict.get(default, key)
    }
    backend = dict.get(matplotlib.rcParams, "backend")
    return [different, backend if isinstance(backend, str) else None]


def _put_matplotlib(state: Any) -> None:
    matplotlib = _module("matplotlib")
    different, backend = state
    params = matplotlib.rcParams
    for key, value in dict.items(matplotlib.rcParamsDefault):
        if key not in _BACKEND and key not in different and dict.get(params, key) != value:
            dict.__setitem__(params, key, value)
    dict.update(params, different)
    now = dict.get(params, "backend")
    pyplot = sys.modules.get("matplotlib.pyplot")
    if backend is None or (isinstance(now, str) and now.lower() == backend.lower()):
        return
    if pyplot is not None and getattr(pyplot, "_backend_mod", None) is not None:
        with contextlib.suppress(Exception):
            pyplot.switch_backend(backend)
    else:
        dict.__setitem__(params, "backend", backend)


def _take_torch() -> Any:
    torch = _module("torch")
    options = vars(torch._tensor_str.PRINT_OPTS)  # noqa: SLF001
    fields = getattr(torch._tensor_str.PRINT_OPTS, "__dataclass_fields__", options)  # noqa: SLF001
    cudnn = torch.backends.cudnn
    return {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "device": str(torch.get_default_device())
        if hasattr(torch, "get_default_device")
        else "cpu",
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ],
        "matmul": torch.get_float32_matmul_precision(),
        "anomaly": torch.is_anomaly_enabled(),
        "cudnn": [cudnn.enabled, cudnn.benchmark, cudnn.deterministic],
        "print": {n: getattr(torch._tensor_str.PRINT_OPTS, n) for n in fields},  # noqa: SLF001
        "hooks": torch.utils.hooks.RemovableHandle.next_id,
    }


def _set(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(target, name, value)


def _put_torch(state: Any) -> None:
    torch = _module("torch")
    now = _take_torch()
    cudnn = torch.backends.cudnn
    handles = torch.utils.hooks.RemovableHandle
    puts: dict[str, Callable[[Any], Any]] = {
        "dtype": lambda value: torch.set_default_dtype(getattr(torch, value)),
        "device": torch.set_default_device,
        "grad": torch.set_grad_enabled,
        "threads": torch.set_num_threads,
        "deterministic": lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1]),
        "matmul": torch.set_float32_matmul_precision,
        "anomaly": torch.autograd.set_detect_anomaly,
        "cudnn": lambda value: _set(
            cudnn, dict(zip(("enabled", "benchmark", "deterministic"), value, strict=True))
        ),
        "print": lambda value: _set(torch._tensor_str.PRINT_OPTS, value),  # noqa: SLF001
        # a hook is known by a number, which must not be given out twice
        "hooks": lambda value: _set(handles, {"next_id": max(value, handles.next_id)}),
    }
    for name, value in state.items():
        if now[name] != value:
            with contextlib.suppress(Exception):  # one that this build or device does not have
                puts[name](value)


_cuda_random: dict[str, Any] = {}
"""The random states of the GPUs after the last job, for a process that uses none itself."""


def _cuda_seed(torch: Any) -> Any:
    """What the last ``manual_seed`` has left for the moment when CUDA is first used."""
    return getattr(getattr(torch.cuda, "_lazy_seed_tracker", None), "manual_seed_all_cb", None)


def _take_torch_random() -> Any:
    torch = _module("torch")
    state = {"cpu": torch.get_rng_state().numpy().tobytes(), "cuda": None}
    if torch.cuda.is_initialized():
        state["cuda"] = [one.numpy().tobytes() for one in torch.cuda.get_rng_state_all()]
    elif _cuda_random and _cuda_random["seed"] is _cuda_seed(torch):
        state["cuda"] = _cuda_random["states"]
    return state


def _put_torch_random(state: Any) -> None:
    torch = _module("torch")

    def tensor(data: bytes) -> Any:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    _cuda_random.clear()
    torch.set_rng_state(tensor(state["cpu"]))
    if not torch.cuda.is_initialized():
        # both wait until CUDA is first used
        if state["cuda"] is None or "GPUQUEUE_JOB_ID" in os.environ:
            torch.cuda.manual_seed_all(torch.initial_seed())
        if state["cuda"] is not None:
            _cuda_random.update(seed=_cuda_seed(torch), states=state["cuda"])
            if "GPUQUEUE_JOB_ID" not in os.environ:
                return
    for index, one in enumerate(state["cuda"] or ()):
        with contextlib.suppress(Exception):  # this process may see fewer
            torch.cuda.set_rng_state(tensor(one), index)


def _take_sklearn() -> Any:
    return _module("sklearn").get_config()


def _put_sklearn(state: Any) -> None:
    _module("sklearn").set_config(**state)


SURROUNDINGS: tuple[Surrounding, ...] = (
    Surrounding("import path", "", _take_path, _put_path),
    Surrounding("limits of the interpreter", "", _take_limits, _put_limits),
    Surrounding("locale", "", _take_locale, _put_locale),
    Surrounding("IPython's extensions", "IPython", _take_extensions, _put_extensions),
    Surrounding("IPython's settings", "IPython", _take_shell, _put_shell),
    Surrounding("decimal context", "decimal", _take_decimal, _put_decimal),
    Surrounding("logging", "logging", _take_logging, _put_logging),
    Surrounding("NumPy's settings", "numpy", _take_numpy, _put_numpy),
    Surrounding("pandas options", "pandas", _take_pandas, _put_pandas),
    Surrounding("matplotlib's settings", "matplotlib", _take_matplotlib, _put_matplotlib),
    Surrounding("inline figures", "matplotlib_inline.config", _take_inline, _put_inline),
    Surrounding("scikit-learn's settings", "sklearn", _take_sklearn, _put_sklearn),
    Surrounding("torch's settings", "torch", _take_torch, _put_torch),
    Surrounding("torch's random state", "torch", _take_torch_random, _put_torch_random),
    Surrounding("NumPy's random state", "numpy.random", _take_numpy_random, _put_numpy_random),
    Surrounding("random state", "random", _take_random, _put_random),
    Surrounding("warning filters", "", _take_warnings, _put_warnings),
)
_BY_NAME = {one.name: one for one in SURROUNDINGS}
_PUT_WITH = {"matplotlib_inline.config": "matplotlib"}
"""Where a state is put when another module than its own is imported."""


def _is_there(module: str) -> bool:
    if not module:
        return True
    found = sys.modules.get(module)
    # one that is just being imported has nothing to show yet
    return found is not None and not getattr(
        getattr(found, "__spec__", None), "_initializing", False
    )


def take(names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The surroundings as they are here, pickled one by one; those that cannot be are left out."""
    import cloudpickle

    found = {}
    for one in SURROUNDINGS:
        if (names is None or one.name in names) and _is_there(one.module):
            with contextlib.suppress(Exception):  # a library of an unknown version
                found[one.name] = cloudpickle.dumps(one.take(), protocol=5)
    return found


def put(
    states: Mapping[str, bytes], *, imported: Iterable[str] = (), wait: bool = True
) -> list[str]:
    """Make the surroundings what they were where they were taken; returns what could not be.

    What belongs to a library that is not here yet waits, if asked to, until somebody imports it.
    Importing one of ``imported``, which have been imported where the states are from, changes no
    warning filters.
    """
    failed = []
    later: dict[str, list[tuple[Surrounding, bytes]]] = {}
    for one in SURROUNDINGS:
        data = states.get(one.name)
        if data is None:
            continue
        module = _PUT_WITH.get(one.module, one.module)
        if _is_there(module):
            try:
                one.put(pickle.loads(data))
            except Exception:  # noqa: BLE001 - a library of another version
                failed.append(one.name)
        else:
            later.setdefault(module, []).append((one, data))
    if wait:
        _Waiting.begin(later, imported)
    return failed


class _Waiting(importlib.abc.MetaPathFinder):
    """Puts states in place as soon as the libraries that they belong to are imported."""

    current: _Waiting | None = None

    def __init__(
        self, later: dict[str, list[tuple[Surrounding, bytes]]], imported: Iterable[str]
    ) -> None:
        self._later = later
        self._quiet = frozenset(imported)

    @classmethod
    def begin(
        cls, later: dict[str, list[tuple[Surrounding, bytes]]], imported: Iterable[str]
    ) -> None:
        """Wait for these, and for those of before that have not come anew."""
        old = cls.current
        if old is not None:
            names = {one.name for entries in later.values() for one, _ in entries}
            for module, entries in old._later.items():  # noqa: SLF001 - one of its own kind
                left = [entry for entry in entries if entry[0].name not in names]
                later.setdefault(module, []).extend(left)
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not old]
            cls.current = None
        quiet = [name for name in imported if name not in sys.modules]
        if later or quiet:
            cls.current = cls(later, quiet)
            sys.meta_path.insert(0, cls.current)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Have the others find it, and watch its loader."""
        if fullname not in self._later and fullname not in self._quiet:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    self._watch(spec)
                return spec
        return None

    def _watch(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            filters = _take_warnings()
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            run(module)
            if spec.name in self._quiet:
                _put_warnings(filters)
            for one, data in self._later.pop(spec.name, ()):
                with contextlib.suppress(Exception):  # a library of another version
                    one.put(pickle.loads(data))

        with contextlib.suppress(AttributeError):  # a loader that is one for all modules
            loader.exec_module = exec_module
