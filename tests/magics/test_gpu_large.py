"""Large arrays under ``%%gpu``: what is written, what comes back, and what is still there later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_kernel import Notebook, notebook

from gpuqueue.client import LocalClient
from gpuqueue.paths import Home

pytest.importorskip("numpy")
SIZE = 24 << 20


@pytest.fixture
def book(home: Home, tmp_path: Path) -> Iterator[Notebook]:
    with notebook(tmp_path / "work") as made:
        made.ok(f"import numpy as np\na = np.arange({SIZE // 8}.0)\nmine = a; part = a[10:20]")
        yield made


def _value(book: Notebook, text: str) -> str:
    return str(book.ok(text).result)


def test_a_large_array_goes_from_cell_to_cell(book: Notebook, home: Home) -> None:
    assert book.gpu("total = a.sum()\nmade = a * 2").error is None
    assert _value(book, "bool(total == a.sum() and (made == a * 2).all())") == "True"
    assert book.gpu("a[3] = -1\npart += 0.5\nthird = made[7]").error is None
    assert _value(book, "mine is a, part.base is a, a[3], a[10], third") == (
        "(True, True, np.float64(-1.0), np.float64(10.5), np.float64(14.0))"
    )
    # neither is written again
    for name, link in (("2/payload.0", "a"), ("2/payload.1", "made")):
        file = home.jobs / name
        assert file.stat().st_size >= SIZE, link
        assert file.stat().st_nlink == 2, link
    assert sum(file.stat().st_size for file in (home.job(2) / "1").glob("result*")) < SIZE / 10
    # now it has changed, and the job sees that
    assert _value(book, "a[3] = 8; 0") == "0"
    assert "8.0" in book.gpu("print(a[3], a[10])").stream()


def test_results_and_changes_are_there_for_another_kernel(
    book: Notebook, client: LocalClient, tmp_path: Path
) -> None:
    assert book.gpu("a[5] = 55\nmade = a + 1").error is None
    with notebook(tmp_path / "another") as other:
        assert other.run("%gpu pull 1").error is None
        assert _value(other, "a[5], made[5], made.flags.writeable") == (
            "(np.float64(55.0), np.float64(56.0), True)"
        )
    values = client.store.job(1)
    assert values.attempt == 1


def test_a_retried_cell_has_its_large_inputs(book: Notebook, home: Home) -> None:
    assert book.gpu("print(a.sum())").error is None
    assert "Job 2" in str(book.ok("%gpu retry 1").result)
    book.ok("%gpu wait 2")
    assert book.ok("%gpu logs 2").stream() == book.ok("%gpu logs 1").stream()
    assert (home.job(2) / "payload.0").stat().st_nlink == 2


def test_in_the_background_the_changes_meet_what_was_sent(book: Notebook) -> None:
    book.gpu("a[5] = 55", "--bg")
    book.ok("a[:] = 0\n%gpu wait 1")
    book.ok("%gpu pull 1")
    # the array as the job left it, and not a mixture
    assert _value(book, "mine is a, a[4], a[5], a[6]") == (
        "(True, np.float64(4.0), np.float64(55.0), np.float64(6.0))"
    )


def test_the_notebook_takes_no_second_copy(book: Notebook) -> None:
    own = r"int(__import__('re').search(r'RssAnon:\s*(\d+)', open('/proc/self/status').read())[1])"
    before = int(_value(book, own))
    assert book.gpu("big = np.ones(200 << 17)\ntotal = a.sum()").error is None
    assert _value(book, "float(big.sum())") == f"{float(200 << 17)}"
    after = int(re.sub(r"\D", "", _value(book, own)))
    assert after - before < 32 << 10
