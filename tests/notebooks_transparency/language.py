# Python itself: scopes, classes, closures, iterators, exceptions.
# %%
import enum, typing, collections, dataclasses, functools, weakref, abc, operator, itertools, types, sys, copy, pickle, string
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Perm(enum.Flag):
    R = enum.auto(); W = enum.auto()
Pt = collections.namedtuple("Pt", "x y")
class TD(typing.TypedDict): a: int
class NT(typing.NamedTuple):
    a: int
    b: str = "d"
favourite = Color.RED; perms = Perm.R | Perm.W; pt = Pt(1, 2); nt = NT(3)
# %%
favourite is Color.RED, Color(2) is Color.BLUE, perms, type(pt) is Pt, nt._replace(a=9), {Color.RED: 1}[favourite]
# %%
by_color = {c: c.name for c in Color}
nt2 = NT(5, "x"); isinstance(nt2, NT), by_color[Color.BLUE]
# %%
by_color[favourite], nt2.b, [c is Color[c.name] for c in by_color]
# %%
@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: tuple = (1,)
@dataclasses.dataclass(slots=True)
class Sl:
    v: int
    w: list = dataclasses.field(default_factory=list)
    def __post_init__(self): self.w.append(self.v)
f1 = Frozen(1); s1 = Sl(4); s2 = s1
# %%
s1.v += 1; s1.w.append(f1); dataclasses.replace(f1, a=3), f1 < Frozen(2), hash(f1) == hash(Frozen(1))
# %%
s2.v, s2.w[-1] is f1, dataclasses.asdict(s1)
# %%
class Meta(type):
    registry = {}
    def __new__(m, name, bases, ns, **kw):
        cls = super().__new__(m, name, bases, ns); Meta.registry[name] = cls; return cls
    def __call__(cls, *a, **k):
        obj = super().__call__(*a, **k); obj.made_by = "meta"; return obj
class WithMeta(metaclass=Meta): pass
class Sub(WithMeta): pass
wm = WithMeta()
# %%
class Later(Sub): pass
sorted(Meta.registry), wm.made_by, type(Later()) is Meta.registry["Later"]
# %%
sorted(Meta.registry), Later().made_by, Meta.registry["Sub"] is Sub
# %%
class Positive:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, obj, kind=None): return self if obj is None else getattr(obj, self.name, 0)
    def __set__(self, obj, value):
        if value < 0: raise ValueError("negative")
        setattr(obj, self.name, value)
class Acc:
    balance = Positive()
    count = 0
    def __init__(self): Acc.count += 1
    @property
    def double(self): return self.balance * 2
    @functools.cached_property
    def slow(self): return [self.balance]
    @classmethod
    def make(cls, v): a = cls(); a.balance = v; return a
    @staticmethod
    def helper(x): return x + 1
acc = Acc.make(3)
# %%
acc.balance += 4; acc.slow.append(1); b2 = Acc.make(1); Acc.count, acc.double
# %%
Acc.count, acc.slow, acc.double, b2.helper(1), Acc.__dict__["balance"].name
# %%
class Observed: pass
obs = Observed(); ref = weakref.ref(obs); wkd = weakref.WeakKeyDictionary({obs: 1}); wvd = weakref.WeakValueDictionary(k=obs); wset = weakref.WeakSet([obs])
# %%
ref() is obs, len(wkd), len(wvd), obs in wset
# %%
wkd[obs] = 2; obs.tag = "t"
# %%
wkd[obs], ref().tag, wvd["k"] is obs
# %%
class Hooked:
    def __init__(self, v): self.v = v; self.cache = "big"
    def __getstate__(self): return {"v": self.v}
    def __setstate__(self, s): self.__dict__.update(s); self.restored = True
class Copied:
    def __init__(self, v): self.v = v
    def __reduce__(self): return (Copied, (self.v,))
cp = Copied([1])
# %%
cp.v.append(2); cp.v
# %%
cp.v
# %%
def counter_deco(fn):
    @functools.wraps(fn)
    def inner(*a):
        inner.calls += 1
        return fn(*a)
    inner.calls = 0
    return inner
@counter_deco
def g(x): return x * 2
g(1)
# %%
g(2); g.calls
# %%
g(3), g.calls, g.__wrapped__(1)
# %%
def fib_memo():
    memo = {}
    def fib(n):
        if n not in memo: memo[n] = n if n < 2 else fib(n - 1) + fib(n - 2)
        return memo[n]
    return fib, memo
