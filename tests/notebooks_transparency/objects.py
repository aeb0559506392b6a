# Objects that are only one of their kind, or change in other ways than by their attributes.
# %%
import itertools
class Single:
    only = None
    def __new__(cls):
        if cls.only is None: cls.only = super().__new__(cls); cls.only.n = 0
        return cls.only
class Keyed:
    known = {}
    def __new__(cls, key):
        if key not in cls.known: o = super().__new__(cls); o.key = key; o.hits = 0; cls.known[key] = o
        return cls.known[key]
class ByMeta(type):
    made = {}
    def __call__(cls, *a):
        if cls not in cls.made: cls.made[cls] = super().__call__(*a)
        return cls.made[cls]
class Settings(metaclass=ByMeta):
    def __init__(self): self.v = {"a": 1}
sg, m, c = Single(), Keyed("a"), Settings()
# %%
Single().n += 1; m.hits += 1; Keyed("a").hits += 1; Settings().v["b"] = 2; Single() is sg, Keyed("b").hits
# %%
sg.n, Single() is sg, Keyed("a") is m, m.hits, sorted(Keyed.known), c.v, Settings() is c
# %%
items = [4, 5, 6]
it = iter(items); next(it); z = zip(it, itertools.count()); tee1, tee2 = itertools.tee([1, 2, 3]); next(tee1)
zl = itertools.zip_longest([1], [2, 3]); rp = itertools.repeat(1, 3); cy = itertools.cycle("ab"); grp = itertools.groupby("aabb")
# %%
next(tee1), next(z), next(zl), next(rp), next(cy)
# %%
list(tee2), list(zl), list(rp), next(cy), list(it)
# %%
k, g = next(grp)
k
# %%
k2, g2 = next(grp); list(g2), k2
# %%
en = enumerate("abcd"); next(en); cnt = itertools.count(5); hold = {"en": en, "t": (cnt, [1]), "deep": [(en, cnt)]}; tup = hold["t"]
class Batches:
    def __init__(self): self.it = enumerate(items); self.seen = []
    def step(self): self.seen.append(next(self.it)); return self.seen[-1]
bt = Batches()
# %%
next(hold["en"]), next(cnt), bt.step()
# %%
next(en), next(hold["t"][0]), next(hold["deep"][0][1]), hold["en"] is en, bt.step(), tup is hold["t"]
# %%
list(bt.it), hold["deep"][0][0] is en, hold["deep"][0][1] is cnt
