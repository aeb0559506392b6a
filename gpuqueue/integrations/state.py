"""Which parts of a training's state a checkpoint holds, whoever wrote it; nothing in it is run.

Files of PyTorch are loaded with ``weights_only=True`` and without their tensors; of folders, such
as Hugging Face's Trainer and accelerate write, the names of the files tell.
"""

from __future__ import annotations

import json
import os
import re
import warnings

from gpuqueue.checkpoint import complete_checkpoints, why_incomplete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    AnyPath = str | os.PathLike[str]

__all__ = ["PARTS", "State", "state_parts"]

PARTS = (
    "model", "optimizer", "scheduler", "scaler", "ema", "random", "step", "sampler", "best",
)  # fmt: skip
"""What a training has to remember to go on as if nothing had happened."""

GENERATORS = ("python", "numpy", "torch", "cuda")
"""The random generators whose states are looked for."""

_KEYS = {
    "model": "model state_dict module net network params weights",
    "optimizer": "optimizer optimizers optim",
    "scheduler": "scheduler schedulers lr_scheduler lr_schedulers",
    "scaler": "scaler grad_scaler amp mixedprecision",
    "ema": "ema ema_model model_ema",
    "random": "random random_states rng rng_states gpuqueue_random_states",
    "step": "step steps global_step iteration iter epoch",
    "sampler": "sampler data dataloader train_dataloader",
}
"""What people call the parts. ``_state``, ``_states``, ``_state_dict`` at the end do not count."""

_END = r"(_\d+)?\.(bin|pt|pth|pkl|safetensors)"
_FILES = {
    "model": r"(pytorch_|adapter_)?model(-\d+-of-\d+)?" + _END,
    "optimizer": r"optimizer" + _END,
    "scheduler": r"(lr_)?scheduler" + _END,
    "scaler": r"scaler" + _END,
    "ema": r"ema(_model)?" + _END,
    "random": r"(rng_state|random_states)" + _END,
    "sampler": r"(sampler|dl_state_dict|dataloader)" + _END,
}
_TRAINER = "trainer_state.json"


class State:
    """What one checkpoint holds.

    Attributes
    ----------
    path
        The checkpoint that was looked at.
    found
        Part to what of it is there, in words: ``random`` names the generators.
    missing
        Those of ``PARTS`` that it lacks. Not every training has all of them.
    """

    def __init__(self, path: str, found: Mapping[str, str]) -> None:
        self.path = path
        self.found = {part: found[part] for part in PARTS if part in found}
        self.missing = [part for part in PARTS if part not in found]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"path": self.path, "found": self.found, "missing": self.missing}


def state_parts(path: AnyPath) -> State:
    """Which parts of a training's state a checkpoint holds.

    Parameters
    ----------
    path
        A file or a folder; of a folder with several checkpoints the newest that is complete.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        It is not complete, or cannot be read, or not without running code of it: says which.
    """
    where = os.path.abspath(os.fspath(path))
    if not os.path.exists(where):
        raise FileNotFoundError(f"there is no checkpoint {where}")
    if os.path.isdir(where):
        names = sorted(os.listdir(where))
        found = _of_names(names)
        if ".metadata" in names:
            raise ValueError(
                f"{where} is of torch.distributed.checkpoint, whose list of contents cannot be "
                "read without running code of it"
            )
        if not found:
            inside = complete_checkpoints(where)
            if not inside:
                raise FileNotFoundError(f"there is no complete checkpoint in {where}")
            newest = os.fspath(inside[-1])
            if os.path.isdir(newest) and not _of_names(os.listdir(newest)):
                raise ValueError(f"{newest}: its files have names that tell nothing")
            return state_parts(newest)
    if problem := why_incomplete(where):
        raise ValueError(f"{where} is not complete: {problem}")
    if os.path.isdir(where):
        return State(where, {**found, **_of_trainer(os.path.join(where, _TRAINER))})
    return State(where, _of_file(where))


# -- folders ---------------------------------------------------------------------------------------


def _of_names(names: list[str]) -> dict[str, str]:
    found = {}
    for part, pattern in _FILES.items():
        files = [name for name in names if re.fullmatch(pattern, name)]
        if files:
            found[part] = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    return found


def _of_trainer(path: str) -> dict[str, str]:
    """What Hugging Face's Trainer says of how far it is."""
    try:
        with open(path, "rb") as file:
            said = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return _of_keys({name: said.get(name) for name in ("global_step", "epoch", "best_metric")})


# -- files -----------------------------------------------------------------------------------------


def _of_file(path: str) -> dict[str, str]:
    if path.endswith(".safetensors"):
        return {"model": "weights only"}
    try:
        import torch

        from gpuqueue.integrations.torch import _load
    except ImportError:
        raise ValueError(f"{path} can be read only where PyTorch is installed: it is not") from None
    try:
        with warnings.catch_warnings():  # what they say of is refused anyhow
            warnings.simplefilter("ignore")
            state = _load(path, "meta", trusted=False)
    except ValueError:
        raise  # says why already
    except Exception as error:  # whatever a file leads to
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} cannot be read as a checkpoint of PyTorch ({first})") from error
    if state and all(isinstance(value, torch.Tensor) for value in state.values()):
        return {"model": "weights only"}
    return _of_keys(state)


def _of_keys(state: Mapping[Any, Any]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for key, value in state.items():
        part = _part_of(str(key))
        if part and not _is_empty(value):
            found.setdefault(part, []).append(_in_words(str(key), value))
    generators = [name for key in state for name in _generators(str(key), state[key])]
    if generators:
        found["random"] = [name for name in GENERATORS if name in generators]
    return {part: ", ".join(words) for part, words in found.items()}


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple, dict, str)) and not value)


def _part_of(key: str) -> str | None:
    name = key.lower()
    if name.startswith("best"):
        return "best"
    plain = re.sub(r"_(state|states|state_dict)$", "", name)
    for part, names in _KEYS.items():
        if {name, plain} & set(names.split()):
            return part
    return "random" if _generators(key, "there") else None


def _generators(key: str, value: Any) -> list[str]:
    """The generators whose states are under a key."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = value[0]  # of the first rank
    name = key.lower()
    named = [kind for kind in GENERATORS if kind in name]
    if not re.search("rng|random", name) or _is_empty(value):
        return []
    if named:
        return named
    if isinstance(value, dict):
        words = [str(inner).lower().replace("cpu", "torch") for inner in value]
        return [kind for kind in GENERATORS if any(kind in word for word in words)]
    return ["torch"] if name.startswith("rng") else []


def _in_words(key: str, value: Any) -> str:
    plain = isinstance(value, (bool, int, float))
    return f"{key} {value:g}" if plain and not isinstance(value, bool) else key
