"""Which names a cell reads, binds and deletes, found from its syntax. Pure.

A name is *needed* if the cell certainly reads it before it binds it, and *wanted* if it may: a
read in a branch, after a binding in a branch, or in a function that is called who knows when.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuqueue.client.scopes import IDENTIFIER, inner_names, is_magic, names_in_text

__all__ = ["Names", "names_of"]

_DOLLAR = re.compile(r"(?<![\$\\])\$([A-Za-z_]\w*)")
_FLAGS = re.compile(r"^(?:\s*--?\w[\w-]*(?:[= ]\s*[\d.]+)?(?=\s))+\s")
_RUN_BODY = frozenset({"time", "capture", "prun", "memit", "lprun", "mprun", "debug", "scalene"})
_LISTS = frozenset({"who", "who_ls", "whos", "psearch", "reset", "reset_selective", "xdel"})
_RUN_CELLS = frozenset({"ev", "ex", "run_cell", "run_cell_async", "safe_run_module"})
"""Methods of IPython's shell that run text as code."""
_QUERIES = frozenset(
    [
        *("query", "eval", "evaluate", "sql", "execute", "run", "runctx"),
        *("run_line_magic", "run_cell_magic", "system", "getoutput", *_RUN_CELLS),
    ]
)
"""Methods that look for what a text names: of pandas, numexpr, duckdb, profilers, IPython."""
_NAMESPACE = frozenset({"globals", "locals", "vars", "dir"})
_RUN_TEXT = frozenset({"exec", "eval"})
_TEXT_BODY = frozenset(
    [
        "!",
        "bash",
        "cmd",
        "file",
        "html",
        "javascript",
        "js",
        "latex",
        "markdown",
        "perl",
        "python2",
        "pypy",
        "ruby",
        "script",
        "sh",
        "svg",
        "sx",
        "SVG",
        "HTML",
        "system",
        "writefile",
    ]
)


@dataclass
class Names:
    """What a cell does with names at its top level.

    Attributes
    ----------
    needs
        Read before it binds them.
    wants
        Perhaps read before it binds them.
    binds
        Bound, on some way through the cell.
    deletes
        Deleted without having been bound first.
    all
        It may read any name: it looks into the namespace itself, or runs text as code.
    """

    needs: set[str] = field(default_factory=set)
    wants: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    deletes: set[str] = field(default_factory=set)
    all: bool = False


def names_of(code: str, transform: Callable[[str], str] = str) -> Names:
    """Names of a cell's code, after IPython's own transformation.

    ``transform`` is applied to the code inside cell magics such as ``%%time``.

    Raises
    ------
    SyntaxError
        It is not Python.
    """
    walk = _Walk(transform)
    walk.visit(ast.parse(code))
    names = walk.names
    # a function of the cell reads what only the notebook can have
    names.needs |= walk.deferred - names.binds
    names.wants |= walk.deferred & names.binds
    names.wants -= names.needs
    return names


