"""Durations, sizes and fractions, between what people write and what gpuqueue counts in.

``40m`` is seconds, ``6G`` is bytes, ``0.25`` is thousandths of a GPU.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Real

from gpuqueue.errors import InvalidRequest

__all__ = [
    "format_bytes",
    "format_duration",
    "format_share",
    "parse_bytes",
    "parse_duration",
    "parse_share",
]

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.ASCII)
_POWER = {"": 2, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# Digits are counted: a number of a million digits takes Python minutes to read.
_BYTES = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*(?:([kmgt])i?b?|(b)|)", re.ASCII | re.IGNORECASE)
_SHARE = re.compile(
    r"(\d{0,30}(?:\.\d{0,30})?(?:e-?\d{1,3})?(?:/\d{1,30})?)\s*(%?)", re.ASCII | re.IGNORECASE
)
_MOST_BYTES = 2**63 - 1


def parse_duration(value: str | float, field: str = "duration") -> float:
    """Seconds from ``40m``, ``1h30m``, ``90`` or a number.

    Raises
    ------
    InvalidRequest
        Not a positive duration.
    """
    given: object = value  # numbers of other libraries, such as NumPy's, are welcome
    if isinstance(given, bool) or not isinstance(given, str | Real):
        raise InvalidRequest(field, f"{value!r} is not a duration; write for example 40m or 1h30m")
    if isinstance(given, Real):
        try:
            seconds = float(given)
        except OverflowError:
            seconds = math.inf
    else:
        text = given.strip().lower()
        parts = list(_DURATION.finditer(text))
        if not parts or re.sub(r"\s", "", _DURATION.sub("", text)):
            raise InvalidRequest(
                field, f"{value!r} is not a duration; write for example 90, 40m, 1h30m or 2d"
            )
        if len(parts) > 1 and any(not part[2] for part in parts):
            raise InvalidRequest(field, f"{value!r} mixes numbers with and without a unit")
        seconds = float(sum(float(part[1]) * _SECONDS[part[2]] for part in parts))
    if not math.isfinite(seconds) or seconds <= 0:
        raise InvalidRequest(field, f"{value!r} must be a positive duration")
    return seconds


def parse_bytes(value: str | float, field: str = "memory") -> int:
    """Bytes from ``6G``, ``512M``, ``6GiB`` or ``1.5g``; a number without a unit is MiB.

    Units are powers of 1024, as GPU tools count them; ``512B`` is 512 bytes.

    Raises
    ------
    InvalidRequest
        Not a positive size.
    """
    if isinstance(value, bool):
        raise InvalidRequest(field, f"{value!r} is not a size; write for example 6G or 512M")
    match = _BYTES.fullmatch(str(value).strip()) if isinstance(value, str | Real) else None
    if not match:
        raise InvalidRequest(
            field, f"{value!r} is not a size; write for example 6G, 512M or 1.5GiB"
        )
    size = int(Fraction(match[1]) * 1024 ** _POWER[(match[2] or match[3] or "").lower()])
    if size <= 0:
        raise InvalidRequest(field, f"{value!r} must be more than nothing")
    if size > _MOST_BYTES:
        raise InvalidRequest(field, f"{value!r} is more than any device has")
    return size


def parse_share(value: str | float, field: str = "share") -> int:
    """Thousandths of a GPU from a fraction in (0, 1]: ``0.25``, ``1/3`` or ``25%``.

    Rounded down, so that k shares of 1/k always fit on one GPU; never below one thousandth.

    Raises
    ------
    InvalidRequest
        Not a fraction above 0 and up to 1.
    """
    problem = f"{value!r} is not a share; write a fraction above 0 and up to 1, such as 0.25 or 1/3"
    if isinstance(value, bool) or not isinstance(value, str | Real):
        raise InvalidRequest(field, problem)
    # str() of a float is its shortest decimal: 0.3 means 3/10, not its binary neighbour
    match = _SHARE.fullmatch(str(value).strip())
    if not match:
        raise InvalidRequest(field, problem)
    try:
        fraction = Fraction(match[1]) / (100 if match[2] else 1)
    except (ValueError, ZeroDivisionError):
        raise InvalidRequest(field, problem) from None
    if not 0 < fraction <= 1:
        raise InvalidRequest(field, problem)
    return max(1, int(fraction * 1000))


def format_duration(seconds: float) -> str:
    """A duration in at most two units: ``8s``, ``40m``, ``1h 30m``, ``2d 3h``."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left}s" if left or seconds <= 0 else "1s"
    if left >= 3600:
        left = round(left / 60) * 60
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[tuple[int, str]] = []
    for name, size in units:
        if left >= size or parts:
            parts.append((left // size, name))
            left %= size
        if len(parts) == 2:
            break
    return " ".join(f"{count}{name}" for count, name in parts if count)


def format_bytes(size: float | None) -> str:
    """A size in the largest unit that keeps it readable: ``512M``, ``1.5G``; ``?`` if unknown."""
    if size is None:
        return "?"
    amount = float(size)
    unit = 0
    while abs(amount) >= 1023.5 and unit < 4:  # what would be shown as 1024 is 1 of the next unit
        amount /= 1024
        unit += 1
    text = f"{amount:.1f}".rstrip("0").rstrip(".") if amount < 100 else f"{amount:.0f}"
    return text + "BKMGT"[unit]


def format_share(thousandths: int) -> str:
    """A share as a fraction of one: ``0.25``, ``1``."""
    return f"{thousandths / 1000:.3f}".rstrip("0").rstrip(".")
