"""Compute units of AMD GPUs, against topologies made up after what the driver writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.errors import ComputeCapError
from gpuqueue.model import Gpu
from gpuqueue.share import Bound, CuMask, Effect, Standing, ladder_for
from gpuqueue.share.cumask import Units, mask_of, topology

ONE, TWO = "GPU-00000000000000a1", "GPU-00000000000000a2"

CPU = "cpu_cores_count 96\nsimd_count 0\nsimd_per_cu 0\nunique_id 0\n"
# eight dies of 38 units, as an MI300X has them
DIES = """cpu_cores_count 0
simd_count 1216
array_count 32
simd_arrays_per_engine 1
cu_per_simd_array 10
simd_per_cu 4
gfx_target_version 90402
num_xcc 8
unique_id {}
"""
# one die of 96 units that come in pairs, as a Radeon RX 7900 XTX has them
PAIRS = "simd_count 192\nsimd_per_cu 2\ngfx_target_version 110000\nnum_xcc 1\nunique_id {}\n"


def write(nodes: Path, *texts: str) -> Path:
    for number, text in enumerate(texts):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(text)
    return nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    return write(tmp_path / "nodes", CPU, DIES.format(0xA1), PAIRS.format(0xA2))


def job(tmp_path: Path, name: str, **compute: int | None) -> Bound:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    return Bound(folder, {}, compute={{"one": ONE, "two": TWO}[k]: v for k, v in compute.items()})


def bits(variable: str) -> int:
    return int(variable.partition(":")[2], 16)


def test_units_are_read_from_the_topology(nodes: Path, tmp_path: Path):
    assert topology(nodes) == {ONE: Units(304, 8), TWO: Units(96, 2)}
    assert topology(tmp_path / "nowhere") == {}


def test_four_quarters_share_no_unit(nodes: Path, tmp_path: Path):
    masks = CuMask(tmp_path / "folder", nodes)
    told = [masks.environment(job(tmp_path, name, one=250)) for name in "abcd"]
    assert told[0] == {
        "HSA_CU_MASK": f"0:{2**72 - 1:#x}", "ROCR_VISIBLE_DEVICES": ONE, "HIP_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    found = [bits(variables["HSA_CU_MASK"]) for variables in told]
    together = 0
    for mask in found:
        assert mask.bit_count() == 72
        assert not mask & together
        together |= mask
        # as many on each die
        dies = [sum(mask >> bit & 1 for bit in range(die, 304, 8)) for die in range(8)]
        assert dies == [9] * 8
    with pytest.raises(ComputeCapError, match=f"72 compute units of {ONE} are the job's share, and "
                                              "only 16 have no other job"):  # fmt: skip
        masks.environment(job(tmp_path, "e", one=250))
    masks.release(Bound(tmp_path / "b", {}))  # whoever lets go need not know what it had
    masks.release(Bound(tmp_path / "b", {}))
    assert bits(masks.environment(job(tmp_path, "e", one=200))["HSA_CU_MASK"]) & ~found[1] == 0


def test_pairs_are_not_torn(nodes: Path, tmp_path: Path):
    told = CuMask(tmp_path / "folder", nodes).environment(job(tmp_path, "a", two=30))
    assert told["HSA_CU_MASK"] == "0:0x3"
    assert mask_of([1, 3], Units(96, 2)) == "0xcc"


def test_parts_of_several_gpus(nodes: Path, tmp_path: Path):
    told = CuMask(tmp_path / "folder", nodes).environment(job(tmp_path, "a", one=None, two=100))
    assert told == {
        "HSA_CU_MASK": "1:0xff", "ROCR_VISIBLE_DEVICES": f"{ONE},{TWO}",
        "HIP_VISIBLE_DEVICES": "0,1",
    }  # fmt: skip


def test_started_again_it_has_its_units_once(nodes: Path, tmp_path: Path):
    masks = CuMask(tmp_path / "folder", nodes)
    first = masks.environment(job(tmp_path, "a", one=600))
    assert masks.environment(job(tmp_path, "a", one=600)) == first


def test_what_is_claimed(nodes: Path, tmp_path: Path):
    masks = CuMask(tmp_path / "folder", nodes)
    probe = masks.probe()
    assert probe.usable
    assert probe.on(ONE).figure == "304 compute units, in steps of 8"
    assert "was not seen" in probe.reason
    assert masks.standing is Standing.ADVISED
    assert masks.resize(job(tmp_path, "a", one=1)) is Effect.NEXT_START
    assert masks.environment(job(tmp_path, "a", one=None)) == {}
    assert not CuMask(tmp_path, tmp_path / "nowhere").probe().usable
    (tmp_path / "folder").mkdir()
    with pytest.raises(ComputeCapError, match="does not tell the compute units of GPU-"):
        CuMask(tmp_path, tmp_path / "nowhere").environment(job(tmp_path, "a", one=1))


@pytest.mark.parametrize(
    ("vendor", "fake", "names"),
    [
        ("nvidia", False, ["memory cap", "MPS", "framework settings"]),
        ("nvidia", True, ["framework settings"]),
        ("amd", False, ["memory cap", "compute-unit masks", "framework settings"]),
        ("amd", True, ["compute-unit masks", "framework settings"]),
        ("intel", False, ["framework settings"]),
    ],
)
def test_the_ladder_of_each_maker(tmp_path: Path, vendor: str, fake: bool, names: list[str]):
    name = "FAKE-0" if fake else "GPU-1"
    gpu = Gpu(name, 0, "A GPU", 1 << 34, vendor=vendor, fake=fake)
    assert [one.name for one in ladder_for([gpu], tmp_path).mechanisms] == names
    if vendor == "intel":
        assert ladder_for([gpu], tmp_path).promises()["compute"] is Standing.ADMITTED_ONLY
