# Everything that a cell can show.
# %%
import sys, os, time, subprocess
from IPython.display import HTML, Markdown, display, clear_output, update_display, JSON
print("one"); print("err", file=sys.stderr); display(HTML("<b>x</b>")); print("two")
Markdown("*m*")
# %%
h = display("a0", display_id=True)
for i in range(3): h.update(f"a{i}")
# %%
print("wiped"); clear_output(wait=True); print("kept")
# %%
print("wiped"); clear_output()
# %%
for i in range(5000): sys.stderr.write(f"\r{i}/5000")
# %%
from tqdm import tqdm
from tqdm.auto import tqdm as auto
for _ in tqdm(range(30), desc="bar", ncols=60): pass
# %%
print("\x1b[31mred\x1b[0m plain")
# %%
os.write(1, b"raw\n");
# %%
os.write(2, b"raw err\n");
# %%
subprocess.run([sys.executable, "-c", "print('child'); import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\n')"]);
# %%
print("before"); sys.stdout.flush(); subprocess.run(["echo", "from child"]);
# %%
print("after")
# %%
!echo shell; echo shell err >&2
# %%
sys.stdout.write("partial, "); sys.stdout.write("line\n");
# %%
x = 5
x;
# %%
class Rich:
    def _repr_html_(self): return "<i>r</i>"
    def _repr_mimebundle_(self, **k): return {"text/plain": "r", "application/x-mine+json": {"k": 1}}
    def __repr__(self): return "Rich()"
Rich()
# %%
import matplotlib.pyplot as plt
plt.plot([1, 3, 2]); print("under"); plt.figure(); plt.bar([1, 2], [3, 4])
# %%
None
# %%
print("é ü 漢字 😀"); "漢字"
# %%
import pprint; pprint.pprint({"k": list(range(40))}); help(len)
# %%
import warnings
warnings.warn("look out")
# %%
import logging; logging.warning("logged")
# %%
display({"a": 1}, [2], metadata={"k": {}}); display(JSON({"z": 1}))
# %%
print(*range(200), sep="\n")
# %%
_ = 3
"after"
# %%
print("half a pair: sur\udce9")
# %%
class BadHtml:
    def _repr_html_(self): raise ValueError("bad html")
    def __repr__(self): return "BadHtml()"
BadHtml()
# %%
for i in tqdm(range(3), desc="outer", ncols=60):
    for j in tqdm(range(4), desc="inner", leave=False, ncols=60): pass
# %%
fig, ax = plt.subplots(); line, = ax.plot([1, 2, 3]); plt.close(fig)
# %%
line.set_ydata([3, 2, 1]); ax.set_title("second"); fig
# %%
ax.get_title(), list(line.get_ydata()), line is ax.lines[0], fig.axes[0] is ax
