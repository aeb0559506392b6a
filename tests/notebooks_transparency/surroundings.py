# What a cell sees and leaves behind besides variables.
# %%
import os, sys, random, warnings, logging, locale, decimal
import numpy as np
random.seed(1); np.random.seed(2)
a = random.random(), np.random.rand()
# %%
b = random.random(), np.random.rand(2), random.gauss(0, 1)
b
# %%
import random as r2
c = r2.choice("abc"), np.random.permutation(4)
c
# %%
os.environ["MADE_HERE"] = "1"; os.environ.pop("LANGUAGE", None)
sys.path.append("/nowhere/at/all")
sys.setrecursionlimit(3210)
# %%
os.environ["MADE_HERE"], sys.path[-1], sys.getrecursionlimit()
# %%
np.set_printoptions(precision=2, suppress=True); np.seterr(divide="ignore")
np.array([1 / 3]) / np.array([0.0])
# %%
np.array([1 / 3]), np.geterr()["divide"]
# %%
warnings.filterwarnings("error", message="boo")
warnings.simplefilter("ignore", DeprecationWarning)
# %%
try:
    warnings.warn("boo")
except UserWarning as e:
    caught = str(e)
warnings.warn("gone", DeprecationWarning)
caught
# %%
logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(message)s")
log = logging.getLogger("mine"); log.setLevel(logging.DEBUG)
# %%
log.debug("shown"); logging.info("too"); logging.getLogger("other").debug("not")
# %%
decimal.getcontext().prec = 5
decimal.Decimal(1) / 3
# %%
decimal.Decimal(2) / 3
# %%
os.makedirs("sub", exist_ok=True)
%cd sub
open("here.txt", "w").write("x")
# %%
os.path.basename(os.getcwd()), os.listdir()
# %%
%cd -q ..
os.path.exists("sub/here.txt")
# %%
open("helper_mod.py", "w").write("K = 1\ndef f(): return K\n")
import helper_mod
helper_mod.f()
# %%
%load_ext autoreload
%autoreload 2
# %%
from helper_mod import f
f(), helper_mod.f is f
# %%
%xmode Plain
%precision 3
1 / 3
# %%
2 / 3
# %%
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.ast_node_interactivity = "all"
# %%
1; a
2
# %%
InteractiveShell.ast_node_interactivity = "last_expr"
# %%
import matplotlib.pyplot as plt
plt.rcParams["figure.figsize"] = (2, 1); plt.rcParams["lines.linewidth"] = 4
# %%
plt.plot([1, 2, 1]);
# %%
plt.style.use("ggplot")
fig, ax = plt.subplots(); ax.hist(np.random.randn(50)); plt.show()
# %%
%config InlineBackend.figure_formats = ["svg"]
# %%
fig, ax = plt.subplots(); ax.set_title("t"); plt.close(fig)
# %%
from sklearn import set_config, get_config
set_config(assume_finite=True)
# %%
get_config()["assume_finite"]
# %%
locale.setlocale(locale.LC_ALL, "C")
# %%
class Kept(logging.Handler):
    def __init__(self): super().__init__(); self.seen = []
    def emit(self, record): self.seen.append(record.getMessage())
kept = Kept(); logging.getLogger("mine").addHandler(kept); logging.getLogger("mine").propagate = False
# %%
logging.getLogger("mine").warning("one"); len(kept.seen)
# %%
logging.getLogger("mine").warning("two"); kept.seen
# %%
logging.addLevelName(25, "NOTICE"); logging.captureWarnings(True)
# %%
logging.getLevelName(25); warnings.warn("by logging")
# %%
logging.captureWarnings(False); logging.getLogger().setLevel(logging.DEBUG)
warnings.formatwarning = lambda m, *_, **__: f"<<{m}>>\n"
warnings.warn("formatted")
# %%
warnings.warn("formatted again")
# %%
out = sys.stdout; ip = get_ipython()
def say(*words, file=sys.stderr): print(*words, file=file)
# %%
say("to stderr"); out.write("to stdout\n"); out is sys.stdout, ip is get_ipython()
# %%
os.makedirs("lib", exist_ok=True); open("lib/inlib.py", "w").write("class Thing: pass\n")
os.chdir("lib")
sys.path.insert(0, os.getcwd())
from inlib import Thing
thing = Thing()
# %%
type(thing) is Thing, os.path.basename(os.getcwd())
