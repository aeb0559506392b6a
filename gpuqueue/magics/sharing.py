"""The notebook's own share of a GPU: ``%gpu share``, ``attach`` and ``release``."""

from __future__ import annotations

from typing import Any

from gpuqueue.client.local import LocalClient, default_client
from gpuqueue.client.ownshare import attach_as, held_share, notebook_path, release_share
from gpuqueue.client.wishes import change_size, kernel_request, remember, remembered, wish_of_words
from gpuqueue.control.machine import managed_gpus, policy_of
from gpuqueue.errors import InvalidRequest, NoShare, NotAllowedNow
from gpuqueue.magics.late import disarm, is_late
from gpuqueue.plan import asked_words, never_fits

__all__ = ["attach_line", "own_share_line", "release_line", "share_line"]

_NONE = "this notebook holds no share of a GPU"


def own_share_line() -> str:
    """What this notebook holds, in a line; empty where it holds nothing and waits for nothing."""
    held = held_share()
    if held is not None:
        return str(held)
    if is_late():
        return f"{_NONE} yet; it gets one at its first use of a GPU"
    return ""


def share_line(_: Any, words: list[str]) -> None:
    """``%gpu share``: show it; with ``0.5 20G``, change it; with ``none``, forget it."""
    client, path = default_client(), notebook_path()
    if not words:
        print(own_share_line() or f"{_NONE}; %gpu attach gets one")
        wish = remembered(client, path)
        if wish is not None:
            print(f"from its next start on it asks for {asked_words(_request(client, wish))}")
        return
    if not path and held_share(client) is None:
        raise InvalidRequest(
            "share",
            "this kernel holds no share and does not know its notebook; %gpu attach 0.5 20G",
        )
    if words == ["none"]:
        remember(client, path, None)
        print("forgotten; the next start goes by the notebook, its kernelspec and the settings")
        return
    wish = wish_of_words(words, "share")
    request = _request(client, wish)
    machine = client.machine()
    gpus = managed_gpus(client.settings, machine.gpus)
    if why := never_fits(request, gpus, policy_of(client.settings, machine.gpus)):
        raise NoShare(f"A notebook's kernel {why.replace('; use --cpu', '')}.")
    held = held_share(client)
    if held is not None:
        try:
            print(change_size(client, client.job(held.job), wish))
        except NotAllowedNow as error:
            print(f"not now: {error}")
    if path:
        remember(client, path, wish)
        print(f"noted: at its next start this notebook asks for {asked_words(request)}")


def _request(client: LocalClient, wish: Any) -> Any:
    return kernel_request(wish, client.settings)


def attach_line(_: Any, words: list[str]) -> None:
    """``%gpu attach [0.25 20G]``."""
    print(attach_as(wish_of_words(words, "attach") if words else None))
    disarm()


def release_line(_: Any, words: list[str]) -> None:
    """``%gpu release``."""
    if words:
        raise InvalidRequest("release", f"nothing may follow it, and there is {' '.join(words)}")
    print(release_share())