fib, memo = fib_memo()
fib(5)
# %%
fib(8); len(memo)
# %%
len(memo), fib(3)
# %%
@functools.singledispatch
def kind(x): return "obj"
@kind.register
def _(x: int): return "int"
@kind.register(list)
def _(x): return "list"
kind(1), kind([]), kind("s")
# %%
@kind.register(str)
def _str(x): return "str"
kind("s")
# %%
kind("s"), kind(2.0)
# %%
from functools import partial, reduce, total_ordering, cmp_to_key
add3 = partial(operator.add, 3); itemg = operator.itemgetter(1); attrg = operator.attrgetter("x"); mc = operator.methodcaller("upper")
add3(4), itemg([1, 2]), attrg(pt), mc("a")
# %%
it = iter([1, 2, 3, 4]); en = enumerate("abc"); zp = zip([1, 2], "ab"); mp = map(str, [1, 2]); cyc = itertools.cycle([1, 2]); cnt = itertools.count(5); ch = itertools.chain([1], [2])
next(it), next(en), next(zp), next(mp), next(cyc), next(cnt), next(ch)
# %%
next(it), next(en), next(zp), next(mp), next(cyc), next(cnt), next(ch)
# %%
class Node:
    def __init__(self, v, parent=None): self.v, self.parent, self.kids = v, parent, []; parent and parent.kids.append(self)
root = Node(0); kid = Node(1, root)
# %%
grand = Node(2, kid); root.kids[0] is kid, grand.parent.parent is root
# %%
kid.kids[0] is grand, len(root.kids)
# %%
class Chain:
    def __init__(self, prev): self.prev = prev
tail = None
for _ in range(60): tail = Chain(tail)
depth = 0; c = tail
while c: depth += 1; c = c.prev
depth
# %%
tail.prev.prev.tag = "x"; tail.prev.prev.tag
# %%
class Wrapper:
    def __init__(self, inner): self._inner = inner
    def __getattr__(self, n): return getattr(self._inner, n)
w = Wrapper([3, 1])
# %%
w.sort(); w._inner
# %%
w.append(9); len(w._inner), w._inner
# %%
out = sys.stdout
def say(*a, file=sys.stderr): print(*a, file=file)
ip = get_ipython()
# %%
say("to stderr"); out.write("to stdout\n"); ip.__class__.__name__, out is sys.stdout, ip is get_ipython()
# %%
out is sys.stdout, ip is get_ipython()
# %%
T = typing.TypeVar("T")
class Stack(typing.Generic[T]):
    def __init__(self): self.items: list[T] = []
    def push(self, x: T) -> "Stack[T]": self.items.append(x); return self
st = Stack[int]().push(1)
class Proto(typing.Protocol):
    def push(self, x): ...
# %%
st.push(2); type(st) is Stack, Stack[int].__origin__ is Stack, typing.get_type_hints(Stack.push)["x"] is T
# %%
st.items, Stack[str]().push("a").items
# %%
class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
class Impl(Base):
    def f(self): return super().__init__.__name__
class Reg: pass
Base.register(Reg)
impl = Impl()
# %%
isinstance(impl, Base), issubclass(Reg, Base), impl.f()
# %%
try: Base()
except TypeError as e: msg = str(e)[:30]
msg
# %%
class Ctx:
    log = []
    def __enter__(self): self.log.append("in"); return self
    def __exit__(self, *a): self.log.append("out"); return True
with Ctx() as cx: raise ValueError
cx.log
# %%
with cx: pass
Ctx.log, cx.log is Ctx.log
# %%
class Neg(int):
    def __new__(cls, v): return super().__new__(cls, -v)
class MyDict(dict):
    def __missing__(self, k): self[k] = []; return self[k]
class MyList(list):
    extra = None
    def __init__(self, *a): super().__init__(*a); self.tag = "t"
neg, md, ml = Neg(3), MyDict(a=1), MyList([1])
# %%
md["q"].append(1); ml.append(2); ml.extra = md; neg + 1, type(neg) is Neg
# %%
md, ml, ml.tag, ml.extra is md
# %%
dd = collections.defaultdict(list); cm = collections.ChainMap({"a": 1}, {"b": 2}); ud = collections.UserDict(a=1); big = 2 ** 200; cplx = 1 + 2j; sl = slice(1, 5, 2); rng = range(3); by = bytearray(b"ab"); mv = memoryview(by)
dd["k"].append(1)
# %%
dd["z"].append(2); cm["n"] = 3; ud["b"] = 2; by.extend(b"c") if False else None; mv[0] = 65
# %%
dd, cm, ud, by, bytes(mv), sl, rng, big
# %%
x = y = [1]
def swap():
    global x, y
    x, y = y, x + [2]
swap()
x is y, y
# %%
del x
try: x
except NameError as err: told = str(err)
told
# %%
*a, b = range(4); (c, d), [e, *f] = (1, 2), "xyz"
lst = [0] * 3; lst[1:2] = [7, 8]; i = 0; i, lst[i] = 1, 99
a, b, c, d, e, f, lst
# %%
if (n := len(lst)) > 2: m = n
for k, v in {"a": 1}.items(): pass
else: fin = "else"
[z for z in range(2)]; "z" in globals(), m, k, fin
# %%
def gen():
    got = yield 1
    yield got
