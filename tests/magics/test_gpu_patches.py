"""Attributes set on modules and classes of others: in the job as in the notebook, and back."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_kernel import Notebook, notebook

from gpuqueue.paths import Home
from gpuqueue.run.patches import find, mentions_of


@pytest.fixture
def book(home: Home, tmp_path: Path) -> Iterator[Notebook]:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "helper.py").write_text(
        "DEBUG = False\nCOUNT = 0\nGONE = 1\n"
        "def tell(): return 'original'\n"
        "def both(): return tell(), DEBUG\n"
        "class Base:\n    def name(self): return 'base'\n"
    )
    with notebook(folder) as made:
        yield made


def test_what_a_notebook_has_patched_is_patched_in_the_job(book: Notebook) -> None:
    book.ok(
        "import helper, json, math as m\n"
        "from helper import Base\n"
        "word = 'patched'\n"
        "def tell(): return word\n"
        "helper.tell = tell\n"
        "helper.DEBUG = True\n"
        "m.mine = lambda v: v + 1\n"
        "def name(self): return 'mine'\n"
        "setattr(Base, 'name', name)\n"
        "for n in ('a', 'b'): setattr(Base, n, property(lambda self, n=n: n * 2))\n"
        "json.JSONEncoder.default = lambda self, o: 'json'\n"
        "del helper.GONE"
    )
    told = (
        "helper.both(), m.mine(1), Base().name(), Base().a + Base().b, json.dumps([object()]), "
        "helper.tell is tell, Base.__module__"
    )
    expected = "(('patched', True), 2, 'mine', 'aabb', '[\"json\"]', True, 'helper')"
    assert book.ok(told).result == expected
    ran = book.gpu(told)
    assert (ran.error, ran.result) == (None, expected)
    assert ran.stream() == ""
    # a function of the notebook's still sees the notebook's variables
    book.ok("word = 'new'")
    assert book.gpu("helper.tell()").result == "'new'"


def test_what_a_cell_patches_comes_back(book: Notebook) -> None:
    book.ok("import helper\ndef old(): return 'old'\nhelper.tell = old\nhelper.extra = 5")
    ran = book.gpu(
        "def tell(): return 'from the job'\n"
        "helper.tell = tell\n"
        "helper.COUNT += 1\n"
        "helper.Base.twice = lambda self: self.name() * 2\n"
        "del helper.extra\n"
        "import json\njson.made_here = tell"
    )
    assert ran.error is None
    assert (
        book.ok(
            "import json\n"
            "helper.both()[0], helper.tell is tell, helper.COUNT, helper.Base().twice(), "
            "hasattr(helper, 'extra'), json.made_here is tell"
        ).result
        == "('from the job', True, 1, 'basebase', False, True)"
    )
    # and goes on to the next job
    assert book.gpu("helper.COUNT += 1\nhelper.both(), helper.COUNT").result == (
        "(('from the job', False), 2)"
    )
    assert book.ok("helper.COUNT").result == "2"


def test_one_that_cannot_be_carried_is_named(book: Notebook) -> None:
    book.ok(
        "import helper, threading\nguard = threading.Lock()\n"
        "def tell(): return guard\nhelper.tell = tell"
    )
    ran = book.gpu("helper.tell()")
    assert ran.result == "'original'"
    assert "helper.tell" in ran.stream("stderr")
    assert "lock" in ran.stream("stderr")


def test_a_library_that_the_job_imports_late_is_patched_then(book: Notebook) -> None:
    pytest.importorskip("numpy")
    book.ok("import numpy as np\nnp.linalg.half = 0.5\nnp.random.mine = 3")
    ran = book.gpu("import sys\nbefore = 'numpy' in sys.modules\nimport numpy\nnumpy.linalg.half")
    assert ran.result == "0.5"


def test_accessors_of_pandas(book: Notebook) -> None:
    pytest.importorskip("pandas")
    book.ok(
        "import pandas as pd\n"
        "@pd.api.extensions.register_dataframe_accessor('mine')\n"
        "class Mine:\n"
        "    def __init__(self, df): self.df = df\n"
        "    def size(self): return self.df.size\n"
        "pd.DataFrame.head2 = lambda self: len(self.head(2))\n"
        "df = pd.DataFrame({'a': [1, 2, 3]})"
    )
    assert book.gpu("df.mine.size(), df.head2()").result == "(3, 2)"


SOURCES = {
    "x.y = 1": {("x", "y")},
    "x.y.z += 1": {("x", "y", "z")},
    "for x.y in v: pass": {("x", "y")},
    "with open() as x.y, z: pass": {("x", "y")},
    "(a, x.y) = v": {("x", "y")},
    "def f():\n  class C:\n    x.y: int = 1": {("x", "y")},
    "setattr(x.y, 'z', v); delattr(x, 'k'); setattr(x, name, v)": {("x", "y", "z"), ("x", "k")},
    "x[0].y = 1; f().z = 2; print(x.y)": set(),
    "%%time\nx.y = 1": {("x", "y")},
    "x.y = (": set(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_cell_stores(source: str) -> None:
    from IPython.core.inputtransformer2 import TransformerManager

    transform = TransformerManager().transform_cell
    assert mentions_of(source, transform).stores == SOURCES[source]


def test_only_what_is_of_others_is_a_patch() -> None:
    import json.decoder

    class Mine:
        pass

    Mine.__module__ = "__main__"
    space = {"json": json, "Mine": Mine, "own": types.ModuleType("__main__")}
    said = mentions_of("Mine.k = 1; own.k = 1; json.decoder.scan = f; import sys; sys.k = 1")
    assert find(said, space) == {}  # nothing has been set
    json.decoder.scan = 5  # type: ignore[attr-defined]
    try:
        assert {str(place): value for place, value in find(said, space).items()} == {
            "json.decoder.scan": 5
        }
    finally:
        del json.decoder.scan  # type: ignore[attr-defined]
