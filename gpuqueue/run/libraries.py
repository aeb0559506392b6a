"""Settings and random states of libraries, taken in one process and put into another.

Two functions for each, called only when the library has been imported. They may meet a version of
it that they do not know: what they raise is taken to mean that this state does not travel.

To add a library, write the two and add a line to ``LIBRARIES``. A state must be picklable, and
equal states must pickle alike.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LIBRARIES", "Surrounding"]


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


def _take_numpy() -> Any:
    numpy = _module("numpy")
    return [numpy.get_printoptions(), numpy.geterr()]


def _put_numpy(state: Any) -> None:
    numpy = _module("numpy")
    if _take_numpy() != state:
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


def _seed_cuda(torch: Any, seed: int) -> None:
    """Seed all GPUs, when CUDA is first used.

    Not with the lines of the stack, which torch would keep for the case that this fails then, and
    which take longer than all else that is done to make the surroundings what they were.
    """
    lines = getattr(torch.cuda, "traceback", None)
    if lines is None:
        torch.cuda.manual_seed_all(seed)
        return
    torch.cuda.traceback = types.SimpleNamespace(format_stack=list)
    try:
        torch.cuda.manual_seed_all(seed)
    finally:
        torch.cuda.traceback = lines


def _take_torch_random() -> Any:
    torch = _module("torch")
    seeded = _cuda_seed(torch) is not None
    state: dict[str, Any] = {"seeded": seeded, "cuda": None}
    state["cpu"] = torch.get_rng_state().numpy().tobytes()
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
        # both wait until CUDA is first used; where nobody has set a seed, it makes up its own
        used = state["cuda"] is not None
        if state.get("seeded", True) and (not used or "GPUQUEUE_JOB_ID" in os.environ):
            _seed_cuda(torch, torch.initial_seed())
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


_SHOWN = "sklearn.utils._repr_html.estimator"


def _numbers_of_shown() -> dict[str, Any]:
    counters = {"container": "_CONTAINER_ID_COUNTER", "estimator": "_ESTIMATOR_ID_COUNTER"}
    return {name: getattr(_module(_SHOWN), where) for name, where in counters.items()}


def _take_shown() -> Any:
    return {name: counter.count for name, counter in _numbers_of_shown().items()}


def _put_shown(state: Any) -> None:
    for name, counter in _numbers_of_shown().items():
        counter.count = max(counter.count, state[name])


def _take_progress() -> Any:
    """The class of bars and its arguments that ``tqdm.pandas()`` was last called with."""
    function = getattr(_module("pandas").Series, "progress_apply", None)
    words = inspect.getclosurevars(function).nonlocals if function is not None else {}
    return [words["cls"], dict(words["tqdm_kwargs"])] if "cls" in words else None


def _put_progress(state: Any) -> None:
    if state is not None and _take_progress() != state:
        state[0].pandas(**state[1])


LIBRARIES: tuple[Surrounding, ...] = (
    Surrounding("NumPy's settings", "numpy", _take_numpy, _put_numpy),
    Surrounding("pandas options", "pandas", _take_pandas, _put_pandas),
    Surrounding("tqdm's methods of pandas", "pandas", _take_progress, _put_progress),
    Surrounding("matplotlib's settings", "matplotlib", _take_matplotlib, _put_matplotlib),
    Surrounding("scikit-learn's settings", "sklearn", _take_sklearn, _put_sklearn),
    # what is shown in one notebook has numbers that must not be given out twice
    Surrounding("scikit-learn's numbers", _SHOWN, _take_shown, _put_shown),
    Surrounding("torch's settings", "torch", _take_torch, _put_torch),
    Surrounding("torch's random state", "torch", _take_torch_random, _put_torch_random),
    Surrounding("NumPy's random state", "numpy.random", _take_numpy_random, _put_numpy_random),
)
"""In the order in which they are put in place."""
