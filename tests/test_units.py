from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import InvalidRequest
from gpuqueue.units import (
    format_bytes,
    format_duration,
    format_share,
    parse_bytes,
    parse_duration,
    parse_share,
)

PARSERS = [parse_duration, parse_bytes, parse_share]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90s", 90), ("40m", 2400), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172800),
        ("1.5h", 5400), (" 40 M ", 2400), ("1d1h1m1s", 90061), (90, 90), (0.5, 0.5), ("0.25", 0.25),
    ],
)  # fmt: skip
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6G", 6 * 1024**3), ("6g", 6 * 1024**3), ("6GB", 6 * 1024**3), ("6GiB", 6 * 1024**3),
        ("6 GiB", 6 * 1024**3), ("512M", 512 * 1024**2), ("512", 512 * 1024**2),
        (512, 512 * 1024**2), (0.5, 512 * 1024), ("1.5g", 3 * 1024**3 // 2), ("1T", 1024**4),
        ("4k", 4096), ("512B", 512), ("512 b", 512), (8192.0, 8 * 1024**3),
        ("0.1G", 1024**3 // 10), ("8191T", 8191 * 1024**4),
    ],
)  # fmt: skip
def test_sizes(text: str | float, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0.25", 250), (0.25, 250), (".5", 500), ("1", 1000), (1, 1000), (1.0, 1000), ("1/3", 333),
        ("2/3", 666), ("25%", 250), ("100%", 1000), ("12.5 %", 125), ("0.1%", 1), (0.3, 300),
        (0.29, 290), (0.0001, 1), (1e-5, 1), (1e-300, 1), ("1/1000", 1), (Fraction(1, 3), 333),
    ],
)  # fmt: skip
def test_shares(text: str | float, share: int) -> None:
    assert parse_share(text) == share


def test_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    for kind in (numpy.float64, numpy.float32):
        assert parse_share(kind(0.3)) == 300
        assert parse_duration(kind(1.5)) == 1.5
        assert parse_bytes(kind(512)) == 512 * 1024**2
    assert parse_share(numpy.int64(1)) == 1000
    assert parse_duration(numpy.int64(90)) == 90
    assert parse_bytes(numpy.int64(8192)) == 8 * 1024**3


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "value",
    [
        True, False, None, [], {}, b"1", object, 1j, math.nan, math.inf, -math.inf, 0, 0.0, -0.0,
        -1, -0.5, "", " ", "-1", "+1", "nan", "inf", "-inf", "0", "0.0", "abc", "1,5", "1;2", "1_0",
        "1e999999999", "1e-999999999", ".", "%", "/", "1/0", "0/1", "0%", "--1", "0x10", "1 2",
        "\u0664", "1\u00b2", "\x00", "1e400", 10**400, "9" * 5000, "1/" + "9" * 5000, "True",
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_names_the_field(parse: Any, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(value, "the_field")
    assert caught.value.field == "the_field"
    assert str(caught.value).startswith("the_field: ")


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (parse_duration, "1h30"), (parse_duration, "h"), (parse_duration, "5min"),
        (parse_duration, "1w"), (parse_duration, "1:30"), (parse_duration, "1..5h"),
        (parse_duration, "-5m"), (parse_duration, "0s"), (parse_duration, "0h 0m"),
        (parse_bytes, "6X"), (parse_bytes, "6iB"), (parse_bytes, "6GG"), (parse_bytes, "G"),
        (parse_bytes, "-6G"), (parse_bytes, "0G"), (parse_bytes, "0.1B"), (parse_bytes, "9999999T"),
        (parse_bytes, "50%"), (parse_share, "1.01"), (parse_share, 1.0000001), (parse_share, 2),
        (parse_share, "101%"), (parse_share, "3/2"), (parse_share, "1/-3"), (parse_share, "1/3/1"),
        (parse_share, "%50"), (parse_share, "50%%"), (parse_share, "25G"),
    ],
)  # fmt: skip
def test_what_one_of_them_refuses(parse: Any, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse(value)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text() | st.text("0123456789.eE+-/% smhdkgtib", max_size=20))
def test_any_text_is_an_amount_or_a_clear_error(parse: Any, text: str) -> None:
    try:
        amount = parse(text, "the_field")
    except InvalidRequest as caught:
        error = caught
    else:
        assert amount > 0
        assert math.isfinite(amount)
        return
    assert error.field == "the_field"


@given(st.integers(1, 1000))
def test_k_shares_of_one_kth_fit_on_one_gpu(k: int) -> None:
    for written in (f"1/{k}", 1 / k, str(1 / k), f"{100 / k}%"):
        assert 1 <= parse_share(written) * k <= 1000
    assert parse_share(f"1/{k}") == 1000 // k


@given(st.integers(1, 1000))
def test_a_share_survives_being_written(thousandths: int) -> None:
    assert parse_share(format_share(thousandths)) == thousandths
    assert parse_share(thousandths / 1000) == thousandths


@given(st.integers(1, 2**60))
def test_a_size_survives_being_written_nearly(size: int) -> None:
    text = format_bytes(size)
    assert len(text) <= 8
    assert parse_bytes(text) == pytest.approx(size, rel=0.05)


@given(st.integers(1, 1023), st.sampled_from("BKMGT"))
def test_a_round_size_survives_exactly(count: int, unit: str) -> None:
    assert format_bytes(parse_bytes(f"{count}{unit}")) == f"{count}{unit}"


@given(st.floats(1, 1e9))
def test_a_duration_survives_being_written_nearly(seconds: float) -> None:
    text = format_duration(seconds)
    assert text.count(" ") <= 1
    assert parse_duration(text) == pytest.approx(seconds, rel=0.042, abs=0.5)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_longer_never_reads_as_shorter(one: float, other: float) -> None:
    def shown(seconds: float) -> float:
        text = format_duration(seconds)
        return 0 if text == "0s" else parse_duration(text)

    short, long = sorted((one, other))
    assert shown(short) <= shown(long)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"), (0, "0s"), (0.2, "1s"), (8, "8s"), (59.4, "59s"), (59.6, "1m"), (90, "1m 30s"),
        (2400, "40m"), (3599.6, "1h"), (5400, "1h 30m"), (86399, "1d"), (183600, "2d 3h"),
        (90000, "1d 1h"), (86400 + 60, "1d"),
    ],
)  # fmt: skip
def test_durations_as_shown(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "?"), (0, "0B"), (512, "512B"), (1023, "1023B"), (1024, "1K"), (1536, "1.5K"),
        (512 * 1024**2, "512M"), (1024**3 - 1, "1G"), (1024**2 - 1, "1M"), (80 * 1024**3, "80G"),
        (int(1.5 * 1024**3), "1.5G"), (143771 * 1024**2, "140G"), (5000 * 1024**4, "5000T"),
        (-2 * 1024**3, "-2G"),
    ],
)  # fmt: skip
def test_sizes_as_shown(size: int | None, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(("share", "text"), [(1000, "1"), (250, "0.25"), (1, "0.001"), (0, "0")])
def test_shares_as_shown(share: int, text: str) -> None:
    assert format_share(share) == text
