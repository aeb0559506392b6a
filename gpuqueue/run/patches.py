"""Attributes that a notebook has set on modules and classes that are not its own.

``np.random.helper = f``, ``pd.DataFrame.head2 = f``, ``helper.DEBUG = True``: neither variables nor
part of any object that is sent. They are found without looking through all of memory:

- what a cell's source *stores* by name: ``a.b.c = v``, ``del a.b.c``, ``setattr(a.b, "c", v)``,
  at any depth, where ``a.b`` means a module or a class of a module;
- on the modules and classes that the cells *mention* anyhow, whatever is of ``__main__``:
  functions, classes, and what is made of them, by whichever way it came there.

What a library's code sets on modules that no cell names is not seen.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuqueue.run.arrival import is_here, when_imported

__all__ = [
    "GONE", "PATCH", "Mentions", "Place", "changed_patches", "find", "mentions_of", "put_patches",
]  # fmt: skip

PATCH = "<patch "
"""Begins the name of a value that is to be set: ``<patch torch.nn functional.relu>``."""

Dotted = tuple[str, ...]
_NOT_OURS = ("sys", "gpuqueue", "IPython", "ipykernel", "traitlets")
"""Modules that belong to the process, or have their settings carried otherwise."""
_MISSING = object()
GONE = object()
"""In place of the value of an attribute that has been deleted."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """An attribute of a module, or of a class in one.

    Attributes
    ----------
    module
        The module's name.
    path
        From the module to the attribute: one name, or the class's names and one more.
    """

    module: str
    path: Dotted

    def __str__(self) -> str:
        return ".".join((self.module, *self.path))

    @property
    def key(self) -> str:
        """The name of its value in a file of values."""
        return f"{PATCH}{self.module} {'.'.join(self.path)}>"


def _place_in(key: str) -> Place:
    """The place that a value's name says."""
    module, _, path = key.removeprefix(PATCH).removesuffix(">").partition(" ")
    return Place(module, tuple(path.split(".")))


@dataclass
class Mentions:
    """What the source of cells says about attributes.

    Attributes
    ----------
    stores
        Ways to attributes that are set or deleted.
    owners
        Ways to whatever is mentioned.
    aliases
        Names that are imported anywhere, and what they mean.
    """

    stores: set[Dotted] = field(default_factory=set)
    owners: set[Dotted] = field(default_factory=set)
    aliases: dict[str, Dotted] = field(default_factory=dict)

    def add(self, other: Mentions) -> None:
        """Take in those of one more cell."""
        self.stores |= other.stores
        self.owners |= other.owners
        self.aliases |= other.aliases


# -- what the source says ---------------------------------------------------------------------


def _dotted(node: ast.AST) -> Dotted | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return (node.id, *reversed(names))


@functools.lru_cache(1 << 12)
def mentions_of(source: str, transform: Callable[[str], str] = str) -> Mentions:
    """What one cell's source says; nothing if it is not Python."""
    found = Mentions()
    try:
        tree = ast.parse(transform(source))
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            way = _dotted(node)
            if way is not None and isinstance(node.ctx, ast.Load):
                found.owners.add(way)
            elif way is not None and len(way) > 1:
                found.stores.add(way)
        elif isinstance(node, ast.Import):
            for name in node.names:
                whole = tuple(name.name.split("."))
                found.aliases[name.asname or whole[0]] = whole if name.asname else whole[:1]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                found.aliases[name.asname or name.name] = (*node.module.split("."), name.name)
        elif isinstance(node, ast.Call):
            _call(node, found, transform)
    return found


def _call(node: ast.Call, found: Mentions, transform: Callable[[str], str]) -> None:
    words = [part.value if isinstance(part, ast.Constant) else None for part in node.args]
    if isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
        way = _dotted(node.args[0]) if node.args else None
        if way is not None and len(words) > 1 and isinstance(words[1], str):
            found.stores.add((*way, words[1]))
        return
    magic = isinstance(node.func, ast.Attribute) and node.func.attr == "run_cell_magic"
    if magic and len(words) == 3 and isinstance(words[2], str):
        found.add(mentions_of(words[2], transform))


# -- what it means ----------------------------------------------------------------------------


def _step(owner: Any, name: str) -> Any:
    """An attribute of a module or class, without running anybody's code."""
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, _MISSING)
    if isinstance(owner, type):
        return next(
            (kind.__dict__[name] for kind in owner.__mro__ if name in kind.__dict__), _MISSING
        )
    return _MISSING


