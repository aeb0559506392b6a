"""Building, loading and naming the memory-cap library; and that it is not heard of otherwise."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from share_cards import MIB, ONE, TWO, Job, drivers, job, library, needs_compiler

from gpuqueue.errors import InvalidRequest, MemoryCapError, NoCompiler
from gpuqueue.share import memcap
from gpuqueue.share.memcap import building, ledger

pytestmark = needs_compiler
__all__ = ["drivers", "job", "library"]


@pytest.mark.parametrize(
    "command",
    [
        ["true"],
        ["ls", "/"],
        ["sh", "-c", "echo 42; (echo 43) | cat"],
        [sys.executable, "-c", "import ctypes, subprocess; subprocess.run(['true']); print(42)"],
    ],
    ids=["true", "ls", "shell", "python"],
)
def test_programs_print_only_what_they_print(job: Job, command):
    plain = subprocess.run(command, capture_output=True)
    capped = subprocess.run(command, env=job.environment(), capture_output=True)
    assert (capped.returncode, capped.stdout, capped.stderr) == (0, plain.stdout, b"")
    assert plain.stderr == b""
    assert job.held == {}  # nor do they take a place in the ledger


def test_refusals_print_nothing(job: Job):
    assert job.run("use(); alloc(GIB); alloc(GIB)") == []
    assert job.usage.refusals == 2


@pytest.mark.parametrize(
    "script", ["env -i {python} -c 'print(42)'", "setsid {python} -c 'print(42)'"]
)
def test_programs_that_lose_or_keep_the_variable(job: Job, script):
    line = script.format(python=shlex.quote(sys.executable))
    done = subprocess.run(["sh", "-c", line], env=job.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_a_static_program_is_not_disturbed(job: Job):
    source = job.folder / "still.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("42"); return 0; }\n')
    program = job.folder / "still"
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    done = subprocess.run([program], env=job.environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_what_the_job_preloads_itself_stays(job: Job, tmp_path: Path):
    source = tmp_path / "other.c"
    source.write_text("int getppid(void) { return 4242; }\n")
    other = tmp_path / "libother.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, source], check=True)
    job.variables = memcap.environment(
        job.folder, {ONE: 64 * MIB}, library=job.library, base={"LD_PRELOAD": f" {other} "}
    )
    assert job.variables["LD_PRELOAD"] == f"{job.library}:{other}"
    assert job.run("use(); say(os.getppid(), alloc(65 * MIB), alloc(64 * MIB) > 0)") == [
        "4242 -2 True"
    ]
    again = memcap.environment(job.folder, {}, library=job.library, base=job.variables)
    assert again["LD_PRELOAD"] == job.variables["LD_PRELOAD"]  # not twice


def test_a_library_that_is_gone_is_told_before_the_job_starts(job: Job, tmp_path: Path):
    """The dynamic linker would print a line into each program's output and go on without."""
    with pytest.raises(MemoryCapError, match="is gone"):
        memcap.environment(tmp_path, {ONE: MIB}, library=tmp_path / "no.so")


def test_nothing_runs_when_it_is_loaded(library: Path):
    sections = subprocess.run(["readelf", "-S", library], capture_output=True, text=True).stdout
    assert not re.search(r"\.(init|fini|ctors|dtors|init_array|fini_array)\b", sections)
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True).stdout
    undefined = set(re.findall(r" U (\w+)", symbols))
    assert not undefined & {"dlsym", "dlvsym", "malloc", "free", "printf", "write"}
    defined = re.findall(r" [TDB] (\w+)", symbols)
    ours = r"(cu|hip)[A-Z]|nvmlDeviceGetMemoryInfo|dlv?sym$"
    assert all(re.match(ours, name) for name in defined)


def test_built_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "memcap"
    built = memcap.build(folder)
    assert built.parent == folder
    assert stat.S_IMODE(built.stat().st_mode) == 0o700
    before = built.stat().st_mtime_ns
    monkeypatch.setattr(shutil, "which", lambda _: None)  # no compiler is needed any more
    assert memcap.build(folder) == built
    assert built.stat().st_mtime_ns == before
    assert [path.name for path in folder.iterdir()] == [built.name]


