"""What is said of each GPU, in the four words and no others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mps_stage import ONE, Stage, drivers, stage
from share_cards import GIB, needs_compiler
from typer.testing import CliRunner

from gpuqueue.cli.app import app
from gpuqueue.cli.cards import card_text
from gpuqueue.client import cards as client_cards
from gpuqueue.client.doctor import checks
from gpuqueue.model import Gpu
from gpuqueue.share import CuMask, Ladder, ladder_for
from gpuqueue.share.report import card_of

__all__ = ["drivers", "stage"]

H200 = Gpu(ONE, 0, "NVIDIA H200", 140 * GIB)


@dataclass
class Found:
    """Devices that are just there."""

    all: tuple[Gpu, ...]
    problem: str = ""
    closed: list[bool] = field(default_factory=list)

    def gpus(self) -> tuple[Gpu, ...]:
        return self.all

    def close(self) -> None:
        self.closed.append(True)


def text(gpu: Gpu, ladder: Ladder, long: bool = False) -> str:
    return "\n".join(card_text(card_of(gpu, ladder), long=long))


@needs_compiler
def test_what_was_proven_is_told_with_what_was_seen(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuqueue.share.mps.place._roots", lambda: [stage.root])
    ladder = ladder_for([H200], stage.folder / "m", stage.base)
    assert (
        text(H200, ladder)
        == f"""\
GPU 0  NVIDIA H200  140G
  compute                 capped         by MPS, each process of a job
                          seen: 66 of 132 multiprocessors at 50 per cent
  memory                  capped         by memory cap, all processes of a job together
                          seen: 66 MiB refused under a cap of 64 MiB on {ONE}"""
    )
    long = text(H200, ladder, long=True)
    for line in (
        "a change holds at its next start",
        "not held: a process without the job's CUDA_MPS_PIPE_DIRECTORY",
        "  memory bandwidth        not isolated",
        "  L2 cache                not isolated",
        "  copy engines            not isolated",
        "  faults                  not isolated   a program that fails on the GPU ends all that",
        "to have them apart: a GPU of one's own, or a MIG instance",
    ):
        assert line in long
    assert "  memory cap              works          66 MiB refused under a cap of 64 MiB" in long
    assert "  MPS                     works          66 of 132 multiprocessors" in long
    shown = card_of(H200, ladder).to_dict()
    assert [(trial["mechanism"], trial["works"]) for trial in shown["mechanisms"]] == [
        ("memory cap", True), ("MPS", True), ("framework settings", True),
    ]  # fmt: skip
    assert [line["what"] for line in shown["shares"]][:3] == [
        "compute",
        "memory",
        "memory bandwidth",
    ]
    assert shown["shares"][0]["figure"] == "66 of 132 multiprocessors at 50 per cent"
    assert shown["kind"] == "GPU"


@needs_compiler
def test_where_only_mps_works_it_limits_each_process(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuqueue.share.mps.place._roots", lambda: [stage.root])
    monkeypatch.setenv("PATH", "/nowhere")
    said = text(H200, ladder_for([H200], stage.folder / "m", stage.base))
    assert "memory                  advised        by framework settings" in said
    assert said.endswith(
        "  memory of each process  capped         by MPS, each process of a job\n"
        "                          seen: a program was refused what was over it"
    )


def test_what_is_not_there_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base = {"PATH": "/nowhere"}
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    said = text(H200, ladder_for([H200], tmp_path, base))
    assert "compute                 admitted only\n" in said
    assert "why: There is no nvidia-cuda-mps-control on the PATH: install it" in said
    assert "memory                  advised        by framework settings" in said
    assert "why: Memory caps need a small library that is built at first use" in said
    assert "faults" not in text(H200, ladder_for([H200], tmp_path, base), long=True)


def test_other_makers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    intel = Gpu("i", 0, "Intel Arc", 16 * GIB, vendor="intel")
    said = text(intel, ladder_for([intel], tmp_path))
    assert "compute                 admitted only\n" in said
    assert "There is nothing here yet that caps the compute of Intel GPUs." in said
    nodes = tmp_path / "nodes" / "1"
    nodes.mkdir(parents=True)
    (nodes / "properties").write_text("simd_count 1216\nsimd_per_cu 4\nnum_xcc 8\nunique_id 161\n")
    monkeypatch.setattr(CuMask.__init__, "__defaults__", (nodes.parent,))
    amd = Gpu("GPU-00000000000000a1", 0, "MI300X", 192 * GIB, vendor="amd")
    said = text(amd, ladder_for([amd], tmp_path))
    assert "compute                 advised        by compute-unit masks, each process" in said
    assert "seen: 304 compute units, in steps of 8" in said
    assert "There is nothing here yet that caps the compute of AMD GPUs." in said


def test_a_mig_instance_is_a_gpu_like_any_other(tmp_path: Path):
    part = Gpu("MIG-1", 3, "NVIDIA H200 MIG 1g.18gb", 18 * GIB)
    said = text(part, ladder_for([part], tmp_path, {"PATH": "/nowhere"}))
    assert said.startswith("GPU 3  NVIDIA H200 MIG 1g.18gb (MIG instance)  18G")


def test_the_command_and_the_doctor_say_the_same(home, monkeypatch: pytest.MonkeyPatch):
    result = CliRunner().invoke(app, ["cards", "--long"])
    assert result.exit_code == 0
    assert result.stdout.count("admitted only") == 2
    assert "memory bandwidth" in result.stdout
    assert "no boundary between strangers" in result.stdout.replace("\n", " ")
    for word in ("secure", "guarantee"):
        assert word not in result.stdout.lower()
    shown = CliRunner().invoke(app, ["cards", "--json"]).stdout
    assert '"kind": "pretend GPU"' in shown
    found = [check for check in checks(home) if check.name == "shares"]
    assert [check.ok for check in found] == [True, True]
    assert (
        found[0].sentence == "of GPU 0: compute admitted only; memory advised by framework settings"
    )
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "none")
    result = CliRunner().invoke(app, ["cards"])
    assert "there are no GPUs: GPUs are turned off here" in result.output


def test_a_real_gpu_without_caps_is_a_warning(home, monkeypatch: pytest.MonkeyPatch):
    found = Found((H200,))
    monkeypatch.setattr(client_cards, "detect", lambda _: found)
    monkeypatch.setattr("gpuqueue.gpus.detect", lambda _: found)
    monkeypatch.setattr(
        client_cards,
        "ladder_for",
        lambda gpus, folder: ladder_for(gpus, folder, {"PATH": "/nowhere"}),
    )
    made, problem = client_cards.cards(home)
    assert (made[0].gpu, problem, found.closed) == (H200, "", [True])
    (check,) = [check for check in checks(home) if check.name == "shares"]
    assert check.ok is None
    assert "compute admitted only" in check.sentence
    assert "There is no nvidia-cuda-mps-control" in check.sentence
    assert check.fix == "see docs/shares.md"