def _meaning(way: Dotted, namespace: Mapping[str, Any], aliases: Mapping[str, Dotted]) -> Any:
    value = namespace.get(way[0], _MISSING)
    if value is _MISSING and way[0] in aliases:
        whole = aliases[way[0]]
        value = sys.modules.get(whole[0], _MISSING)
        way = (way[0], *whole[1:], *way[1:])
    for name in way[1:]:
        value = _step(value, name)
    return value


def _home(owner: Any) -> Place | None:
    """Where a module or class of others is found; the path of a module is empty."""
    path: Dotted = ()
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
    elif isinstance(owner, type):
        module, path = str(owner.__module__), tuple(owner.__qualname__.split("."))
    else:
        return None
    if module == "__main__" or module.partition(".")[0] in _NOT_OURS:
        return None
    found: Any = sys.modules.get(module, _MISSING)
    for name in path:
        found = _step(found, name)
    return Place(module, path) if found is owner else None


def _of_main(value: Any, namespace: Mapping[str, Any]) -> bool:
    """Whether something is the notebook's own, or made of what is."""
    if isinstance(value, types.FunctionType):
        return value.__globals__ is namespace
    if isinstance(value, type):
        return value.__module__ == "__main__"
    parts = [getattr(value, name, None) for name in _PARTS.get(type(value).__name__, ())]
    return type(value).__module__ == "__main__" or any(
        part is not None and _of_main(part, namespace) for part in parts
    )


_PARTS = {
    "staticmethod": ("__func__",),
    "classmethod": ("__func__",),
    "method": ("__func__",),
    "property": ("fget", "fset", "fdel"),
    "cached_property": ("func",),
    "partial": ("func",),
    "partialmethod": ("func",),
    "_lru_cache_wrapper": ("__wrapped__",),
    "Accessor": ("_accessor",),
    "CachedAccessor": ("_accessor",),
}
"""What wrappers are made of; the last two are how pandas has accessors of one's own."""


def _owners(said: Mentions, namespace: Mapping[str, Any]) -> Iterator[Any]:
    for way in said.owners:
        yield _meaning(way, namespace, said.aliases)
    tables: Any = sys.modules.get("pandas")
    for name in ("DataFrame", "Series", "Index"):
        yield getattr(tables, name, None)


def find(said: Mentions, namespace: Mapping[str, Any]) -> dict[Place, Any]:
    """Attributes that the cells behind ``said`` have set, as they are now, without those gone."""
    found: dict[Place, Any] = {}
    seen: set[int] = set()
    for owner in _owners(said, namespace):
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        home = _home(owner)
        if home is None:
            continue
        for name, value in list(vars(owner).items()):
            if _of_main(value, namespace):
                found[Place(home.module, (*home.path, name))] = value
    for way in said.stores:
        owner = _meaning(way[:-1], namespace, said.aliases)
        home = _home(owner)
        if home is not None and way[-1] in vars(owner):
            found[Place(home.module, (*home.path, way[-1]))] = vars(owner)[way[-1]]
    return dict(sorted(found.items()))


# -- putting it there -------------------------------------------------------------------------


def _put(place: Place, value: Any) -> None:
    owner: Any = sys.modules[place.module]
    for name in place.path[:-1]:
        owner = _step(owner, name)
    if value is not GONE:
        setattr(owner, place.path[-1], value)
    elif place.path[-1] in vars(owner):
        delattr(owner, place.path[-1])


def put_patches(values: Mapping[str, Any], gone: Iterable[str] = ()) -> dict[Place, Any]:
    """Set the attributes that have come among values, and delete those gone; returns them.

    What belongs to a module that is not here is set as soon as it is imported.
    """
    found = {_place_in(key): value for key, value in values.items() if key.startswith(PATCH)}
    found |= {_place_in(key): GONE for key in gone}
    for place, value in found.items():
        if is_here(place.module):
            with contextlib.suppress(Exception):  # a module of another version
                _put(place, value)
        else:
            when_imported(place.module, str(place), functools.partial(_put, place, value))
    return found


def changed_patches(
    said: Mentions, namespace: Mapping[str, Any], before: Mapping[Place, Any]
) -> dict[Place, Any]:
    """Attributes that a cell has set since these were there; ``GONE`` for those it has deleted."""
    now = find(said, namespace)
    changed = {place: v for place, v in now.items() if before.get(place, GONE) is not v}
    for place in before:
        if place not in now and is_here(place.module) and _of(place) is not before[place]:
            changed[place] = _of(place)
    return changed


def _of(place: Place) -> Any:
    value: Any = sys.modules[place.module]
    for name in place.path[:-1]:
        value = _step(value, name)
    return vars(value).get(place.path[-1], GONE) if hasattr(value, "__dict__") else GONE
