# What comes back: the same objects, shared as before, of the same classes.
# %%
import collections, dataclasses, random
import numpy as np
hist, conf = [], {"a": [1]}
inner = conf["a"]
arr = np.arange(6.0)
view = arr[2:5]
grid = arr.reshape(2, 3)
log = []
def note(v): log.append(v); return len(log)
@dataclasses.dataclass
class Point:
    x: int
    tags: list = dataclasses.field(default_factory=list)
class Slotted:
    __slots__ = ("v", "__dict__")
    def __init__(self, v): self.v = v
p, s = Point(1), Slotted(1)
q, same_tags = p, p.tags
deq, cnt, od = collections.deque([1], 4), collections.Counter("ab"), collections.OrderedDict(b=1)
rng, pyrng = np.random.default_rng(3), random.Random(4)
gen_list = iter([1, 2, 3])
ring = []; ring.append(ring)
# %%
hist.append(1)
inner.append(2)
conf["new"] = hist
both = (hist, inner)
# %%
conf["new"] is hist, both[1] is conf["a"], conf
# %%
arr[2] = 50
view[1] = 60
grid[0, 0] = -1
double = arr * 2
top = double[:2]
# %%
view, grid, double.flags.writeable
# %%
top[0] = 5
double[0], arr[3] is view[1]
# %%
note("one"), note("two")
# %%
log
# %%
p.x += 1; p.tags.append("t"); s.v = 2; s.extra = hist
# %%
q.x, same_tags, s.v, s.extra is hist
# %%
deq.extend([2, 3]); cnt.update("abc"); od["a"] = 2; od.move_to_end("b")
deq, cnt, od
# %%
rng.random(), pyrng.random()
# %%
rng.integers(100), pyrng.randint(0, 100)
# %%
next(gen_list)
# %%
next(gen_list), ring[0] is ring
# %%
ring.append(1)
# %%
ring[0] is ring, len(ring)
# %%
Point.kind = "changed"
def method(self): return self.x * 10
Point.times = method
p.times(), type(p) is Point
# %%
class Child(Point):
    def more(self): return self.times() + base
base = 3
c = Child(5)
c.more()
# %%
base = 4
c.more(), isinstance(c, Point), Child.__mro__[1] is Point
# %%
p = q = None
del deq, cnt
hist, hist2 = [hist, hist], hist
# %%
hist[0] is hist[1], hist[0] is hist2, "deq" in globals()
# %%
words = {"a", "b"}; frozen = frozenset(words); big = 10**50; none = None; rest = ...
words.add("c")
structured = np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]); structured["a"][0] = 3
masked = np.ma.array([1, 2, 3], mask=[0, 1, 0])
objects = np.array([hist2, None], dtype=object)
objects[0] is hist2
# %%
words.discard("a"); structured["b"] += 1; masked[0] = 9; objects[1] = words
structured, masked, objects[1] is words
# %%
def f(x, acc=[]):
    acc.append(x)
    f.calls = getattr(f, "calls", 0) + 1
    return list(acc)
f(1)
# %%
f(2), f.calls
# %%
partly = np.ma.array([1, 2, 3], mask=[0, 1, 0]); both = [partly]
# %%
both[0].mask[0] = True; partly.data[2] = 9; partly.fill_value = 7
# %%
partly, partly.fill_value, both[0] is partly
