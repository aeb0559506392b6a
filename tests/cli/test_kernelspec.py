"""``gpuqueue kernelspec``: launcher tiles whose kernels start with a share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import ok, refused

from gpuqueue.paths import Home


@pytest.fixture(autouse=True)
def kernels(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's kernelspecs: one of another language, one with a provisioner of its own."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "data" / "kernels"
    for name, changes in {
        "mine": {"metadata": {"debugger": True}, "env": {"A": "1"}},
        "julia": {"language": "julia"},
        "remote": {"metadata": {"kernel_provisioner": {"provisioner_name": "elsewhere"}}},
    }.items():
        (folder / name).mkdir(parents=True)
        spec = {
            "argv": ["python", "{connection_file}"],
            "display_name": "Mine",
            "language": "python",
        }
        (folder / name / "kernel.json").write_text(json.dumps(spec | changes))
        (folder / name / "logo-64x64.png").write_bytes(b"picture")
    return folder


def test_a_copy_with_a_share(kernels: Path) -> None:
    told = ok("kernelspec", "add", "--kernel", "mine", "--share", "0.25", "--mem", "20G")
    assert told.startswith("mine-gpu-0.25-20g: Mine · GPU 0.25 20G (")
    made = kernels / "mine-gpu-0.25-20g"
    spec = json.loads((made / "kernel.json").read_text())
    assert spec["display_name"] == "Mine · GPU 0.25 20G"
    assert spec["env"] == {"A": "1"}
    assert spec["metadata"] == {
        "debugger": True,
        "kernel_provisioner": {
            "provisioner_name": "gpuqueue", "config": {"share": "0.25", "mem": "20G"},
        },
        "gpuqueue": {"base": "mine"},
    }  # fmt: skip
    assert (made / "logo-64x64.png").read_bytes() == b"picture"
    assert json.loads((kernels / "mine" / "kernel.json").read_text())["display_name"] == "Mine"


def test_list_and_remove(kernels: Path) -> None:
    assert ok("kernelspec", "list").startswith("none; ")
    ok("kernelspec", "add", "--kernel", "mine", "--share", "0.5", "--name", "Half")
    assert "Mine · GPU 0.5" in ok("kernelspec", "list")
    # made anew with another share, and of one that has a share already
    ok("kernelspec", "add", "--kernel", "half", "--share", "1/3", "--name", "half")
    assert "Mine · GPU 0.333" in ok("kernelspec", "list")
    ok("kernelspec", "remove", "half")
    assert not (kernels / "half").exists()
    assert ok("kernelspec", "list").startswith("none; ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "--share", "3"], "share: '3' is not a share"),
        (["add", "--share", "0.5", "--mem", "lots"], "mem: 'lots' is not a size"),
        (["add", "--share", "0.5", "--kernel", "none"], "there is no kernelspec 'none'; there are"),
        (["add", "--share", "0.5", "--kernel", "julia"], "'julia' is not a Python kernel"),
        (["add", "--share", "0.5", "--kernel", "remote"], "has a provisioner of its own"),
        (["add", "--share", "0.5", "--name", "a b"], "letters, digits"),
        (["add", "--share", "0.5", "--name", "mine"], "not made by this command"),
        (["remove", "mine"], "was not made by this command, and stays"),
        (["remove", "gone"], "there is no kernelspec 'gone'"),
    ],
)
def test_what_is_refused(kernels: Path, words: list[str], told: str) -> None:
    before = sorted(path.name for path in kernels.iterdir())
    assert told in refused("kernelspec", *words)
    assert sorted(path.name for path in kernels.iterdir()) == before
