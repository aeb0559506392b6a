"""A notebook cell as a payload: its source, the variables it reads, what it may give back."""

from __future__ import annotations

import ast
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuqueue.client.imports import spare_files, spare_words
from gpuqueue.client.names import Names, names_of
from gpuqueue.client.payload import Payload, python_payload
from gpuqueue.client.reach import annotated, runs_text
from gpuqueue.errors import InvalidRequest, PayloadError
from gpuqueue.model import JobKind
from gpuqueue.run.patches import Mentions, Place, find, mentions_of

__all__ = ["cell_payload"]

_HISTORY = re.compile(r"_{1,3}|_\d+|_i{1,3}|_i\d+|In|Out|_[io]h")
"""Names of IPython's own that are sent if the cell reads them."""

_PAST = re.compile(
    r"^\s*%(hist|history|macro|recall|rep|rerun|save|notebook|pastebin|edit)\b", re.MULTILINE
)
"""Magics that look for what earlier cells were."""


def cell_payload(
    source: str,
    namespace: Mapping[str, Any],
    *,
    shell: Any = None,
    ins: Sequence[str] | None = None,
    outs: Sequence[str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    waited: bool = False,
    shown: int | None = None,
) -> Payload:
    """A cell and the variables that it reads, ready to be queued.

    Parameters
    ----------
    source
        The cell as typed; magics, ``!commands`` and ``await`` included.
    namespace
        The notebook's variables. Only those that the cell uses are touched.
    shell
        The IPython shell whose cell it is, for its input transformers and what it put into the
        namespace itself.
    ins, outs
        Names to send and to bring back, instead of those found from the source.
    waited
        Whether somebody waits for it. Then large files may reach the disk a little later.
    shown
        The most text that is kept for being shown, beside the log.

    Raises
    ------
    PayloadError
        It is not Python (its cause is then the SyntaxError), or a variable cannot be sent: the
        message names the variable, the part of it that is to blame, and a way out.
    """
    if not source.strip():
        raise PayloadError("cell", "is empty")
    transform = _transformer(shell)
    # the number of the cell that runs now; what IPython itself calls by that name has changed
    count = shell.displayhook.prompt_count if shell is not None else 1
    typed = _with_first_line(_one_line(_from_margin(source), shell))
    names = _names(typed, transform, f"Cell In[{count}]", shell)
    # loaded only now, so that a syntax error is told without it
    from gpuqueue.run.loghandlers import handlers_of_ones_own
    from gpuqueue.run.printers import printers_of_ones_own
    from gpuqueue.run.shellstate import hidden_names
    from gpuqueue.run.sources import names_in, sources

    hidden = hidden_names(namespace, getattr(shell, "user_ns_hidden", {}))
    # before anything of the user's is run by pickling it
    surroundings = _surroundings(shell)
    magics = _magics(shell, source)
    names.all |= _looks_around(magics, namespace)
    wanted = _chosen(names, namespace, hidden, ins)
    patches = _patches(shell, namespace)
    extras: dict[str, Any] = {place.key: value for place, value in patches.items()}
    if shell is not None:
        extras |= handlers_of_ones_own() | printers_of_ones_own()
    if any(magics.values()):
        extras["<magics>"] = magics
    dumped, needs = _pickled(
        wanted, names.needs if ins is None else set(wanted), namespace, hidden, extras
    )
    if shell is not None and _PAST.search(source):
        surroundings["history"] = list(shell.history_manager.input_hist_raw)
        surroundings["parsed"] = list(shell.history_manager.input_hist_parsed)
    surroundings["sources"] = sources(shell, names_in(dumped.objects.values()))
    for name in outs or ():
        if not name.isidentifier():
            raise InvalidRequest("out", f"{name!r} is not a name")
    return python_payload(
        JobKind.CELL,
        command=source.strip("\n"),
        tag=f"{_where()}[{count}]",
        files={
            "payload": dumped.pieces,
            "surroundings": pickle.dumps(surroundings),
            **spare_files(),
        },
        large=dumped.large,
        cwd=cwd,
        env=env,
        extra={
            "source": typed,
            "inputs": sorted(wanted),
            "needs": sorted(needs),
            "binds": sorted(names.binds),
            "deletes": sorted(n for n in names.deletes if n in namespace and n not in wanted),
            "outs": None if outs is None else list(outs),
            "execution_count": count,
            "argv_of_kernel": list(sys.argv),
            "waited": waited,
            **spare_words(),
            **({} if shown is None else {"shown": shown}),
        },
        flush=not waited,
        objects=dumped.objects,
        notes=tuple(
            f"{place} is in the job as its library has it: {dumped.problems[place.key]}"
            for place in patches
            if place.key in dumped.problems
        ),
    )


def _patches(shell: Any, namespace: Mapping[str, Any]) -> dict[Place, Any]:
    """What the notebook's cells have set on modules and classes, see ``run/patches.py``."""
    if shell is None:
        return {}
    said = Mentions()
    transform = shell.transform_cell
    for source in shell.history_manager.input_hist_raw:
        said.add(mentions_of(source, transform))
    return find(said, namespace)


def _surroundings(shell: Any) -> dict[str, Any]:
    """What a cell sees besides its variables, see ``run/ambient.py``."""
    from gpuqueue.run.ambient import take

    std = sys.stdlib_module_names
    imported = {name for name in list(sys.modules) if "." not in name and name[0] != "_"} - std
    states = take() if shell is not None else {}
    return {"states": states, "imported": sorted(imported)}


def _magics(shell: Any, source: str) -> dict[str, dict[str, Any]]:
    """Magics that the notebook has defined itself and the cell may use."""
    if shell is None:
        return {}
    from gpuqueue.run.shellstate import own_magics

    all_of_them = own_magics(shell)
    named = {
        name
        for magics in all_of_them.values()
        for name in magics
        if name in source or "lsmagic" in source
    }
    # and what they are other names of
    named |= {
        getattr(magics[name], "magic_name", name)
        for magics in all_of_them.values()
        for name in named & magics.keys()
    }
    return {
        kind: {name: one for name, one in magics.items() if name in named}
        for kind, magics in all_of_them.items()
    }


def _looks_around(magics: Mapping[str, Mapping[str, Any]], namespace: Mapping[str, Any]) -> bool:
    """Whether a magic of the notebook's own is given all variables, or looks for them itself."""
    own = [one for kind in magics.values() for one in kind.values()]
    return any(getattr(one, "needs_local_scope", False) for one in own) or runs_text(own, namespace)


def _where() -> str:
    path = os.environ.get("JPY_SESSION_NAME", "")
    return Path(path).stem[:40] if path.endswith(".ipynb") else "cell"


def _transformer(shell: Any) -> Callable[[str], str]:
    if shell is not None:
        return shell.transform_cell  # type: ignore[no-any-return]
    from IPython.core.inputtransformer2 import TransformerManager

    manager: Any = TransformerManager  # it has no types of its own
    return manager().transform_cell  # type: ignore[no-any-return]


def _one_line(source: str, shell: Any) -> str:
    """What a cell of one line means that is no Python, such as ``ls`` or the name of a macro.

    IPython looks at that only where there is but one line, and in a job there is one above it.
    """
    if shell is None or len(source.strip().splitlines()) != 1:
        return source
    try:
        code = shell.input_transformer_manager.transform_cell(source)
        if len(code.splitlines()) != 1:
            return source
        with shell.builtin_trap:
            meant = str(shell.prefilter_manager.prefilter_lines(code))
    except Exception:  # noqa: BLE001 - it has prefilters of the user's own
        return source
    # a macro of cells that have the magic would queue them from within the job
    return source if meant.strip() == code.strip() or "'gpu'" in meant else meant


def _from_margin(source: str) -> str:
    """The cell without the indentation of its first line, which IPython takes off as well."""
    from IPython.core import inputtransformer2

    of_ipython: Any = inputtransformer2  # it has no types of its own
    body = source.lstrip("\n")
    above = source[: len(source) - len(body)]
    return above + "".join(of_ipython.leading_indent(body.splitlines(keepends=True)))


def _with_first_line(source: str) -> str:
    """The cell with a line in place of ``%%gpu``, so that errors name the lines that one sees."""
    return source if source.lstrip().startswith("%%") else f"# %%gpu\n{source}"


def _names(source: str, transform: Callable[[str], str], where: str, shell: Any) -> Names:
    try:
        code = transform(source)
        if shell is not None:  # whose flags have it say of some errors what a plain cell says
            compile(code, where, "exec", shell.compile.flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        names = names_of(code, transform)
        # what the parser lets pass and the compiler does not, such as a return outside a function
        compile(code, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        error.filename = where
        raise PayloadError("cell", f"line {error.lineno}: {error.msg}") from error
    return names


def _chosen(
    names: Names, namespace: Mapping[str, Any], hidden: set[str], ins: Sequence[str] | None
) -> dict[str, Any]:
    if ins is None:
        hidden = hidden - {name for name in names.needs if _HISTORY.fullmatch(name)}
        found = {n for n in (names.needs | names.wants) - hidden if n in namespace}
        if names.all or runs_text([namespace[name] for name in found], namespace):
            found |= {name for name in namespace if not name.startswith("_")} - hidden
        found |= annotated(found, namespace) - hidden
        return {name: namespace[name] for name in sorted(found)}
    missing = [name for name in ins if name not in namespace]
    if missing:
        raise InvalidRequest("in", f"there is no variable {', '.join(missing)}")
    return {name: namespace[name] for name in ins}


def _pickled(
    wanted: dict[str, Any],
    needs: set[str],
    namespace: Mapping[str, Any],
    hidden: set[str],
    extras: Mapping[str, Any],
) -> tuple[Any, set[str]]:
    """The container of the inputs; what is only wanted and cannot be sent is left out."""
    from gpuqueue.run.values import dump_values

    dumped = dump_values({**wanted, **extras}, namespace=namespace, leave=hidden, beside="payload")
    for name, problem in dumped.problems.items():
        if name in extras:
            continue
        if name in needs:
            raise PayloadError(
                name,
                f"{problem}. Make it inside the cell, or leave it out of {name}; "
                "--in a,b sends only the variables you name.",
            ) from None
        del wanted[name]
    return dumped, needs & set(wanted)