class Lazy:
    def __iter__(self): yield from gen()
list(gen()), list(Lazy())
# %%
match {"k": [1, {"z": 2}]}:
    case {"k": [one, {"z": zed}], **rest}: pass
one, zed, rest
# %%
import __main__
__main__.via_main = 5; vars()["via_vars"] = 6; locals()["via_locals"] = 7
sorted(n for n in globals() if n.startswith("via_"))
# %%
__name__, __doc__, "__file__" in globals(), via_main + via_vars
# %%
ns = types.SimpleNamespace(a=1); mod = types.ModuleType("mine"); mod.v = 1; prox = types.MappingProxyType({"a": ns})
ns.me = ns
# %%
ns.a = 2; ns.me is ns, prox["a"] is ns
# %%
prox["a"].a, ns.me.me is ns
# %%
ex = ValueError("v"); ex.add_note("note"); ex.extra = ns
group = ExceptionGroup("g", [ex, KeyError("k")])
# %%
list(ex.args), ex.__notes__, group.exceptions[0] is ex, ex.extra is ns
# %%
ex.add_note("two"); ex.args = ("w",); ex.extra.a = 3
# %%
ex.__notes__, list(ex.args), ns.a, str(group.exceptions[0])
# %%
codes = compile("1 + 1", "<c>", "eval"); lam = lambda q, *, r=[1]: (q, r)
eval(codes), lam(1)
# %%
lam.__kwdefaults__["r"].append(2); lam.note = "n"; lam(2)
# %%
lam(3), lam.note
# %%
import random
rs = [random.Random(1), random.SystemRandom]
r0 = rs[0].random(); random.seed("text"); random.shuffle(lst); lst
# %%
random.sample(range(100), 3), rs[0].random(), random.gauss(0, 1), random.betavariate(1, 2)
# %%
# what an object calls as it is loaded is there
import threading, re, io, array, decimal, xml.etree.ElementTree as ET
SETTINGS = {"n": 5}
def fresh_lock(): return threading.RLock()
class Locked:
    def __init__(self): self.lock = fresh_lock(); self.n = SETTINGS["n"]
    def __getstate__(self): return {"n": self.n}
    def __setstate__(self, state): self.__init__(); self.n = state["n"]
    def __repr__(self): return f"Locked({self.n})"
guarded = Locked(); behind = [guarded]
guarded
# %%
with behind[0].lock: guarded.n += 1
# %%
guarded, behind[0] is guarded, guarded.lock.acquire(blocking=False)
# %%
# objects of which more than attributes changes
text = io.StringIO("start"); raw = io.BytesIO(b"12345"); tree = ET.Element("a"); branch = ET.SubElement(tree, "b"); around = decimal.Context(prec=4)
held = {"text": text, "tree": tree, "raw": raw}
# %%
held["text"].write("XX"); raw.read(2); branch.text = "new"; tree.set("k", "v"); ET.SubElement(held["tree"], "c"); around.prec = 9
with contextlib.redirect_stdout(text): print("hidden")
# %%
text.getvalue(), text.tell(), raw.read(), ET.tostring(tree), tree[0] is branch, held["tree"] is tree, around.prec
# %%
found = re.search(r"(\d)(?P<z>x)?", "a1x"); several = list(re.finditer(r"(?<=a)b", "ab ab")); whole = re.compile("b+").fullmatch("abb", 1)
source_of_chance = random.SystemRandom()
# %%
found.groups(), found["z"], [one.span() for one in several], whole.pos, source_of_chance.random() < 1
# %%
class Only: pass
Alias = dict[str, Only]
def takes(x: Only, *rest: "Alias") -> Only: return x
# %%
def gives(x: "list[Alias]") -> "Only": return Only()
typing.get_type_hints(takes)["rest"], typing.get_type_hints(gives)
# %%
typing.get_type_hints(takes)["rest"] is Alias, "__annotations__" in vars(Only)
# %%
from __future__ import annotations
@dataclasses.dataclass
class Tree:
    left: Tree | None = None
    leaf: Leaf | None = None
class Leaf: pass
# %%
typing.get_type_hints(Tree)
# %%
import ctypes
maths = ctypes.CDLL("libm.so.6"); maths.sqrt.restype = ctypes.c_double; maths.sqrt.argtypes = [ctypes.c_double]
same = [maths]
# %%
maths.cbrt.restype = ctypes.c_double; maths.cbrt.argtypes = (ctypes.c_double,); maths.sqrt(4.0)
# %%
same[0].sqrt(9.0), maths.cbrt(27.0), same[0] is maths, ctypes.CDLL(None) is not None
