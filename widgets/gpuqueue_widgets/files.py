"""Where the panel's files are."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

__all__ = ["as_one_module", "panel_folder", "stylesheet"]

_IMPORT = re.compile(r"""from '\./([\w-]+)\.mjs'""")


def panel_folder() -> Path:
    """The folder of the panel's modules: in the package or, in a checkout, beside it."""
    inside = Path(__file__).with_name("panel")
    return inside if inside.is_dir() else Path(__file__).parents[1] / "panel"


def stylesheet() -> str:
    """The panel's style."""
    return (panel_folder() / "panel.css").read_text(encoding="utf-8")


@cache
def as_one_module(entry: str) -> str:
    """One ES module that stands for ``entry`` and all that it imports.

    A widget's module is text without an address, so ``./name.mjs`` means nothing in it. Here each
    of the modules becomes an address of the browser's own (``blob:``), those first that others
    import; nothing is rewritten but these addresses.
    """
    sources: dict[str, str] = {}

    def add(name: str) -> None:
        text = (panel_folder() / f"{name}.mjs").read_text(encoding="utf-8")
        for other in _IMPORT.findall(text):
            if other not in sources:
                add(other)
        sources[name] = text

    add(entry)
    # what is in a script element must not close it, should a front end put it into one
    modules = json.dumps(list(sources.items())).replace("</", "<\\/")
    return f"""\
const address = new Map();
for (const [name, text] of {modules}) {{
  const code = text.replace(
    /from '\\.\\/([\\w-]+)\\.mjs'/g, (_, other) => `from '${{address.get(other)}}'`,
  );
  address.set(name, URL.createObjectURL(new Blob([code], {{ type: 'text/javascript' }})));
}}
const found = await import(address.get({json.dumps(entry)}));
export default found.default;
"""
