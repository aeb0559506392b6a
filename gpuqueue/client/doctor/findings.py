"""What a check has found, and what the checks know of each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gpuqueue.model import Gpu
from gpuqueue.paths import Home
from gpuqueue.settings import Settings

__all__ = ["Check", "Scene", "bad", "good", "warn"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes
    ----------
    name
        What was looked at, in a word or two.
    ok
        True; False if something does not work; None for a warning.
    sentence, fix
        What was found, and what to do about it where that is needed.
    """

    name: str
    ok: bool | None
    sentence: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(slots=True)
class Scene:
    """What earlier checks found and later ones need."""

    home: Home | None
    settings: Settings = field(default_factory=Settings)
    gpus: tuple[Gpu, ...] = ()


def good(name: str, sentence: str) -> Check:
    """It is in order."""
    return Check(name=name, ok=True, sentence=sentence)


def warn(name: str, sentence: str, fix: str = "") -> Check:
    """It works, and something is to be known of it."""
    return Check(name=name, ok=None, sentence=sentence, fix=fix)


def bad(name: str, sentence: str, fix: str = "") -> Check:
    """It does not work."""
    return Check(name=name, ok=False, sentence=sentence, fix=fix)
