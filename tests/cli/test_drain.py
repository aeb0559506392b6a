"""``drain`` and ``undrain``, and how they change a settings file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from cli_program import ok, queued, refused
from conftest import until

from gpuqueue.cli.drain import set_in_file
from gpuqueue.client import LocalClient
from gpuqueue.errors import InvalidRequest
from gpuqueue.model import JobState
from gpuqueue.paths import Home
from gpuqueue.settings import load_settings


def test_a_drained_gpu_keeps_its_job_and_takes_no_new_one(home: Home, client: LocalClient) -> None:
    held = queued("--tag", "held", "sleep", "600")
    until(lambda: client.job(held).state is JobState.RUNNING)
    placement = client.job(held).placement
    assert placement is not None
    (uuid,) = placement.gpus
    index = uuid.removeprefix("FAKE-")
    assert ok("drain", index) == f"GPU {index} takes no new jobs; still there: job {held} (held)\n"
    until(lambda: json.loads(ok("status", "--json"))["settings"]["drained"] == [int(index)])
    line = next(line for line in ok("status").split("\n") if line.startswith(f"GPU {index}"))
    assert line.endswith("; takes no new jobs")
    assert ok("gpus").count("; takes no new jobs") == 1
    assert client.job(held).state is JobState.RUNNING
    ok("cancel", str(held))
    client.wait(held, 60)
    others = [queued("--slots", "1", "sleep", "600") for _ in range(2)]
    until(lambda: client.job(others[0]).state is JobState.RUNNING)
    until(lambda: client.why(others[1]) is not None)
    assert [job.placement and job.placement.gpus for job in map(client.job, others)] == [
        (f"FAKE-{1 - int(index)}",),
        None,
    ]
    assert ok("undrain", index) == f"GPU {index} takes jobs\n"
    until(lambda: client.job(others[1]).state is JobState.RUNNING)
    ok("cancel", *map(str, others))


def test_what_is_no_gpu_is_refused(home: Home) -> None:
    assert "there is no GPU 7; the GPUs here are: 0, 1" in refused("drain", "7")
    assert not home.config.exists()
    assert ok("undrain", "7") == "GPU 7 takes jobs\n"  # of a card that was taken out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slots = 3",
        "# why\n  drained = [0] # broken fan\nslots = 3\n",
        "# drained = []\nslots = 3\n",
        "slots = 3\n[later]\ndrain = 1\n",
    ],
)
def test_only_that_line_changes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    set_in_file(path, "drained", [1])
    assert tomllib.loads(path.read_text()) == {**tomllib.loads(text), "drained": [1]}
    kept = [line for line in text.splitlines() if "drained" not in line]
    assert [line for line in path.read_text().splitlines() if "drained" not in line] == kept
    set_in_file(path, "drained", [])
    assert path.read_text().count("drained = ") == 1


def test_a_file_in_another_form_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    text = "drained = [\n  0,\n]\n"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=r"set drained = \[1\] in .* yourself"):
        set_in_file(path, "drained", [1])
    path.write_text("drained = many")
    with pytest.raises(InvalidRequest, match="not valid TOML"):
        set_in_file(path, "drained", [1])
    assert path.read_text() == "drained = many"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles ü.toml", tmp_path / "config.toml"
    real.write_text("# für uns\nslots = 3\n")
    link.symlink_to(real)
    set_in_file(link, "drained", [1])
    assert link.is_symlink()
    assert tomllib.loads(real.read_text(encoding="utf-8")) == {"slots": 3, "drained": [1]}


def test_the_explained_file_can_be_changed(home: Home) -> None:
    ok("init")
    ok("drain", "0")
    assert load_settings(home.config).drained == [0]
    ok("undrain", "0")
    assert load_settings(home.config).drained == []
