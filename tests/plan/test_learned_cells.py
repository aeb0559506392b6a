"""What counts as the same work, for cells, notebooks, functions and commands."""

import pytest

from gpuqueue.model import JobKind, Request
from gpuqueue.plan import History, kind_of, words_of

CELL = "x = f(1000)\nfor i in x:\n    print(i)\n"


def _cell(source: str) -> str | None:
    return words_of(JobKind.CELL, source, "/home/ann")


@pytest.mark.parametrize(
    "other",
    [
        "# what it does\nx = f(1000)\n\nfor i in x:  \n    # each\n    print(i)",
        "\n\nx = f(1000)\nfor i in x:\n    print(i)\n\n",
    ],
    ids=["comments", "blank lines"],
)
def test_a_cell_is_its_code(other: str) -> None:
    assert _cell(other) == _cell(CELL)


@pytest.mark.parametrize(
    "other",
    [CELL.replace("1000", "2000"), CELL + "print(x)", CELL.replace("    print", "print"), ""],
    ids=["another number", "another line", "another block", "nothing"],
)
def test_other_code_is_another_cell(other: str) -> None:
    """Unlike in a command, a large number in code says how much there is to do."""
    assert _cell(other) != _cell(CELL)


def test_a_cell_with_magics_is_told_by_its_lines() -> None:
    assert _cell("!ls\n%time f()") == _cell("# there\n!ls\n%time f()")
    assert _cell("!ls\n%time f()") != _cell("!ls\n%time g()")


def test_what_counts_as_the_same_is_short() -> None:
    assert len(_cell("x = 1\n" * 100_000) or "") < 100


def test_a_cell_is_no_command_of_the_same_text() -> None:
    assert _cell("train.py") != words_of(JobKind.SCRIPT, "train.py", "/")


def test_a_notebook_is_its_file() -> None:
    here = words_of(JobKind.NOTEBOOK, "work/a.ipynb", "/home/ann/work")
    assert here == words_of(JobKind.NOTEBOOK, "/home/ann/work/a.ipynb", "/home/ann/work")
    assert here != words_of(JobKind.NOTEBOOK, "a.ipynb", "/home/ann/other")


def test_nameless_functions_and_kernels_are_never_the_same() -> None:
    assert words_of(JobKind.FUNCTION, "<lambda>()", "/") is None
    assert words_of(JobKind.KERNEL, "python3", "/") is None
    assert words_of(JobKind.FUNCTION, "train(lr=0.1)", "/") == "train(lr=0.1)"


def test_a_cell_teaches_its_owner_alone() -> None:
    history, request = History(), Request()
    words = _cell(CELL) or ""
    history.add(kind_of("ann", words, request), 40.0)
    estimate = history.estimate(kind_of("ann", _cell(f"# again\n{CELL}") or "", request))
    assert estimate is not None
    assert (estimate.run_time, estimate.learned, estimate.sound) == (40.0, True, False)
    assert history.estimate(kind_of("bob", words, request)) is None
