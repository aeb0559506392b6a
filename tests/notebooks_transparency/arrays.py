# Arrays of NumPy: classes of one's own, views across classes, flags, memory maps.
# %%
import numpy as np
rec = np.zeros(3, dtype=[("n", "i4"), ("s", "U3")]); ra = rec.view(np.recarray); col = rec["n"]
ro = np.arange(5.0); ro.flags.writeable = False
class Arr(np.ndarray):
    def __new__(cls, data, unit="m"):
        o = np.asarray(data, dtype=float).view(cls); o.unit = unit; return o
    def __array_finalize__(self, o): self.unit = getattr(o, "unit", None)
ua = Arr([1, 2, 3], "km"); uv = ua[1:]; plain = np.asarray(ua)
mat = np.matrix([[1, 2], [3, 4]]); mrow = mat[0]
base = np.arange(10.0); v1 = base[::2]; v2 = base.reshape(2, 5).T; rv = base[::-1]
# %%
ra.n[0] = 5; ra[1].s = "ab"; ra.s[2] = "zz"
ua *= 2; uv.unit = "cm"; ua.note = "n"
mat[0, 0] = 9
base[:] += 1; base.flags.writeable = False
# %%
rec, ra, col, ua, ua.unit, uv, uv.unit, ua.note, mrow, plain, v1.flags.writeable, base.flags.writeable
# %%
ro[0] = 1
# %%
ro.flags.writeable = True; ro[0] = 7; base.flags.writeable = True; base[0] = -1; v1[0], rv[-1], v2[0, 0]
# %%
ro, ro.flags.writeable, base, v2, rv
# %%
del ua.note; ua.me = [ua]; ua.flags.writeable = False
# %%
ua.me[0] is ua, ua, uv, hasattr(ua, "note"), ua.flags.writeable
# %%
big = Arr(np.zeros(500_000), "big"); bv = big[10:20]; ob = np.array([[1], None], dtype=object).view(Arr); ob.unit = "o"
strided = np.arange(10.0).view(Arr)[::2]; strided.unit = "st"; e = Arr([])
dates = np.array(["2020-01-01", "2021-01-01"], "M8[D]"); dv = dates[1:]; tiny = np.arange(3); ti = tiny.view("i4")
large = np.arange(100_000.0); large.flags.writeable = False; lv = large[5:]
# %%
big[12] = 7; big.more = 1; ob[0].append(2); strided[0] = 9; dv[0] = np.datetime64("1999-09-09"); ti[0] = 77
large.flags.writeable = True; large[5] = -1
# %%
bv[2], sorted(vars(big)), ob[0], ob.unit, e.unit, strided, strided.unit, dates, tiny
# %%
lv[0], lv.flags.writeable, large.flags.writeable, type(big).__name__
# %%
class Info(np.ndarray):
    def __new__(cls, a, info=None): o = np.asarray(a).view(cls); o.info = info; return o
    def __array_finalize__(self, o): self.info = getattr(o, "info", None)
    def __reduce__(self): r = super().__reduce__(); return r[0], r[1], (r[2], self.info)
    def __setstate__(self, s): super().__setstate__(s[0]); self.info = s[1]
own = Info([1, 2, 3], 5); other = own + 1
# %%
own[0] = 50; own.info = 9; other.info
# %%
own, own.info
# %%
mm = np.memmap("mm.dat", dtype="float32", mode="w+", shape=(6,)); mm[:] = 1
mv = mm[1:3]; asarray = np.asarray(mm)
# %%
mm[2] = 5; mm.flush(); type(mm).__name__, mm.mode, mm.filename.endswith("mm.dat")
# %%
np.fromfile("mm.dat", dtype="float32"), mm[2], mv, type(mv).__name__, mv.mode, asarray
# %%
mv[0] = 8
# %%
np.fromfile("mm.dat", dtype="float32"), mm
# %%
mr = np.memmap("mm.dat", dtype="float32", mode="r", shape=(6,)); mc = np.memmap("mm.dat", dtype="float32", mode="c", shape=(6,))
# %%
mr[0] = 1
# %%
mc[0] = 3; mc, mr.sum(), mr.flags.writeable
# %%
mc, np.fromfile("mm.dat", dtype="float32")
# %%
np.save("s.npy", np.arange(6).reshape(2, 3).T); lm = np.load("s.npy", mmap_mode="r+"); lm[0] = 9; lm
# %%
lm[1] = 8; lm.flush()
# %%
np.load("s.npy"), lm
