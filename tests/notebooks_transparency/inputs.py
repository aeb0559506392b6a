# What a cell reads: every way in which a name can be read.
# %%
import functools, math
base, gone, items = 10, 1, [3, 1, 2]
class Net:
    made = 0
    def __init__(self, k): self.k = k; Net.made += 1
    def go(self): return helper(self) + base
def helper(net): return net.k * 2
def deco(fn):
    @functools.wraps(fn)
    def wrap(*a): return fn(*a) + base
    return wrap
@deco
def plus(v): return v + 1
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
# %%
net = Net(4)
net.go(), plus(1), even(10), Net.made
# %%
squares = [base * i for i in items]
nested = {k: (lambda v=k: v + base)() for k in items if k > len(squares) - 3}
total = sum(x for x in squares if x > base)
f"{base:>{len(items)}} {total!r}"
# %%
del gone
base += 1
if (n := len(items)) > 2:
    base -= 1
match {"k": base}:
    case {"k": mk}: pass
try:
    1 / 0
except ZeroDivisionError as exc:
    err = type(exc).__name__
with open("made.txt", "w") as fh:
    fh.write("1")
del fh
# %%
def setg():
    global fresh
    fresh = [base]
setg()
import os.path as osp
from math import *
first, *rest = items
fresh, osp.basename("a/b"), floor(pi), rest
# %%
class Child(Net):
    scale: int = base
    def go(self): return super().go() * self.scale
child = Child(1)
isinstance(child, Net), child.go()
# %%
part = functools.partial(helper, child)
part(), child.go.__func__ is Child.go
# %%
def counter():
    count = 0
    def step():
        nonlocal count
        count += 1
        return count
    return step
step = counter()
step()
# %%
step(), step()
# %%
_ , __
# %%
Out[max(Out)], In[1][:13]
# %%
def later(): return defined_later + base
defined_later = 5
later()
# %%
async def ping(v): return v + base
async def agen():
    for i in range(3): yield i
got = [await ping(i) async for i in agen()]
async for last in agen(): pass
got, last
# %%
exec("from_exec = base * 2")
globals()["by_globals"] = from_exec
sorted(n for n in ("from_exec", "by_globals") if n in globals())
# %%
assert (lambda *a, **k: (a, k))(*items, **{"z": base}) == ((3, 1, 2), {"z": 10})
@functools.lru_cache
def cached(v): return v * base
cached(3), cached.__wrapped__(2)
