"""What a notebook's kernel asks for of a GPU: read, remembered, and made into a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuqueue.client.local import LocalClient
from gpuqueue.client.resizing import resize
from gpuqueue.errors import InvalidRequest
from gpuqueue.model import WHOLE, Job, Request
from gpuqueue.settings import Settings
from gpuqueue.units import format_bytes, format_share, parse_bytes, parse_share

__all__ = [
    "Wish",
    "change_size",
    "default_wish",
    "kernel_request",
    "remember",
    "remembered",
    "size_of",
    "wish_from",
    "wish_of_words",
]

_FACT = "kernel share "
_NAMES = ("share", "mem", "gpus")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a kernel asks for: thousandths and bytes of each of so many GPUs.

    None is left to the settings, or for memory to the share's part of the GPU.
    """

    share: int | None = None
    memory: int | None = None
    gpus: int | None = None

    def __str__(self) -> str:
        parts = [] if self.share is None else [format_share(self.share)]
        if self.memory is not None:
            parts.append(format_bytes(self.memory))
        if self.gpus not in (None, 1):
            parts.append(f"of each of {self.gpus} GPUs")
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``wish_from`` reads it."""
        told: dict[str, Any] = {}
        if self.share is not None:
            told["share"] = format_share(self.share)
        if self.memory is not None:
            told["mem"] = f"{self.memory}B"
        if self.gpus is not None:
            told["gpus"] = self.gpus
        return told


def wish_from(values: Any, where: str) -> Wish | None:
    """A wish from what a person has written; ``where`` names the place in an error, if it has one.

    None where nothing is asked for.

    Raises
    ------
    InvalidRequest
        There is no such entry, or its value is not allowed.
    """
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise InvalidRequest(where, 'write for example {"share": "0.25", "mem": "20G"}')
    before = f"{where}." if where else ""
    values = {name: value for name, value in values.items() if value not in (None, "")}
    for name in values:
        if name not in _NAMES:
            raise InvalidRequest(f"{before}{name}", f"there is no such entry, but {_NAMES}")
    if not values:
        return None
    gpus = values.get("gpus")
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1):
        raise InvalidRequest(f"{before}gpus", f"{gpus!r} is not a number of GPUs")
    return Wish(
        parse_share(values["share"], f"{before}share") if "share" in values else None,
        parse_bytes(values["mem"], f"{before}mem") if "mem" in values else None,
        gpus,
    )


def wish_of_words(words: Sequence[str], where: str) -> Wish:
    """A wish as typed: ``0.5``, ``0.5 20G``.

    Raises
    ------
    InvalidRequest
        It is anything else.
    """
    if not words or len(words) > 2:
        raise InvalidRequest(where, f"write for example %gpu {where} 0.5 20G")
    memory = parse_bytes(words[1], f"{where} memory") if len(words) > 1 else None
    return Wish(parse_share(words[0], where), memory)


def default_wish(settings: Settings) -> Wish:
    """What a kernel gets that does not say how much."""
    memory = settings.kernel_memory
    return Wish(
        parse_share(settings.kernel_share, "kernel_share"),
        parse_bytes(memory, "kernel_memory") if memory else None,
        1,
    )


def kernel_request(wish: Wish, settings: Settings) -> Request:
    """The request that a wish comes to; what it leaves open comes from the settings."""
    default = default_wish(settings)
    named = wish.share is not None or wish.memory is not None
    return Request(
        gpus=wish.gpus or default.gpus,
        share=default.share if wish.share is None else wish.share,
        memory=wish.memory if named else default.memory,
    )


def size_of(client: LocalClient, job: Job, wish: Wish) -> tuple[int, int]:
    """What a wish comes to on the GPU that a job is on: thousandths and bytes."""
    request = kernel_request(wish, client.settings)
    share, memory = request.share or 0, request.memory
    if memory is None:
        gpu = job.placement.grants[0].gpu if job.placement and job.placement.grants else ""
        total = next((card.memory for card in client.machine().gpus if card.uuid == gpu), None)
        memory = share * (total or 0) // WHOLE
    return share, memory


def change_size(client: LocalClient, job: Job, wish: Wish) -> str:
    """Give a share that is held another size, where it is; what came of it, for people.

    Raises
    ------
    NotAllowedNow, InvalidRequest
        There is no room for it, or could never be. The share stays as it is.
    """
    share, memory = size_of(client, job, wish)
    size = f"{memory}B" if memory else None
    return resize(client, job.id, share=format_share(share), mem=size).message


# -- what a notebook was given for its next start --------------------------------------------------


def remembered(client: LocalClient, path: str) -> Wish | None:
    """What was chosen for a notebook, by its path; None where nothing was."""
    found = client.store.fact(f"{_FACT}{path}") if path else None
    return wish_from(found, "share")


def remember(client: LocalClient, path: str, wish: Wish | None) -> None:
    """Keep what a notebook's kernels get from their next start on; None forgets it."""
    client.store.set_fact(f"{_FACT}{path}", None if wish is None else wish.to_dict())
