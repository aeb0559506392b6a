"""The whole state of a training in PyTorch, as plain data, and back.

``checkpoint.save_state`` and ``checkpoint.load_state`` are these. What is saved holds only tensors,
numbers, text and containers of them, so that it loads with ``weights_only=True``: a checkpoint from
somewhere else can then run no code. The random states of NumPy are lists for that reason.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter, OrderedDict

import torch

from gpuqueue.checkpoint import atomic_path
from gpuqueue.integrations.state import PARTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    AnyPath = str | os.PathLike[str]

__all__ = [
    "PARTS",
    "load_state",
    "missing_parts",
    "random_states",
    "restore_random_states",
    "save_state",
]

_OBJECTS = ("model", "optimizer", "scheduler", "scaler", "ema", "sampler")
_FORMAT = 1


def save_state(
    path: AnyPath,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    ema: Any = None,
    sampler: Any = None,
    step: int | None = None,
    epoch: int | None = None,
    best: float | None = None,
    extra: Any = None,
) -> list[str]:
    """Save what is given, and the random states of this process, in one file, whole or not at all.

    Parameters
    ----------
    model, optimizer, scheduler, scaler, ema, sampler
        Objects with ``state_dict()``, or what that gave. A sampler may be a plain position.
    step, epoch
        How many are done.
    best
        The best metric so far.
    extra
        Plain data of your own: numbers, text, tensors, lists and dictionaries of them.

    Returns
    -------
    list[str]
        Which of ``PARTS`` it lacks. Not every training has all of them.

    Raises
    ------
    TypeError
        Something is not plain data: says where it is and what to do.
    """
    objects = (model, optimizer, scheduler, scaler, ema, sampler)
    state: dict[str, Any] = {
        name: part.state_dict() if hasattr(part, "state_dict") else part
        for name, part in zip(_OBJECTS, objects)  # noqa: B905 - strict= came with 3.10
        if part is not None
    }
    counts = (("step", step), ("epoch", epoch), ("best", best), ("extra", extra))
    state.update((name, value) for name, value in counts if value is not None)
    state = {name: _plain(name, value) for name, value in state.items()}
    state["random"] = random_states()
    state["format"] = _FORMAT
    with atomic_path(path) as temporary:
        torch.save(state, temporary)
    return missing_parts(state)


def load_state(
    path: AnyPath,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    ema: Any = None,
    sampler: Any = None,
    map_location: Any = "cpu",
    trusted: bool = False,
) -> dict[str, Any]:
    """Put a saved state back into the objects given, and into the random generators.

    Parameters
    ----------
    map_location
        Where tensors go first; each object then moves them to where its own are.
    trusted
        Load objects of any class. Such a file can run code: only where you know who wrote it.

    Returns
    -------
    dict
        ``step``, ``epoch``, ``best``, ``extra`` and a sampler's plain position, each None if it is
        not there; ``missing``: which of ``PARTS`` the file lacks.

    Raises
    ------
    ValueError
        The file lacks a part that was asked for, or holds more than plain data.
    """
    state = _load(path, map_location, trusted=trusted)
    objects = (model, optimizer, scheduler, scaler, ema, sampler)
    wanted = dict(zip(_OBJECTS, objects))  # noqa: B905
    lacking = [name for name, part in wanted.items() if part is not None and name not in state]
    if lacking:
        raise ValueError(
            f"{os.fspath(path)} has no {', no '.join(lacking)}; it lacks: "
            f"{', '.join(missing_parts(state))}. Load without what it lacks, to start that anew"
        )
    for name, part in wanted.items():
        if part is not None:
            part.load_state_dict(state[name])
    if "random" in state:  # last: loading may have drawn numbers
        restore_random_states(state["random"])
    names = ("step", "epoch", "best", "extra", "sampler")
    return {**{name: state.get(name) for name in names}, "missing": missing_parts(state)}


def missing_parts(state: Mapping[str, Any] | AnyPath) -> list[str]:
    """Which of ``PARTS`` a saved state, or the file that holds it, lacks."""
    if isinstance(state, (str, os.PathLike)):
        state = _load(state, "cpu", trusted=False)
    if state and all(isinstance(value, torch.Tensor) for value in state.values()):
        return [name for name in PARTS if name != "model"]  # the weights of a model and no more
    return [name for name in PARTS if state.get(name) is None]


def _load(path: AnyPath, map_location: Any, *, trusted: bool) -> dict[str, Any]:
    import pickle

    try:
        state = torch.load(os.fspath(path), map_location=map_location, weights_only=not trusted)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{os.fspath(path)} holds more than plain data, or is damaged. If you know who wrote "
            f"it, load_state(..., trusted=True) takes it. ({str(error).splitlines()[0]})"
        ) from error
    if not isinstance(state, dict):
        raise ValueError(f"{os.fspath(path)} holds a {type(state).__name__}, not a saved state")
    return state


# -- random states ---------------------------------------------------------------------------------


def random_states() -> dict[str, Any]:
    """The states of all random generators of this process, as plain data.

    Python's, torch's on the CPU and on every GPU in use, and NumPy's global one if it is imported.
    In distributed training every rank has its own: save them for each.
    """
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, gauss = numpy.random.get_state()
        states["numpy"] = [str(kind), keys.tolist(), int(position), int(has_gauss), float(gauss)]
    cuda: Any = torch.cuda  # not all of it has types
    if cuda.is_available() and cuda.is_initialized():
        states["cuda"] = cuda.get_rng_state_all()
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Put back what ``random_states`` gave; GPUs that are not here any more are left out."""
    if "python" in states:
        version, inner, gauss = states["python"]
        random.setstate((version, tuple(inner), gauss))
    if "torch" in states:
        torch.set_rng_state(states["torch"].cpu())
    if "numpy" in states:
        import numpy as np

        kind, keys, position, has_gauss, gauss = states["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    if "cuda" in states and torch.cuda.is_available():
        for index, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state.cpu(), index)


# -- plain data ------------------------------------------------------------------------------------

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)


def _plain(where: str, value: Any) -> Any:
    """The value with NumPy's numbers as Python's; refuses what the safe loader would refuse."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, torch.Tensor):
        return value
    if kind in (list, tuple):
        return kind(_plain(f"{where}[{i}]", item) for i, item in enumerate(value))
    if kind in _MAPPINGS:
        return _plain_mapping(where, value)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    hint = "use its tolist() or torch.from_numpy()" if kind.__name__ == "ndarray" else "use vars()"
    raise TypeError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, and only plain data can be loaded "
        f"again safely: numbers, text, tensors, lists, dictionaries. Turn it into that; {hint}"
    )


def _plain_mapping(where: str, value: Any) -> Any:
    items = {_plain(where, key): _plain(f"{where}.{key}", item) for key, item in value.items()}
    if all(items[key] is item for key, item in value.items()):
        return value  # as it is, with what a state_dict carries beside its items
    return type(value)(items)
