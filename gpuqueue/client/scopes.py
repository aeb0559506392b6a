"""Names that the scopes inside a statement take from around them, or that its annotations name."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable
from typing import TypeGuard

__all__ = ["IDENTIFIER", "inner_names", "is_magic", "names_in_text"]

IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def names_in_text(annotation: ast.AST) -> set[str]:
    """Names in the texts of an annotation, such as ``list["Node"]``, which somebody may look up."""
    return {
        name
        for part in ast.walk(annotation)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for name in IDENTIFIER.findall(part.value)
    }


def _scopes(table: symtable.SymbolTable) -> Iterable[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes(child)


def inner_names(node: ast.AST) -> tuple[set[str], set[str]]:
    """Globals that the scopes inside a node read, and those that they assign."""
    if isinstance(node, ast.expr):
        node = ast.Expr(node)
    code = ast.unparse(ast.fix_missing_locations(ast.Module([node], [])))  # type: ignore[list-item]
    # inside a function await is allowed, and names at its top become no globals
    body = "\n".join(f"  {line}" for line in code.split("\n"))
    try:
        top = symtable.symtable(code, "<cell>", "exec")
    except SyntaxError:
        top = symtable.symtable(f"async def _():\n{body}\n", "<cell>", "exec").get_children()[0]
    reads: set[str] = set()
    writes: set[str] = set()
    for scope in _scopes(top):
        for symbol in scope.get_symbols():
            if symbol.is_global() or (scope.get_type() == "class" and symbol.is_local()):
                # what a class body reads of its own names may come from outside, as in x = x
                if symbol.is_referenced():
                    reads.add(symbol.get_name())
                if symbol.is_declared_global() and symbol.is_assigned():
                    writes.add(symbol.get_name())
    return reads, writes


def is_magic(method: ast.expr) -> TypeGuard[ast.Attribute]:
    """Whether something is a method of ``get_ipython()``, as IPython writes magics."""
    return (
        isinstance(method, ast.Attribute)
        and isinstance(method.value, ast.Call)
        and isinstance(method.value.func, ast.Name)
        and method.value.func.id == "get_ipython"
    )
