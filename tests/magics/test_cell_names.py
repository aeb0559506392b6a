"""Which names a cell needs, wants, binds and deletes."""

from __future__ import annotations

import ast
import builtins
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from gpuqueue.client.names import Names, names_of
from gpuqueue.client.reach import runs_text


def of(source: str) -> Names:
    manager = TransformerManager()
    names = names_of(manager.transform_cell(source), manager.transform_cell)
    ours = set(dir(builtins)) | {"get_ipython"}
    names.needs -= ours
    names.wants -= ours
    return names


@pytest.mark.parametrize(
    ("source", "needs", "wants", "binds"),
    [
        ("y = x", "x", "", "y"),
        ("x = 1\nprint(x)", "", "", "x"),
        ("x += 1", "x", "", "x"),
        ("x.k = v", "x v", "", ""),
        ("x[i] = v", "x i v", "", ""),
        ("a, (b, *c) = v", "v", "", "a b c"),
        ("x: T = v", "T v", "", "x"),
        ("x: T", "T", "", ""),
        ("(w := v)", "v", "", "w"),
        ("f'{x!r:>{n}}'", "x n", "", ""),
        ("for i in v: s = i\nprint(i, s)", "v", "i s", "i s"),
        ("while t: s = 1\ns", "t", "s", "s"),
        ("if t: a = 1\nelse: a = 2\na", "t", "", "a"),
        ("if t: a = 1\na", "t", "a", "a"),
        ("p and (q := p)\nq", "p", "q", "q"),
        ("with c(p) as f: d = f\nd", "c p", "d", "f d"),
        ("import a.b, c as d\nfrom e import f as g\na, d, g", "", "", "a d g"),
        ("try:\n a = v\nexcept E as x: b = x\na", "v E", "a", "a b"),
        ("try:\n a = 1\nfinally:\n b = 2\na, b", "", "", "a b"),
        ("match v:\n case {'k': m, **r}: pass\n case [h, *t] if g: pass", "v g", "", "m r h t"),
        ("match v:\n case K(a=u) | K(b=u): pass", "v K", "", "u"),
        ("[x * k for x in v if x]", "k v", "", ""),
        ("{x: (lambda: x + k) for x in v}", "k v", "", ""),
        ("any((hit := x) for x in v)\nhit", "v", "hit", "hit"),
        ("[y for x in v for y in x]", "v", "", ""),
        ("def f(a, b=d): return a + g + f(a)", "d g", "", "f"),
        ("def f(): return later\nlater = 1", "", "later", "f later"),
        ("now = 1\ndef f(): return now", "", "", "f now"),
        ("@deco\ndef f(a: T) -> R: x = 1; return x", "deco T R", "", "f"),
        ("def f():\n global g\n g = h", "h", "", "f g"),
        ("def f():\n x = 1\n def g():\n  nonlocal x\n  x = y\n return g", "y", "", "f"),
        ("lambda a, b=d: a + b + c", "d c", "", ""),
        ("class C(B, metaclass=M):\n w = v\n def m(self): return g", "B M v g", "", "C"),
        ("class C:\n x = x", "x", "", "C"),
        ("async def f():\n return await g()\nawait f()", "g", "", "f"),
        ("async for i in v(): pass", "v", "", "i"),
        ("[i async for i in v()]", "v", "", ""),
        ("!echo {x} and $y and $$z", "x y", "", ""),
        ("out = !ls {d['k']}", "d", "", "out"),
        ("%time r = f(x)", "", "f x", "r"),
        ("%timeit -n 3 f(x)", "", "f x", ""),
        ("%cd $where", "where", "", ""),
        ("x?", "", "x", ""),
        ("%%time\na = v\na", "v", "", "a"),
        ("%%capture kept\nprint(v)", "v", "kept", ""),
        ("%%bash -s {x}\necho $y", "x", "", ""),
        ("%%unheard_of\nr = v", "", "v", "r"),
        ("t.query('a > @k and b')", "t", "a k and b", ""),
        ("k = 1\nt.query(f'{c} > @k + @m')", "t c", "m", "k"),
        ("db.sql('select x from t').df()", "db", "select x from t", ""),
    ],
)
def test_table(source: str, needs: str, wants: str, binds: str) -> None:
    names = of(source)
    if "capture" not in source:
        assert names.wants == set(wants.split())
    assert names.needs == set(needs.split())
    assert names.binds >= set(binds.split())
    assert names.binds <= set(binds.split()) | {"_"}


