"""The repository as a stranger finds it: entry points, links, the wheel, what importing costs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_make_has_these_entry_points_and_no_others():
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([A-Za-z][\w-]*)\s*:(?!=)", text, re.MULTILINE)
    assert targets == ["demo", "lab", "test", "screenshots", "check"]
    assert f".PHONY: {' '.join(targets)} .setup" in text
    for target in targets:
        assert f"\n{target}: .setup\n" in text  # each sets up all it needs


def test_make_needs_nothing_named_by_path():
    """A checkout in a folder with spaces works only as long as no target is an absolute path."""
    assert "$(CURDIR)" not in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    anchors = {slug(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        if name:
            assert (path.parent / name).exists(), target
        elif anchor:
            assert anchor in anchors, target


def slug(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_licence():
    assert PROJECT["license"] == "BSD-3-Clause"
    assert "BSD 3-Clause" in (ROOT / "LICENSE").read_text().splitlines()[0]


def test_every_dependency_has_its_reason():
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    wanted = set(PROJECT["dependencies"])
    for extra, names in PROJECT["optional-dependencies"].items():
        assert f"`{extra}`" in text, extra
        wanted |= {name for name in names if not name.startswith("jupyter-gpuqueue")}
    for requirement in wanted:
        name = re.split(r"[\[><=~! ]", requirement)[0]
        assert f"`{name}`" in text, f"docs/dependencies.md does not say why there is {name}"


def test_reasons_are_only_for_what_there_is():
    named = re.findall(
        r"^\| `([\w.-]+)`", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE
    )
    everything = [
        *PROJECT["dependencies"],
        *(name for names in PROJECT["optional-dependencies"].values() for name in names),
    ]
    known = {re.split(r"[\[><=~! ]", requirement)[0] for requirement in everything}
    assert set(named) <= known | set(PROJECT["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_holds_three_packages(wheel):
    names = wheel.namelist()
    for package in ("gpuqueue", "gpuqueue_jupyter", "gpuqueue_widgets"):
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "notebooks/"))]


def test_wheel_is_for_every_machine_and_has_what_the_memory_cap_is_built_from(wheel):
    folder = ROOT / "gpuqueue/share/memcap/src"
    sources = {f"gpuqueue/share/memcap/src/{path.name}" for path in folder.iterdir()}
    assert sources <= set(wheel.namelist())
    assert Path(str(wheel.filename)).name.endswith("-py3-none-any.whl")


def test_wheel_enables_the_extensions(wheel):
    data = f"jupyter_gpuqueue-{PROJECT['version']}.data/data"
    server = json.loads(wheel.read(f"{data}/etc/jupyter/jupyter_server_config.d/gpuqueue.json"))
    assert server["ServerApp"]["jpserver_extensions"] == {"gpuqueue_jupyter": True}
    kernel = json.loads(wheel.read(f"{data}/etc/ipython/ipython_kernel_config.json"))
    assert kernel["IPKernelApp"]["extensions"] == ["gpuqueue"]
    lab = json.loads(
        wheel.read(f"{data}/share/jupyter/labextensions/jupyter-gpuqueue/package.json")
    )
    assert lab["version"] == PROJECT["version"]
    panel = {path.name for path in (ROOT / "widgets" / "panel").iterdir()}
    for folder in (
        f"{data}/share/jupyter/labextensions/jupyter-gpuqueue/files/panel/",
        "gpuqueue_widgets/panel/",
    ):
        names = {name.removeprefix(folder) for name in wheel.namelist() if name.startswith(folder)}
        assert names == panel


def test_wheel_has_two_names_for_one_program(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    scripts = wheel.read(name).decode()
    assert "gpuqueue = gpuqueue.cli:main" in scripts
    assert "jupyter-gpuqueue = gpuqueue.cli:main" in scripts


def test_wheel_is_small_and_for_any_python(wheel):
    assert Path(wheel.filename).name.endswith("-py3-none-any.whl")
    assert Path(wheel.filename).stat().st_size < 1 << 20


def test_the_helper_of_the_wheel_needs_nothing_else(wheel, tmp_path):
    """What a job imports, installed with no dependency, in a Python that has nothing."""
    wheel.extractall(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + (
        "import gpuqueue.checkpoint as checkpoint\n"
        "print(checkpoint.__file__, checkpoint.should_stop(), checkpoint.latest_checkpoint())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == [str(tmp_path / "gpuqueue" / "checkpoint.py"), "False", "None"]


def test_version_is_one():
    import gpuqueue

    assert gpuqueue.__version__ == PROJECT["version"]


def test_import_is_light():
    """Processes that need one small room of it should not pay for the others."""
    heavy = ["IPython", "jupyter_server", "jupyter_client", "numpy", "torch", "zmq", "rich"]
    code = f"import sys, gpuqueue; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_submitting_needs_no_notebook_machinery():
    heavy = ["IPython", "jupyter_server", "numpy", "torch", "zmq"]
    code = (
        "import sys, gpuqueue; gpuqueue.submit, gpuqueue.map, gpuqueue.status, gpuqueue.Job\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_bench_ends_with_one_json_object():
    done = subprocess.run(
        [sys.executable, "bench/latency.py", "--quick", "--only", "gpuqueue"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["gpuqueue"]
    assert figures["jobs"] == 40
    assert figures["call_ms"] > 0
    assert 0 < figures["start_ms"] <= figures["start_max_ms"]
    assert figures["rss_mb"] > 0


TRAIN = """
import argparse

def train(lr):
    return {"loss": lr}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    print("loss", train(parser.parse_args().lr)["loss"])
"""


def block(language: str, section: str) -> str:
    """The README's example in a section."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(
        rf"^## {section}\n.*?^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    return found


@pytest.fixture
def workplace(home, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"cwd": folder, "env": {**os.environ, "PATH": path}, "capture_output": True}


def test_python_of_the_readme(workplace):
    # a user's script: the function is its own
    code = f"from train import train\n{block('python', 'From Python')}"
    (workplace["cwd"] / "use.py").write_text(code)
    done = subprocess.run([sys.executable, "use.py"], text=True, **workplace)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loss 0.1" in done.stdout
    assert "recent" in done.stdout


def test_terminal_of_the_readme(workplace):
    lines = re.findall(r"^\$ (.+)$", block("console", "In a terminal"), re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        done = subprocess.run(line, shell=True, text=True, **workplace)
        if " cancel " in line:  # it has ended before anybody could
            assert "already succeeded" in done.stderr
            continue
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if " logs " in line:
            assert done.stdout == "loss 0.1\n"
