import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.client.request import OPTIONS, options_from
from gpuqueue.errors import InvalidRequest
from gpuqueue.model import Preset, Request


def test_nothing_is_one_whole_gpu():
    assert options_from({}).request == Request()


def test_everything_at_once():
    options = options_from(
        {
            "preset": "two", "gpus": 2, "share": "1/4", "mem": "6G", "slots": 1, "eta": "1h30m",
            "priority": 3, "after": [1, 2, 1], "restartable": True, "tag": " t ", "key": "k",
            "wait": False,
        }
    )  # fmt: skip
    assert options.request == Request(
        Preset.TWO, 2, 250, 6 * 2**30, 1, 5400.0, 3, (1, 2), restartable=True
    )
    assert (options.tag, options.key, options.wait) == ("t", "k", False)


def test_priority_alone_is_the_front():
    assert options_from({"priority": True}).to_front
    assert not options_from({"priority": 1}).to_front


@pytest.mark.parametrize("value", ["1,x", [0], -3, [None], "1.5", {}])
def test_after_takes_job_numbers(value):
    if value == {}:
        assert options_from({"after": value}).request.after == ()
        return
    with pytest.raises(InvalidRequest, match="after"):
        options_from({"after": value})


junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.lists(st.integers()), st.dictionaries(st.text(), st.integers()),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(OPTIONS), junk))
def test_whatever_comes_is_a_request_or_a_named_error(values):
    field, options = None, None
    try:
        options = options_from(values)
    except InvalidRequest as error:
        field = error.field
    assert field in OPTIONS or isinstance(options.request, Request)
