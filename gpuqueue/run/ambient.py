"""What a cell sees besides its variables: library settings, random states and the like.

The notebook takes what it has (``surroundings.py`` has the table), the job puts it in place, and
after the cell the job takes it again; what is then different goes back. A library that has not been
imported is never imported for this: its state waits until somebody imports it.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Mapping

from gpuqueue.run.arrival import is_here, keep_filters, stop_waiting, when_imported
from gpuqueue.run.libraries import LIBRARIES
from gpuqueue.run.surroundings import SURROUNDINGS, Surrounding

__all__ = ["forget", "note", "put", "settled", "take"]

_PUT_WITH = {"matplotlib_inline.config": "matplotlib"}
"""Where a state is put when another module than its own is imported."""
_waiting: dict[str, bytes] = {}
"""States of libraries that are not here yet; whoever takes the surroundings takes them along."""
_noted: dict[str, bytes] = {}
"""What was taken ahead and is so still: it need not be looked at again. Empty once a cell runs."""


def note() -> None:
    """Remember what libraries have, so that to put the same and to take it once more costs nothing.

    For a process in which nobody's code runs before they are put.
    """
    _noted.update(take({"logging", *(one.name for one in LIBRARIES)}))


def forget() -> None:
    """Look at everything from now on: somebody's code runs."""
    _noted.clear()


def settled() -> dict[str, bytes]:
    """The surroundings once all have been put; from now on everything is looked at."""
    found = take()
    forget()
    return found


def take(names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The surroundings as they are here, pickled one by one; those that cannot be are left out."""
    import cloudpickle

    found = {}
    for one in SURROUNDINGS:
        if one.name in _noted and (names is None or one.name in names):
            found[one.name] = _noted[one.name]
        elif (names is None or one.name in names) and is_here(one.module):
            with contextlib.suppress(Exception):  # a library of an unknown version
                found[one.name] = cloudpickle.dumps(one.take(), protocol=5)
        elif one.name in _waiting and (names is None or one.name in names):
            found[one.name] = _waiting[one.name]
    return found


def put(
    states: Mapping[str, bytes], *, imported: Iterable[str] = (), wait: bool = True
) -> list[str]:
    """Make the surroundings what they were where they were taken; returns what could not be.

    What belongs to a library that is not here yet waits, if asked to, until somebody imports it.
    Importing one of ``imported``, which have been imported where the states are from, changes no
    warning filters.
    """
    failed = []
    if wait:
        keep_filters(imported)
    for one in SURROUNDINGS:
        data = states.get(one.name)
        if data is None or data == _noted.get(one.name):
            continue
        _noted.pop(one.name, None)
        module = _PUT_WITH.get(one.module, one.module)
        if is_here(module):
            try:
                one.put(pickle.loads(data))
            except Exception:  # noqa: BLE001 - a library of another version
                failed.append(one.name)
            else:
                stop_waiting(one.name)
                _waiting.pop(one.name, None)
        elif wait:
            _put_later(module, one, data)
    return failed


def _put_later(module: str, one: Surrounding, data: bytes) -> None:
    _waiting[one.name] = data

    def arrived() -> None:
        del _waiting[one.name]
        one.put(pickle.loads(data))

    when_imported(module, one.name, arrived)
