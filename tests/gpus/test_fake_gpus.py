from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import InvalidRequest
from gpuqueue.gpus import FakeDevices
from gpuqueue.gpus.fake import MOST, NAME, parse_fake
from gpuqueue.model import GpuProcess

GIB = 1024**3
MIB = 1024**2


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("80G", [(NAME, 80 * GIB, 1)]),
        ("8192", [(NAME, 8 * GIB, 1)]),
        ("8192,6144", [(NAME, 8 * GIB, 1), (NAME, 6 * GIB, 1)]),
        (" 80G , 1.5GiB ", [(NAME, 80 * GIB, 1), (NAME, 3 * GIB // 2, 1)]),
        ("2x80G", [(NAME, 80 * GIB, 1)] * 2),
        ("1xH100:80G", [("H100", 80 * GIB, 1)]),
        ("H100:80G", [("H100", 80 * GIB, 1)]),
        ("2xA100:40G,24G", [("A100", 40 * GIB, 1)] * 2 + [(NAME, 24 * GIB, 1)]),
        ("RTX 4090:24G", [("RTX 4090", 24 * GIB, 1)]),
        ("2x4090:24G", [("4090", 24 * GIB, 1)] * 2),
        ("80G/grain=125", [(NAME, 80 * GIB, 125)]),
        (
            "2xA100:40G/grain=250,512M",
            [("A100", 40 * GIB, 250)] * 2 + [(NAME, 512 * MIB, 1)],
        ),
        ("80G/grain=1000", [(NAME, 80 * GIB, 1000)]),
    ],
)
def test_specs(spec: str, expected: list[tuple[str, int, int]]) -> None:
    gpus = parse_fake(spec)
    assert [(gpu.name, gpu.memory, gpu.grain) for gpu in gpus] == expected
    assert [gpu.uuid for gpu in gpus] == [f"FAKE-{n}" for n in range(len(expected))]
    assert [gpu.index for gpu in gpus] == list(range(len(expected)))
    assert all(gpu.fake for gpu in gpus)


@pytest.mark.parametrize(
    "spec",
    [
        "", ",", "80G,", ",80G", "80G;80G", "0", "0G", "-80G", "80Q", "80GG", "x80G", "0x80G",
        "2x", "2x2x80G", "2xx80G", ":80G", "a:b:80G", "H100", "H100:", "80G/", "80G/grain=",
        "80G/grain=0", "80G/grain=1001", "80G/grain=a", "80G/grain=1/grain=2", "80G/speed=2",
        "80G/vendor=ati",
        "80G/grain=1.5", "nan", "inf", "1e3", "65x80G", "64x80G,80G", "999999x80G", "9999999x80G",
        "9999999999T", "1" * 5000, "two", "80G 80G", "8\n0G", "\u0668G", "none",
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_names_the_field(spec: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_fake(spec)
    assert caught.value.field == "GPUQUEUE_FAKE_GPUS"
    with pytest.raises(InvalidRequest, match=r"^fake_gpus: "):
        FakeDevices(spec, field="fake_gpus")


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9 .+()-]{0,18}[A-Za-z0-9]", fullmatch=True)
ENTRIES = st.tuples(
    st.integers(1, 8),
    st.none() | NAMES,
    st.integers(1, 10**6),
    st.none() | st.integers(1, 1000),
)


@given(st.lists(ENTRIES, min_size=1, max_size=MOST // 8))
def test_what_is_written_is_what_there_is(
    entries: list[tuple[int, str | None, int, int | None]],
) -> None:
    spec = ",".join(
        f"{count}x" + (f"{name}:" if name else "") + str(mib) + (f"/grain={grain}" if grain else "")
        for count, name, mib, grain in entries
    )
    expected = [
        (name or NAME, mib * MIB, grain or 1)
        for count, name, mib, grain in entries
        for _ in range(count)
    ]
    assert [(gpu.name, gpu.memory, gpu.grain) for gpu in parse_fake(spec)] == expected


@given(st.text())
def test_any_text_is_gpus_or_a_clear_error(spec: str) -> None:
    try:
        gpus = parse_fake(spec)
    except InvalidRequest as caught:
        error = caught
    else:
        assert 1 <= len(gpus) <= MOST
        assert all(gpu.memory and 1 <= gpu.grain <= 1000 for gpu in gpus)
        return
    assert error.field == "GPUQUEUE_FAKE_GPUS"


def test_without_a_file_nothing_is_held() -> None:
    devices = FakeDevices("80G,80G")
    assert [(r.gpu, r.memory_used, r.processes) for r in devices.read()] == [
        ("FAKE-0", 0, ()),
        ("FAKE-1", 0, ()),
    ]
    assert devices.problem == ""
    devices.close()


def test_the_process_file_is_read_at_every_reading(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    devices = FakeDevices("8G,8G", processes=file)
    assert [reading.memory_used for reading in devices.read()] == [0, 0]
    file.write_text("# pid:index:MiB\n\n1234:0:500\n 7 : 1 : 10 \r\n1234:0:24\n99:0:0\n")
    first, second = devices.read()
    assert first.processes == (GpuProcess(99, 0), GpuProcess(1234, 524 * MIB))
    assert first.memory_used == 524 * MIB
    assert second.processes == (GpuProcess(7, 10 * MIB),)
    assert (first.utilization, first.temperature, first.power) == (None, None, None)
    assert devices.problem == ""
    file.unlink()
    assert [reading.memory_used for reading in devices.read()] == [0, 0]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "1:0",
        "1:2:5",
        "1:-1:5",
        "-1:0:5",
        "1:0:5M",
        "1:0:1.5",
        "1:0:5:6",
        "\x00",
        "1:0:",
    ],
)
def test_a_bad_line_is_ignored_and_said(tmp_path: Path, line: str) -> None:
    file = tmp_path / "processes"
    file.write_text(f"1:0:5\n{line}\nalso bad\n2:1:6\n")
    devices = FakeDevices("8G,8G", processes=file)
    assert [reading.memory_used for reading in devices.read()] == [5 * MIB, 6 * MIB]
    assert devices.problem.startswith("Line 2 of the pretend process file")
    file.write_text("1:0:5\n")
    devices.read()
    assert devices.problem == ""


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    devices = FakeDevices("8G", processes=tmp_path)
    assert devices.read()[0].processes == ()
    assert "cannot be read" in devices.problem


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    file = tmp_path / "processes"
    file.write_bytes(b"\xff\xfe\n1:0:5\n")
    devices = FakeDevices("8G", processes=file)
    assert devices.read()[0].memory_used == 5 * MIB
    assert "Line 1" in devices.problem


def test_they_may_be_of_other_makers_and_jobs_see_them_by_those_variables() -> None:
    devices = FakeDevices("80G,2xMI300X:192G/vendor=amd,Max:48G/vendor=intel")
    gpus = devices.gpus()
    assert [gpu.vendor for gpu in gpus] == ["nvidia", "amd", "amd", "intel"]
    seen = devices.environment(gpus[2:])
    assert (seen["HIP_VISIBLE_DEVICES"], seen["ZE_AFFINITY_MASK"]) == ("2", "3")
    only = devices.environment(gpus[:1])
    assert "HIP_VISIBLE_DEVICES" not in only
    assert "ZE_AFFINITY_MASK" not in only
    (named,) = parse_fake("192G/vendor=amd/uuid=GPU-00000000000000a1")
    assert (named.uuid, named.vendor) == ("GPU-00000000000000a1", "amd")


def test_one_may_have_a_name_as_a_driver_gives_it() -> None:
    name = "GPU-00000000-0000-0000-0000-000000000001"
    one, two = parse_fake(f"A:24G/grain=10/uuid={name},24G")
    assert (one.uuid, one.index, one.grain, two.uuid) == (name, 0, 10, "FAKE-1")
    for spec in (f"2x24G/uuid={name}", f"24G/uuid={name},24G/uuid={name}", "24G/uuid=mine"):
        with pytest.raises(InvalidRequest):
            parse_fake(spec)
