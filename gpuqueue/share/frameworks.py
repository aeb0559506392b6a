"""Telling frameworks their cap, through the settings that each reads when it starts.

That is advice: it holds for what goes through the framework, in one process. It is worth having
beside a real cap all the same, for a framework that knows its limit frees its caches in time.

Fractions are of the memory that a process **sees**. Where the memory cap tells it that the GPU is
as large as its cap, the fraction is 1 and nothing is set: else the cap would be taken of the cap.
What the user has set stays, unless it is more than the cap; it is then lowered in the very variable
that the user chose.

Which variable each reads, from their documentation and, for PyTorch, the headers of 2.13:

PyTorch     ``PYTORCH_ALLOC_CONF`` (older: ``PYTORCH_CUDA_ALLOC_CONF``, which wins for CUDA),
            ``per_process_memory_fraction`` since 2.10. An older one stops at a key that it does not
            know, so it is set only where the version in the job's Python is known
JAX         ``XLA_PYTHON_CLIENT_MEM_FRACTION`` or ``XLA_CLIENT_MEM_FRACTION``, never both
CuPy        ``CUPY_GPU_MEMORY_LIMIT``: bytes, or a percentage
TensorFlow  ``TF_FORCE_GPU_ALLOW_GROWTH``: it takes no cap from outside, but need not take all
Paddle      ``FLAGS_fraction_of_gpu_memory_to_use``
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

from gpuqueue.model import ProcessId
from gpuqueue.share.mechanism import Bound, Effect, Probe, Standing, Subject

__all__ = ["FrameworkSettings", "fraction_of", "settings"]

_TORCH_NEW, _TORCH_OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
_TORCH_KEY = "per_process_memory_fraction"
_TORCH_SINCE = (2, 10)
_JAX = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
_PARTS = 10_000
_CUPY = "CUPY_GPU_MEMORY_LIMIT"
_TENSORFLOW = "TF_FORCE_GPU_ALLOW_GROWTH"
_PADDLE = "FLAGS_fraction_of_gpu_memory_to_use"


def fraction_of(bound: Bound) -> float | None:
    """The cap as a fraction of what the job sees: the least of its GPUs; None where one is unknown.

    Settings are one for all GPUs of a process, so with unequal caps the others could hold more.
    """
    found = []
    for gpu, cap in bound.caps.items():
        if cap is None:
            continue
        total = bound.totals.get(gpu)
        if not total:
            return None
        # in whole numbers and rounded down: a little more would be over the cap
        parts = min(_PARTS, max(1, cap * _PARTS // total))  # 0 means no limit to some
        found.append(parts / _PARTS)
    return min(found, default=None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _told(fraction: float) -> str:
    return f"{fraction:.4f}"


def _lowered(text: str, fraction: float) -> str | None:
    """The fraction instead of the user's own; None where that is no more, or cannot be read."""
    own = _number(text)
    return _told(fraction) if own is not None and own > fraction else None


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _torch_conf(conf: str, fraction: float) -> str:
    """PyTorch's list of ``key:value``, with the fraction; values may be lists in brackets."""
    parts = [part for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", conf) if part.strip()]
    kept = []
    for part in parts:
        key, _, value = part.partition(":")
        if key.strip() != _TORCH_KEY:
            kept.append(part)
        elif (own := _number(value)) is not None and own <= fraction:
            return conf
    return ",".join([*kept, f"{_TORCH_KEY}:{_told(fraction)}"])


def _torch(fraction: float, base: Mapping[str, str], version: str) -> dict[str, str]:
    known = _version(version)
    if known is None or known < _TORCH_SINCE:
        return {}
    names = [name for name in (_TORCH_OLD, _TORCH_NEW) if name in base] or [_TORCH_NEW]
    made = {name: _torch_conf(base.get(name, ""), fraction) for name in names}
    return {name: conf for name, conf in made.items() if conf != base.get(name)}


def _jax(fraction: float, base: Mapping[str, str]) -> dict[str, str]:
    own = [name for name in _JAX if name in base]
    if not own:
        return {_JAX[0]: _told(fraction)}
    lowered = {name: _lowered(base[name], fraction) for name in own}
    return {name: value for name, value in lowered.items() if value is not None}


def _cupy(bound: Bound) -> dict[str, str]:
    caps = [cap for cap in bound.caps.values() if cap is not None]
    if not caps:
        return {}
    cap = min(caps)
    own = bound.base.get(_CUPY, "").strip()
    limit = _number(own.removesuffix("%"))
    if own.endswith("%") and limit is not None:
        totals = [total for total in bound.totals.values() if total]
        limit = limit / 100 * max(totals) if totals else None
    if own and (limit is None or limit <= cap):
        return {}
    return {_CUPY: str(cap)}


def _paddle(fraction: float, base: Mapping[str, str]) -> dict[str, str]:
    if _PADDLE not in base:
        return {_PADDLE: _told(fraction)}
    lowered = _lowered(base[_PADDLE], fraction)
    return {} if lowered is None else {_PADDLE: lowered}


def settings(bound: Bound) -> dict[str, str]:
    """The variables that tell each framework the job's cap; those that need no change are left out.

    It is the same when applied to its own outcome.
    """
    made = _cupy(bound)
    fraction = fraction_of(bound)
    if fraction is None or fraction >= 1.0:
        return made
    base = bound.base
    made |= _torch(fraction, base, bound.versions.get("torch", ""))
    made |= _jax(fraction, base)
    made |= _paddle(fraction, base)
    if _TENSORFLOW not in base:
        made[_TENSORFLOW] = "true"
    return made


class FrameworkSettings:
    """The same as a mechanism: it works anywhere, and is never more than advice."""

    name = "framework settings"
    subject = Subject.MEMORY
    standing = Standing.ADVISED
    reports = False
    at_start = False
    scope = "each process of a job"
    changes = Effect.NEXT_START
    bypass = "a program that does not read them"

    def probe(self) -> Probe:
        """It needs nothing of the machine."""
        return Probe(usable=True, reason="Frameworks are told; whether they listen is theirs.")

    def environment(self, bound: Bound) -> Mapping[str, str]:
        """See `settings`."""
        return settings(bound)

    def apply(self, bound: Bound, process: ProcessId) -> None:
        """Nothing: the environment does it."""

    def resize(self, bound: Bound) -> Effect:  # noqa: ARG002 - the protocol's
        """Frameworks read their settings once."""
        return Effect.NEXT_START

    def verify(
        self,
        bound: Bound,  # noqa: ARG002 - the protocol's
        users: Collection[int],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Nothing can be told from outside."""
        return ()

    def release(self, bound: Bound) -> None:
        """Nothing was made."""
