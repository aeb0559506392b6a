"""What is told of a failed job: its last words, and the user's own line."""

import pytest

from gpuqueue.run.ended import failure_told

SCRIPT = """\
loading
Traceback (most recent call last):
  File "/home/ann/train.py", line 7, in <module>
    main()
  File "/home/ann/train.py", line 4, in main
    model(x)
  File "/opt/env/lib/python3.11/site-packages/torch/nn/module.py", line 99, in __call__
    return forward(x)
ValueError: wrong shape
"""


def test_a_traceback_gives_the_error_and_the_line_of_ones_own() -> None:
    assert failure_told(SCRIPT) == {
        "error": "ValueError: wrong shape",
        "line": "train.py, line 4: model(x)",
    }


def test_of_several_tracebacks_the_last_counts() -> None:
    handled = SCRIPT.replace("train.py", "other.py").replace("wrong", "small")
    told = failure_told(f"{handled}\n{SCRIPT}")
    assert told is not None
    assert told["line"] == "train.py, line 4: model(x)"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", None),
        ("  \n\n", None),
        ("make: *** [all] Error 2\n", "make: *** [all] Error 2"),
        ("10%\r20%\rCUDA out of memory\n\n", "CUDA out of memory"),
        ("\x1b[31mfatal\x1b[0m", "fatal"),
        ("Traceback (most recent call last):\nKilled", "Killed"),
        ("x" * 9999, "x" * 300),
    ],
)
def test_without_one_the_last_words_count(text: str, error: str | None) -> None:
    told = failure_told(text)
    assert (None if told is None else told["error"]) == error
    assert told is None or told["line"] is None
