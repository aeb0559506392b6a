# Magics, shell lines and errors inside a cell.
# %%
base, n = 10, 4
# %%
%%time
foo = sum(range(base))
# %%
%time bar = foo + n
bar
# %%
%%capture kept
print("hidden"); inner_name = foo
# %%
kept.stdout, inner_name
# %%
%%bash
echo from bash
# %%
!echo total={n} and $n
out = !echo {n * 2}
out[0]
# %%
%%writefile script.py
made_by_run = 7
print("ran", __name__)
# %%
%run script.py
made_by_run
# %%
%%timeit -n1 -r1 -q
base + 1
# %%
from IPython.core.magic import register_cell_magic, register_line_magic
@register_cell_magic
def twice(line, cell):
    get_ipython().run_cell(cell); get_ipython().run_cell(cell)
@register_line_magic
def hello(line): return f"hello {line} {base}"
# %%
%%twice
print("again", n)
# %%
%hello you
# %%
%env MADE_BY_MAGIC=2
# %%
%env MADE_BY_MAGIC
# %%
%%html
<b>bold</b>
# %%
%%python
print("other process")
# %%
def fails(d):
    return d["missing"]
fails({})
# %%
before_error = [n]
n.append(1)
# %%
before_error
# %%
raise ValueError("boom\nsecond line")
# %%
class Own(Exception):
    def __init__(self, who, much): super().__init__(f"{who}: {much}"); self.who = who
raise Own("sam", 3)
# %%
try:
    raise Own("pat", 1)
except Own as e:
    keep = e
keep.who
# %%
assert n == 5, "not five"
# %%
if True print("syntax")
# %%
undefined_name
# %%
import sys; sys.exit(3)
# %%
%who_ls int
# %%
%matplotlib inline
import matplotlib.pyplot as plt
plt.plot([1]);
# %%
%alias_magic tt time
# %%
%pwd
# %%
import asyncio
async def slow(v):
    await asyncio.sleep(0.01); return v
done = await asyncio.gather(slow(1), slow(n))
task = asyncio.create_task(slow(3)); got = await task; del task
done, got
# %%
try:
    await slow("x") / 2
finally:
    print("finally")
# %%
%alias say_hi echo hi %s
# %%
%say_hi there
# %%
import contextlib, io, inspect
def in_two(n):
    if n == 0: raise ValueError("deep")
    in_two(n - 1)
# %%
in_two(2)
# %%
print(inspect.getsource(in_two))
# %%
def by_text(): return eval("base + n")
class Shown:
    def __repr__(self): return str(eval("base"))
# %%
by_text(), Shown()
# %%
try: raise ExceptionGroup("eg", [ValueError(1), KeyError(2)])
except* ValueError as g: caught = len(g.exceptions)
except* KeyError: pass
caught
# %%
try:
    try: 1 / 0
    except ZeroDivisionError as e: raise KeyError("k") from e
except KeyError as e: kept_error = e
type(kept_error.__cause__).__name__
# %%
class Weird(Exception):
    def __str__(self): return "weird str"
again = Weird(1, 2); again.add_note("a note")
raise again
# %%
vars(again), again.__notes__
# %%
exec("def f(:")
# %%
%unknown_magic
# %%
class NoRepr:
    def __repr__(self): raise RuntimeError("repr fails")
NoRepr()
# %%
import matplotlib.pyplot as plt
plt.plot([1]); raise KeyboardInterrupt("mine")
# %%
with contextlib.redirect_stdout(io.StringIO()) as held: print("captured"); display("not captured")
held.getvalue()
# %%
%%script python3
print("script", 1 + 1)
# %%
%%sx
echo a
# %%
%alias_magic --line other_name timeit
# %%
%other_name -n1 -r1 pass
# %%
%alias_magic -p "-n1 -r1" yet_another other_name
# %%
%yet_another pass
# %%
get_ipython().ev("base + 1"), get_ipython().run_cell("made_inside = base + 5\nmade_inside").result
# %%
get_ipython().push({"pushed": made_inside}); shell = get_ipython()
# %%
shell.ev("pushed + base"), shell.user_ns["base"]
# %%
from IPython.core.magic import needs_local_scope, register_line_cell_magic
@register_line_cell_magic
@needs_local_scope
def both(line, cell=None, local_ns=None): return line, cell, local_ns["base"]
# %%
%both x
# %%
%%both y
text
# %%
%config InlineBackend.figure_format = "svg"
# %%
%config InlineBackend.figure_format
# %%
%macro first_cell 1
# %%
%reset -f
# %%
"base" in globals(), len(Out)
