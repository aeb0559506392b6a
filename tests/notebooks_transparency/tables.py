# Tables of pandas: changed in place, copied on write, shown.
# %%
import pandas as pd, numpy as np
pd.set_option("display.precision", 2)
df = pd.DataFrame({"a": [1, 2, 3], "b": [0.123456, 1, 2], "c": list("xyz")})
alias, col = df, df["b"]
# %%
df
# %%
df["d"] = df.a * 2
df.loc[0, "b"] = 9
g = df.groupby("c").sum()
g
# %%
alias is df, list(alias.columns), col.tolist()
# %%
pd.set_option("display.max_rows", 2)
df.drop(columns="d", inplace=True)
thr = 1
df.query("a > @thr")
# %%
df, pd.get_option("display.max_rows")
# %%
index = pd.MultiIndex.from_tuples([("c", 1), ("c", 2), ("n", 1)]); pop = pd.Series([1, 2, 3], index=index); both = pd.DataFrame({"t": pop, "u": pop * 2})
other = pd.DataFrame({"a": [1, 2]}); named = other.index; third = pd.Series([5, 6], index=named)
# %%
pop.index.names = ["state", "year"]; other.columns.name = "cols"; other.index.name = "rows"
# %%
index.names, both, pop.index is index, named.name, third, other
# %%
other.index = ["x", "y"]; both.reset_index(inplace=True); pop.drop(("c", 1), inplace=True); third.loc[9] = 1
# %%
other, both, pop, third, named, index