@pytest.mark.parametrize(
    ("setup", "value", "found"),
    [
        ("def f(a): return eval(a)", "f", True),
        ("def f(a): return [lambda: exec(a)]", "f", True),
        ("def g(a): return globals()[a]\ndef f(a): return g(a)", "f", True),
        ("class C:\n def __repr__(self): return eval('x')", "C()", True),
        ("class C:\n @property\n def p(self): return eval('x')\nclass D(C): pass", "D()", True),
        ("import functools\ndef f(a): return eval(a)\np = functools.partial(f, 'x')", "p", True),
        (
            "def deco(f):\n def g(*a): return f(*a)\n return g\n@deco\ndef f(a): return eval(a)",
            "f",
            True,
        ),
        ("def f(a): return a.eval() + evaluate(a)", "f", False),
        ("def eval(a): return a\ndef f(a): return eval(a)", "f", False),
        ("import ast", "ast.literal_eval", False),
        ("def f(): return f()", "f", False),
    ],
)
def test_functions_that_run_text(setup: str, value: str, found: bool) -> None:
    space: dict[str, object] = {"__name__": "__main__"}
    exec(setup, space)
    assert runs_text([eval(value, space)], space) is found


def test_deletes() -> None:
    assert of("del x").deletes == {"x"}
    assert of("del x").needs == set()
    assert of("x = 1\ndel x").deletes == set()
    # what an error was caught as is gone afterwards
    assert of("try: f()\nexcept E as x: pass").deletes == {"x"}
    assert of("x = 1\ntry: f()\nexcept E as x: pass").deletes == set()
    assert of("del x[0]").needs == {"x"}


if sys.version_info >= (3, 12):

    def test_type_parameters() -> None:
        names = of(
            "def f[T: B](a: T) -> T: return g\nclass C[T](P[T]): pass\ntype A[T] = list[T] | Q"
        )
        assert names.binds == {"f", "C", "A"}
        assert names.needs == {"B", "g", "P", "Q"}


def test_what_is_no_python_is_refused() -> None:
    for source in ("def f(:", "x = ", "match = = 1"):
        with pytest.raises(SyntaxError):
            of(source)


NAMES = st.sampled_from("abcd")


@st.composite
def programs(draw: st.DrawFn, depth: int = 2) -> str:
    """Small programs over four names."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 7 if depth else 3))
        one, two = draw(NAMES), draw(NAMES)
        if kind in (0, 1):
            lines.append(
                f"{one} = {draw(st.sampled_from([two, '1', f'[{two} for {two} in (1,)]']))}"
            )
        elif kind == 2:
            lines.append(f"{one} += {two}" if draw(st.booleans()) else f"print({one})")
        elif kind == 3:
            lines.append(f"({one} := {two})")
        else:
            head = {
                4: f"if {one}:", 5: f"for {one} in ({two},):", 6: "while False:",
                7: f"def {one}({two}=1):",
            }[kind]  # fmt: skip
            body = draw(programs(depth - 1))
            lines += [head, *(f"  {line}" for line in body.split("\n"))]
    return "\n".join(lines)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_a_cell_finds_all_it_reads(source: str) -> None:
    """Run with exactly what was found: a name that is missing then is missing in plain too."""
    names = names_of(source)
    have = {name: 5 for name in names.needs | names.wants if name in "abcd"}
    space = {"print": lambda *_: None, **have}
    try:
        exec(compile(ast.parse(source), "<cell>", "exec"), space)
    except NameError as error:
        plain = {"print": lambda *_: None, **dict.fromkeys("abcd", 5)}
        with pytest.raises(type(error)):
            exec(compile(ast.parse(source), "<cell>", "exec"), plain)
    except TypeError:
        pass  # adding a function to a number
    bound = {
        name for name, value in space.items() if name in "abcd" and have.get(name) is not value
    }
    assert bound <= names.binds
