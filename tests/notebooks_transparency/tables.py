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
