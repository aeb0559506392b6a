# What libraries share, register or keep for themselves.
# %%
import numpy as np, torch, pandas as pd, logging, sys, itertools, io, warnings
from torch import nn
from torch.nn.utils import parametrizations
a = np.arange(6.0).reshape(2, 3); t = torch.from_numpy(a); n = torch.zeros(3); x = n.numpy()
t[0, 0] = 50; a[0, 0]
# %%
t[0, 1] = 60; a[1, 0] = 70; n.add_(1); x[2] = 9
a, t, n, x
# %%
u = torch.from_numpy(a[1]); y = x[1:]; np.add(a, 1, out=a); y[0] = 7
u, t, n
# %%
u[0] = -1; x += 1; a, t, y, n
# %%
rec = np.zeros(3, dtype=[("a", int), ("b", float)]); row = rec[1]; of_record = rec.view(np.recarray)[2]
row["b"] = 5.5; rec
# %%
row["a"] = 4; of_record.a = 8; rec["b"][0] = 2.5; rec, row
# %%
row, of_record, type(of_record).__name__, rec
# %%
pd.DataFrame({f"a long name {i}": range(2) for i in range(18)})
# %%
normed = parametrizations.weight_norm(nn.Linear(2, 2)); weight = normed.weight.detach().clone()
# %%
normed.eval(); torch.equal(normed.weight, weight), normed.training, type(normed).__name__
# %%
sorted(name for name, _ in normed.named_parameters()), normed.training, normed(torch.ones(1, 2)).shape
# %%
from tqdm.auto import tqdm
tqdm.pandas(desc="rows", disable=True)
# %%
pd.Series(range(3)).progress_apply(lambda v: v + 1).tolist()
# %%
log = logging.getLogger("mine"); log.setLevel(logging.DEBUG); log.propagate = False
handler = logging.StreamHandler(sys.stdout); handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
log.addHandler(handler)
# %%
class Shout(logging.Filter):
    def filter(self, record):
        record.msg = record.msg.upper()
        return True
log.info("one"); handler.addFilter(Shout()); log.info("two")
# %%
log.info("three"); log.handlers[0] is handler, len(log.handlers)
# %%
log.removeHandler(handler); log.info("four"); len(log.handlers)
# %%
len(log.handlers), handler.filters[0].filter.__name__
# %%
kept = logging.FileHandler("kept.log", "w"); log.addHandler(kept); log.info("to a file")
# %%
log.info("and more"); open("kept.log").read(), log.handlers[0] is kept
# %%
log.info("and on"); log.removeHandler(kept); kept.close(); open("kept.log").read()
# %%
f = 1
with open("kept.log") as f: first = f.readline()
f.closed, f.name
# %%
f.closed, f.mode, first
# %%
part = itertools.islice(range(20), 2, 12, 3); next(part)
# %%
next(part), next(part)
# %%
e = "before"
try: 1 / 0
except ZeroDivisionError as e: print(e)
# %%
e = "again"
# %%
try: 1 / 0
except ZeroDivisionError as e: print(e)
# %%
"e" in globals()
# %%
class Celsius:
    def __init__(self, degrees): self.degrees = degrees
get_ipython().display_formatter.formatters["text/html"].for_type(Celsius, lambda one: f"<b>{one.degrees}</b>")
get_ipython().display_formatter.formatters["text/plain"].for_type(Celsius, lambda one, p, cycle: p.text(f"{one.degrees} C"));
# %%
Celsius(21)
# %%
html = get_ipython().display_formatter.formatters["text/html"]
# %%
html.for_type(Celsius, lambda one: f"<i>{one.degrees}</i>"); Celsius(22)
# %%
html is get_ipython().display_formatter.formatters["text/html"], Celsius(23)
# %%
import sympy
sympy.init_printing(use_latex="mathjax", use_unicode=True)
# %%
sympy.sqrt(sympy.Symbol("x") ** 2 + 1) / 3
# %%
pair = {7, 15}; some = {30, 10, 20, 62}; many = {i ** 3 for i in range(40)}; nested = [pair, {"k": many}]
print(pair, some, many)
# %%
print(pair, some, many); pair.add(23); some.discard(10); many.add(5)
# %%
print(pair, many, nested[0] is pair, nested[1]["k"] is many)
# %%
open("noisy.py", "w").write("print('loaded')\nvalue = 1\ndef get(): return value\n");
# %%
import noisy
# %%
noisy.get()
# %%
import noisy as again; from noisy import get; get is again.get
# %%
  indented = 1
  other = 2
# %%
indented, other
# %%
print("x"
# %%
echo automagic
# %%
pwd
