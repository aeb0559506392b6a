"""Importing a notebook's libraries ahead of its cells, and whether that still holds.

What is imported ahead must be what a cell would have imported itself: the same files, found on the
same path, unchanged since, and nothing of the user's own. Where that is in doubt the answer is
``Unfit``, and cells start without.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from gpuqueue.run.watching import Watch

__all__ = ["LEFT_OUT", "Preloaded", "Unfit", "installed_places", "packed", "unpacked"]

LEFT_OUT = ("gpuqueue", "debugpy", "pydevd", "_pydev", "_pydevd")
"""Beginnings of modules that are never imported ahead: a debugger changes Python as it loads."""

_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


class Unfit(Exception):
    """Why what was imported ahead cannot serve."""


def packed(names: Iterable[str]) -> bytes:
    """Names of modules for a file."""
    return zlib.compress("\n".join(names).encode(), 1)


def unpacked(data: bytes) -> list[str]:
    """What ``packed`` was given."""
    return zlib.decompress(data).decode().split("\n") if data else []


def installed_places() -> tuple[str, ...]:
    """Folders of installed libraries, each with a separator at its end."""
    import site
    import sysconfig

    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    found |= {os.path.realpath(place) for place in found}
    return tuple(os.path.join(place, "") for place in sorted(found) if place)


def _library_places() -> tuple[str, ...]:
    """Where the standard library and what is installed come from."""
    import sysconfig

    found = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    found |= {os.path.realpath(place) for place in found}
    return (*installed_places(), *(os.path.join(place, "") for place in sorted(found)))


class Preloaded:
    """The modules that this process has imported ahead.

    Parameters
    ----------
    path
        The notebook's import path.
    own
        Folder that gpuqueue itself is found in, which is not looked at as the user's.
    watch
        Looks after the modules' files, so that ``check`` need not look at each.
    """

    def __init__(self, path: list[str], own: str, watch: Watch) -> None:
        self._watch = watch
        self._looked = False
        self._path = path
        self._began = time.time_ns()
        self._places = (*_library_places(), os.path.join(own, "gpuqueue", ""))
        self._of_the_kernel = set(sys.modules)
        self._paths = ""
        """Of the files of all modules, a NUL between any two; ``_known`` has two numbers for each.

        Not an object for each, for after a fork a look at one copies the page that it is in.
        """
        self._known = array("q")
        self._ahead: set[str] = set()
        self.roots: set[str] = set()
        self._users = [
            entry
            for entry in path
            if not os.path.join(entry, "").startswith(_library_places()) and entry != own
        ]

    def add(self, names: list[str]) -> None:
        """Import modules, in this order, with the notebook's import path.

        Raises
        ------
        Unfit
            One cannot be imported, brought in something of the user's, or left this process in a
            state that cannot be shared.
        """
        if not self.roots.issubset(names):
            raise Unfit("the notebook no longer has all that was imported")
        before = list(sys.path)
        sys.path[:] = self._path
        try:
            with _temporary_files() as made:
                for name in names:
                    if name not in sys.modules and not name.startswith(LEFT_OUT):
                        self._import(name)
        finally:
            sys.path[:] = before
        self.roots.update(names)
        self._stamp()
        if left := [path for path in made if os.path.exists(path)]:
            # the first cell to end would remove them for all
            raise Unfit(f"a library makes {left[0]} as it is imported")
        if held := [name for name in _open_files() if name.startswith(_ACCELERATORS)]:
            raise Unfit(f"a library opens {held[0]} as it is imported")

    def _import(self, name: str) -> None:
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001 - a library may do anything
            raise Unfit(f"{name} cannot be imported ahead: {error!r}") from None

    def _stamp(self) -> None:
        """Remember what the files of all modules are like."""
        stamps = dict.fromkeys(self._paths.split("\0") if self._paths else ())
        for name, module in list(sys.modules.items()):
            path = _file_of(module)
            if path is None or path in stamps:
                continue
            if name not in self._of_the_kernel and not path.startswith(self._places):
                raise Unfit(f"{name} is the user's own ({path})")
            try:
                stat = os.stat(path)
            except OSError:
                continue  # in an archive
            if stat.st_mtime_ns >= self._began:
                raise Unfit(f"{path} changed as it was imported")
            stamps[path] = None
            self._known.extend((stat.st_mtime_ns, stat.st_size))
        self._watch.add(stamps.keys() - set(self._paths.split("\0")))
        self._looked = False
        self._paths = "\0".join(stamps)
        new = sys.modules.keys() - self._of_the_kernel
        self._ahead = {name.partition(".")[0] for name in new}

    def check(self) -> None:
        """Whether a cell would still import the same.

        Raises
        ------
        Unfit
            A file has changed, or the user's own folders now have a module of a name that was
            imported.
        """
        if not (self._watch.quiet() and self._looked):
            self._look()
            self._looked = True
        for folder in self._users:
            for entry in _listed(folder):
                name = entry.partition(".")[0]
                if name in self._ahead and _is_module(os.path.join(folder, entry)):
                    raise Unfit(f"{os.path.join(folder, entry)} comes before what was imported")

    def _look(self) -> None:
        known = iter(self._known)
        for path, modified, size in zip(self._paths.split("\0"), known, known, strict=False):
            try:
                stat = os.stat(path)
            except OSError:
                raise Unfit(f"{path} is gone") from None
            if stat.st_mtime_ns != modified or stat.st_size != size:
                raise Unfit(f"{path} has changed")


@contextlib.contextmanager
def _temporary_files() -> Iterator[list[str]]:
    """Paths of the temporary files and folders that are made meanwhile."""
    import tempfile

    made: list[str] = []
    makers: dict[str, Any] = {name: getattr(tempfile, name) for name in ("mkdtemp", "mkstemp")}

    def noting(make: Any) -> Any:
        @functools.wraps(make)
        def noted(*args: Any, **words: Any) -> Any:
            result = make(*args, **words)
            made.append(os.fsdecode(result if isinstance(result, str | bytes) else result[1]))
            return result

        return noted

    for name, make in makers.items():
        setattr(tempfile, name, noting(make))
    try:
        yield made
    finally:
        for name, make in makers.items():
            setattr(tempfile, name, make)


def _file_of(module: Any) -> str | None:
    try:
        path = module.__file__
    except Exception:  # noqa: BLE001 - a module may be any object
        return None
    # torch.ops and the like are no files
    return path if isinstance(path, str) and os.path.isabs(path) else None


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_module(path: str) -> bool:
    if os.path.isdir(path):
        return os.path.exists(os.path.join(path, "__init__.py"))
    return path.endswith((".py", ".pyc", ".so"))


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found
