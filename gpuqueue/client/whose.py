"""Who submits, and from where."""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import replace
from functools import lru_cache

from gpuqueue.client.rights import agent_of
from gpuqueue.model import Origin

__all__ = ["origin_here", "shown", "shown_origin", "user"]


def origin_here() -> Origin:
    """Where this process submits from."""
    path, agent = os.environ.get("JPY_SESSION_NAME", ""), agent_of()
    if path or "ipykernel" in sys.modules:
        return Origin("notebook", path, f"kernel-{os.getpid()}", agent)
    script = getattr(sys.modules.get("__main__"), "__file__", "") or ""
    return Origin("python", os.path.abspath(script) if script else "", f"pid-{os.getpid()}", agent)


def user() -> str:
    """Who submits: the owner of the jobs, unless another is given."""
    # in a container everybody has the same account, and one person is one owner by REST and here
    if name := os.environ.get("JUPYTERHUB_USER"):
        return name
    names = tuple(os.environ.get(name) for name in _LOGIN_NAMES)
    return _account(os.getuid() if hasattr(os, "getuid") else -1, names)


_LOGIN_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""What ``getpass`` goes by before it reads the list of accounts."""


@lru_cache(maxsize=8)
def _account(uid: int, _names: tuple[str | None, ...]) -> str:
    """The account's name, looked up once: that reads a file, or asks a directory service."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{uid}" if uid >= 0 else "?"


def shown(text: str) -> str:
    """Text for people: names of files that are not UTF-8 keep their place with a mark."""
    return os.fsencode(text).decode("utf-8", "replace") if not text.isascii() else text


def shown_origin(origin: Origin) -> Origin:
    """An origin whose words are for people."""
    return replace(origin, path=shown(origin.path), session=shown(origin.session))