def test_without_a_compiler_one_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NoCompiler, match="apt install gcc"):
        memcap.build(tmp_path / "memcap")


def test_on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(NoCompiler, match="riscv64"):
        memcap.build(tmp_path)


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
    failing.chmod(0o700)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(MemoryCapError, match="no such thing"):
        memcap.build(tmp_path / "memcap")
    assert list((tmp_path / "memcap").iterdir()) == []


def test_a_state_directory_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """LD_PRELOAD cannot name a file there; the ledger can be anywhere."""
    odd = tmp_path / "st ate: ü"
    spare = tmp_path / "spare"
    monkeypatch.setattr(building, "_spare", lambda: spare)
    built = memcap.build(odd / "memcap")
    assert built.parent == spare
    assert not (odd / "memcap").exists()
    spare.chmod(0o777)  # anybody could put a library there
    with pytest.raises(MemoryCapError, match="spaces or colons"):
        memcap.build(odd / "memcap")


def test_a_job_in_an_odd_place(job: Job, tmp_path: Path):
    folder = tmp_path / "j ob: ü'\"$LIB"
    folder.mkdir()
    job.folder = folder
    job.cap(8 * MIB)
    assert job.run("use(); say(alloc(8 * MIB) > 0, alloc(1))") == ["True -2"]


def test_the_ledger_is_the_users_own_and_all_written(tmp_path: Path):
    path = tmp_path / "memcap"
    memcap.create(path, {ONE: MIB, TWO: None})
    info = path.stat()
    assert stat.S_IMODE(info.st_mode) == 0o600
    assert info.st_blocks * 512 >= info.st_size > 24 * 1024
    assert [u.limit for u in memcap.read(tmp_path, (ONE, TWO))] == [MIB, None]
    memcap.release(tmp_path)
    memcap.release(tmp_path)
    with pytest.raises(MemoryCapError, match="no ledger"):
        memcap.read(tmp_path)
    path.write_bytes(bytes(100_000))
    with pytest.raises(MemoryCapError, match="not a ledger"):
        memcap.read(tmp_path)


@pytest.mark.parametrize(
    ("caps", "field"),
    [({"GPU-12": 1}, "gpu"), ({"0": 1}, "gpu"), ({ONE: -1}, "cap")],
)
def test_caps_that_cannot_be(tmp_path: Path, caps, field):
    with pytest.raises(InvalidRequest, match=field):
        memcap.create(tmp_path / "memcap", caps)


def test_more_than_can_be_counted_is_counted_only(tmp_path: Path):
    memcap.create(tmp_path / "memcap", {ONE: ledger.LARGEST, TWO: ledger.LARGEST + 1})
    assert [u.limit for u in memcap.read(tmp_path)] == [ledger.LARGEST, None]


def test_mig_instances_have_names_of_their_own(tmp_path: Path):
    name = "MIG-" + ONE.removeprefix("GPU-")
    memcap.create(tmp_path / "memcap", {name: MIB})
    assert [u.gpu for u in memcap.read(tmp_path, (name,))] == [name]
    assert [u.gpu for u in memcap.read(tmp_path)] == [ONE]


def test_bench_ends_with_one_json_object():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "bench/memcap.py", "--quick"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert [(row["threads"], row["live"]) for row in figures["rows"]] == [
        (1, 10),
        (1, 100_000),
        (8, 10),
        (8, 100_000),
    ]
    assert figures["added_ns"] == max(row["added_ns"] for row in figures["rows"])


def test_the_layout_is_that_of_the_header():
    header = (building.SOURCES / "ledger.h").read_text()
    number = dict(re.findall(r"#define (GQ_\w+) (\w+)", header))
    assert int(number["GQ_SLOTS"].rstrip("u")) == ledger._SLOTS
    assert 1 << int(number["GQ_UNIT_SHIFT"]) == ledger.UNIT
    assert int(number["GQ_MAGIC"].removesuffix("ull"), 16).to_bytes(8, "little") == ledger._MAGIC
    assert os.path.getsize(building.SOURCES / "exports.map") > 0