class _Walk(ast.NodeVisitor):
    """Goes through a cell in the order of execution."""

    def __init__(self, transform: Callable[[str], str]) -> None:
        self.names = Names()
        self.deferred: set[str] = set()
        self._transform = transform
        self._sure: set[str] = set()
        self._maybe: set[str] = set()

    # -- names -------------------------------------------------------------------------------

    def _read(self, name: str) -> None:
        if name in self._sure:
            return
        (self.names.wants if name in self._maybe else self.names.needs).add(name)

    def _later(self, name: str) -> None:
        if name not in self._sure:
            self.deferred.add(name)

    def _bind(self, name: str) -> None:
        self._sure.add(name)
        self._maybe.add(name)
        self.names.binds.add(name)

    def _unbind(self, name: str) -> None:
        if name not in self._sure:
            self.names.deletes.add(name)
        self._sure.discard(name)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id)
        elif isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        else:
            self._unbind(node.id)

    # -- statements --------------------------------------------------------------------------

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _branches(self, *bodies: Iterable[ast.AST | None]) -> None:
        """Ways of which exactly one is gone."""
        sure, maybe = set(self._sure), set(self._maybe)
        ends: list[set[str]] = []
        for body in bodies:
            self._sure, before = set(sure), self._maybe
            self._maybe = set(maybe)
            self._visit_all(body)
            ends.append(self._sure)
            self._maybe |= before
        self._sure = set.intersection(*ends)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self._visit_all([node.value, node.target])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.value, node.annotation])
        self.names.wants |= names_in_text(node.annotation) - self._sure
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all([node.value, node.target])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._branches([node.target, *node.body], [])
        self._visit_all(node.orelse)

    visit_AsyncFor = visit_For  # noqa: N815 - the name that ast looks for

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branches(node.body, [])
        self._visit_all(node.orelse)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self.visit(node.test)
        if isinstance(node, ast.If):
            self._branches(node.body, node.orelse)
        else:
            self._branches([node.body], [node.orelse])

    visit_IfExp = visit_If  # noqa: N815 - the name that ast looks for

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._branches(node.values[1:], [])

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self._visit_all([item.context_expr, item.optional_vars])
        # it may swallow an exception anywhere in its body
        self._branches(node.body, [])

    visit_AsyncWith = visit_With  # noqa: N815 - the name that ast looks for

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        before = set(self._sure)
        self._visit_all([*node.body, *node.orelse])
        ends = [self._sure]
        for handler in node.handlers:
            self._sure = set(before)
            self._visit_all([handler.type])
            if handler.name:
                # Python deletes it at the end of the handler, whatever it was before
                self.names.deletes |= {handler.name} - before
                self._bind(handler.name)
                self.names.binds.discard(handler.name)
            self._visit_all(handler.body)
            self._sure.discard(handler.name or "")
            ends.append(self._sure)
        self._sure = set(before)
        self._visit_all(node.finalbody)
        self._sure = set.intersection(*ends) | self._sure

    visit_TryStar = visit_Try  # noqa: N815 - the name that ast looks for

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self._branches(*([case.pattern, case.guard, *case.body] for case in node.cases), [])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._visit_all([node.pattern])
        if node.name:
            self._bind(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._visit_all([*node.keys, *node.patterns])
        if node.rest:
            self._bind(node.rest)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name != "*":  # what a star brings is seen when it has run
                self._bind(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import  # noqa: N815 - the name that ast looks for

    # -- scopes ------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        args = node.args
        self._visit_all([*node.decorator_list, *args.defaults, *args.kw_defaults])
        self._inside(node)
        self._bind(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast looks for

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(
            [*node.decorator_list, *node.bases, *(word.value for word in node.keywords)]
        )
        self._inside(node)
        self._bind(node.name)

    def _inside(self, node: ast.AST) -> None:
        reads, writes = inner_names(node)
        annotations = set()
        for part in ast.walk(node):
            for field_name in ("annotation", "returns"):
                said = getattr(part, field_name, None)
                if isinstance(said, ast.AST):
                    annotations |= {n.id for n in ast.walk(said) if isinstance(n, ast.Name)}
                    self.names.wants |= names_in_text(said) - self._sure
        own = {getattr(node, "name", "")}  # a function that calls itself
        for name in (reads | annotations) - own:
            self._later(name)
        self.names.all |= any(
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and (call.func.id == "globals" or (call.func.id in _RUN_TEXT and bool(call.args)))
            for call in ast.walk(node)
        )
        for name in writes:
            self._maybe.add(name)
            self.names.binds.add(name)

    def _comprehension(self, node: ast.expr) -> None:
        reads, _ = inner_names(node)
        first = node.generators[0].iter  # type: ignore[attr-defined]
        self.visit(first)
        inner = {part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr)}
        for name in sorted(reads - inner):
            self._read(name)
        for name in inner:
            self._maybe.add(name)
            self.names.binds.add(name)

    visit_ListComp = _comprehension  # noqa: N815
    visit_SetComp = _comprehension  # noqa: N815
    visit_DictComp = _comprehension  # noqa: N815
    visit_GeneratorExp = _comprehension  # noqa: N815

    def visit_TypeAlias(self, node: ast.AST) -> None:
        self._inside(node)
        self._bind(node.name.id)  # type: ignore[attr-defined]

    # -- IPython -----------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        words = [part.value for part in node.args if isinstance(part, ast.Constant)]
        method = node.func
        if isinstance(method, ast.Attribute) and method.attr in _QUERIES and not is_magic(method):
            self._perhaps_named(node)
        if isinstance(method, ast.Name) and method.id not in self._sure:
            self._text_or_namespace(method.id, node.args)
        if is_magic(method) and all(isinstance(word, str) for word in words):
            self._ipython(method.attr, [str(word) for word in words])
            self.names.all |= method.attr in _RUN_CELLS and not words

    def _perhaps_named(self, node: ast.Call) -> None:
        """A query in a language of its own may name variables, as ``@x`` or as tables."""
        arguments = [*node.args, *(word.value for word in node.keywords)]
        for part in (part for argument in arguments for part in ast.walk(argument)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self.names.wants |= set(IDENTIFIER.findall(part.value)) - self._sure

    def _text_or_namespace(self, name: str, args: list[ast.expr]) -> None:
        if name in _NAMESPACE and not args:
            self.names.all = True
        elif name in _RUN_TEXT and args:
            first = args[0]
            if len(args) == 1 and isinstance(first, ast.Constant) and isinstance(first.value, str):
                self._perhaps_code(first.value)
            else:
                self.names.all = True

    def _ipython(self, method: str, words: list[str]) -> None:
        if method in ("system", "getoutput") and words:
            self._expanded(words[0])
        elif method in _RUN_CELLS and words:
            self._perhaps_code(words[0])
        elif method == "run_line_magic" and len(words) == 2:
            if words[0] in _LISTS or (words[0] == "run" and "-i" in words[1].split()):
                self.names.all = True
            self._expanded(words[1])
            self._perhaps_code(_FLAGS.sub("", words[1] + " "))
        elif method == "run_cell_magic" and len(words) == 3:
            self._expanded(words[1])
            if words[0] in _RUN_BODY:
                self.visit(ast.parse(self._transform(words[2])))
            elif words[0] not in _TEXT_BODY:
                self._perhaps_code(words[2])

    def _expanded(self, text: str) -> None:
        """Names in ``{...}`` and after ``$``, as IPython expands them."""
        for match in _DOLLAR.finditer(text):
            self._read(match[1])
        try:
            fields = [part[1] for part in string.Formatter().parse(text) if part[1]]
        except ValueError:
            return
        for code in fields:
            try:
                self.visit(ast.parse(code.strip(), mode="eval"))
            except SyntaxError:
                continue

    def _perhaps_code(self, text: str) -> None:
        """What may be code to a magic that we do not know: its names are wanted, not needed."""
        try:
            tree = ast.parse(self._transform(text.strip()))
        except SyntaxError:
            return
        inner = _Walk(self._transform)
        inner.visit(tree)
        found = inner.names
        self.names.wants |= (found.needs | found.wants | inner.deferred) - self._sure
        self.names.binds |= found.binds
        self._maybe |= found.binds
