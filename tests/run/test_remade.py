"""Kinds of Python's own that pickle would refuse, copy or change, in another process."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuqueue.run.values import dump_values, parse_values

NOTEBOOK = """
import functools, enum, typing, dataclasses, weakref, abc, types
class Meta(type):
    reg = {}; made = 0
    def __new__(m, name, bases, ns, **kw):
        c = super().__new__(m, name, bases, ns); Meta.reg[name] = c; Meta.made += 1; return c
    def __init__(c, *a, **k): super().__init__(*a); c.inited = True
class W(metaclass=Meta): pass
class AMeta(abc.ABCMeta):
    def __new__(m, *a, **k): Meta.made += 100; return super().__new__(m, *a, **k)
class AB(metaclass=AMeta):
    @abc.abstractmethod
    def f(self): ...
class Plug:
    subs = []
    def __init_subclass__(cls, **kw): super().__init_subclass__(**kw); Plug.subs.append(cls)
class P1(Plug): pass
@dataclasses.dataclass(slots=True)
class Sl: v: int
class Pr: __slots__ = ("__p", "q")
class NT(typing.NamedTuple): a: int
class Neg(int):
    def __new__(cls, v): return super().__new__(cls, -v)
class Up(str):
    def __new__(cls, v): return super().__new__(cls, v + "!")
class C:
    @functools.cached_property
    def slow(self): return [1]
class O: pass
o = O()
wk, wv = weakref.WeakKeyDictionary({o: 1}), weakref.WeakValueDictionary(k=o)
ws = weakref.WeakSet([o])
by = bytearray(b"abcd"); mv = memoryview(by); mv2 = mv.cast("H")
d = {"a": 1}; mp = types.MappingProxyType(d)
neg, up, sl, nt, c = Neg(3), Up("x"), Sl(1), NT(2), C(); up.note = 1
pr = Pr(); pr.q = 1
"""

THERE = """
import sys
from gpuqueue.run.values import load_file
loaded = load_file(sys.argv[1])
assert loaded.problems == {}, loaded.problems
v = loaded.values
assert v['Meta'].reg == {'W': v['W']}, v['Meta'].reg
assert v['Meta'].made == 101 and v['W'].inited, v['Meta'].made
class Z(metaclass=v['Meta']): pass
assert v['Meta'].reg['Z'] is Z
assert v['Plug'].subs == [v['P1']], v['Plug'].subs
class P2(v['Plug']): pass
assert v['Plug'].subs[1] is P2
assert not hasattr(v['sl'], '__dict__') and v['sl'].v == 1 and not hasattr(v['nt'], '__dict__')
assert v['neg'] == -3 and v['up'] == 'x!' and v['up'].note == 1
try: v['AB'](); assert 0
except TypeError: pass
v['c'].slow.append(2); assert v['c'].slow == [1, 2]
o = v['o']; assert v['wk'][o] == 1 and v['wv']['k'] is o and o in v['ws']
v['mv'][0] = 65; assert v['by'] == b'Abcd' and v['mv2'][0] == 0x6241
v['d']['b'] = 2; assert v['mp']['b'] == 2
assert v['pr'].q == 1 and not hasattr(v['pr'], '__dict__')
"""


def _sent() -> tuple[dict[str, Any], bytes]:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, space)
    values = {
        name: value
        for name, value in space.items()
        if not name.startswith("__") and not hasattr(value, "__spec__")
    }
    dumped = dump_values(values, namespace=space)
    assert dumped.problems == {}
    return space, b"".join(map(bytes, dumped.pieces))


def test_in_another_process_they_are_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "values"
    path.write_bytes(_sent()[1])
    subprocess.run([sys.executable, "-c", THERE, str(path)], check=True)


def test_where_a_class_is_known_its_metaclass_notices_nothing() -> None:
    space, data = _sent()
    values = parse_values(io.BytesIO(data)).values
    assert values["W"] is space["W"]
    assert space["Meta"].reg["W"] is space["W"]
    assert space["Meta"].made == 101
    assert space["Plug"].subs == [space["P1"]]


def test_a_long_chain_of_objects() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "class Node:\n    def __init__(self, to): self.to = to\n"
        "def grow(n):\n    last = None\n    for _ in range(n): last = Node(last)\n    return last\n"
        "def nest(n):\n"
        "    def after(f): return lambda: f\n"
        "    last = None\n    for _ in range(n): last = after(last)\n    return last\n",
        space,
    )
    limit = sys.getrecursionlimit()
    values = {"chain": space["grow"](10_000), "closures": space["nest"](2_000)}
    dumped = dump_values(values, namespace=space)
    assert dumped.problems == {}
    assert sys.getrecursionlimit() == limit
    loaded = parse_values(io.BytesIO(b"".join(map(bytes, dumped.pieces))))
    depth, node = 0, loaded.values["chain"]
    while node is not None:
        depth, node = depth + 1, node.to
    assert depth == 10_000


def test_one_without_end_is_told() -> None:
    class Endless:
        def __reduce__(self) -> Any:
            return Endless, (), {"more": Endless()}

    dumped = dump_values({"x": Endless(), "y": 1})
    assert "recursion" in str(dumped.problems["x"])
    assert list(dumped.problems) == ["x"]
