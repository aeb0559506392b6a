"""Demands that a share be held, and the sentence where it cannot be."""

from __future__ import annotations

import pytest

from gpuqueue.errors import InvalidRequest
from gpuqueue.share import Standing, Subject, demanded, refusal

BOTH = {Subject.COMPUTE: Standing.CAPPED, Subject.MEMORY: Standing.CAPPED}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", set()),
        ("compute=hard", {"compute"}),
        (" Memory = HARD , compute=hard,", {"compute", "memory"}),
    ],
)
def test_demands_are_read(text: str, found: set[str]):
    assert demanded(text) == found


@pytest.mark.parametrize("text", ["compute", "compute=soft", "bandwidth=hard", "=hard"])
def test_other_demands_are_refused_by_name(text: str):
    with pytest.raises(InvalidRequest, match=r"^require: .*is not known; write compute=hard"):
        demanded(text)


def test_what_is_capped_may_start():
    assert refusal(demanded("compute=hard,memory=hard"), BOTH, {}) == ""
    assert refusal((), {}, {}) == ""


def test_what_is_not_says_why_and_what_to_do():
    held = {**BOTH, Subject.MEMORY: Standing.ADVISED}
    said = refusal(
        demanded("compute=hard,memory=hard"), held, {Subject.MEMORY: "There is no compiler."}
    )
    assert said == (
        "It requires memory=hard, and memory would be advised here. There is no compiler. "
        "Ask for a whole GPU, or leave memory=hard out."
    )
    assert "compute would be admitted only here. Nothing here caps compute." in refusal(
        demanded("compute=hard"), {}, {}
    )


def test_a_share_that_was_not_asked_for_cannot_be_held():
    said = refusal(demanded("compute=hard"), BOTH, {}, asked=[Subject.MEMORY])
    assert said == (
        "It requires compute=hard, but it asks for no share of compute; say which (--share 0.25)."
    )


def test_a_whole_gpu_is_held_by_being_alone():
    assert refusal(demanded("compute=hard,memory=hard"), {}, {}, whole=True) == ""
