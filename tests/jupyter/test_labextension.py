"""The front end's files are whole, and agree with the rest of the package."""

import json
import re
import tomllib
from pathlib import Path

import gpuqueue_jupyter
import pytest
from gpuqueue_jupyter.extension import EVENT_SCHEMA
from gpuqueue_jupyter.handlers import API

import gpuqueue
from gpuqueue.client.status import SCHEMA

ROOT = Path(__file__).parents[2]
PANEL = ROOT / "widgets" / "panel"
FOLDER = ROOT / "jupyter_ext" / "labextension"
PACKAGE = json.loads((FOLDER / "package.json").read_text())
ENTRY = (FOLDER / "files" / "remoteEntry.js").read_text()


def test_the_version_is_the_packages() -> None:
    assert PACKAGE["version"] == gpuqueue.__version__


def test_what_it_names_is_there() -> None:
    assert (FOLDER / PACKAGE["jupyterlab"]["_build"]["load"]).is_file()
    schema = json.loads((FOLDER / "schemas" / PACKAGE["name"] / "panel.json").read_text())
    assert schema["properties"]["refresh"]["minimum"] >= 5
    (path,) = gpuqueue_jupyter._jupyter_labextension_paths()
    assert path["dest"] == PACKAGE["name"]


def test_installing_puts_everything_in_its_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    place = f"share/jupyter/labextensions/{PACKAGE['name']}"
    assert shared["jupyter_ext/labextension"] == place
    assert shared["widgets/panel"] == f"{place}/files/panel"
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["widgets/panel"] == "gpuqueue_widgets/panel"
    assert all((ROOT / source).exists() for source in shared)


def test_no_browser_keeps_an_older_version_of_it() -> None:
    """JupyterLab lets browsers keep what lies in folders named ``static`` for a year, unasked."""
    load = PACKAGE["jupyterlab"]["_build"]["load"]
    assert "static" not in Path(load).parts
    assert not list(FOLDER.glob("**/static"))


def test_it_speaks_to_this_extension_below_the_base_url() -> None:
    source = (PANEL / "source.mjs").read_text()
    assert f"'{EVENT_SCHEMA['$id']}'" in ENTRY
    assert f"'{EVENT_SCHEMA['$id']}'" in source
    assert f"'{API}'" in ENTRY
    assert f"'{API}'" in source
    assert "'/" not in ENTRY.replace("'/>", "")
    assert "fetch(" not in ENTRY


def test_the_view_is_of_this_version() -> None:
    version = (PANEL / "version.mjs").read_text()
    assert f"VERSION = '{gpuqueue.__version__}'" in version
    assert f"SCHEMA = {SCHEMA};" in version


@pytest.mark.parametrize("path", sorted(PANEL.glob("*.mjs")), ids=lambda path: path.name)
def test_the_view_stands_alone_and_makes_no_markup_of_text(path: Path) -> None:
    text = path.read_text()
    imports = re.findall(r"(?:from|import)\s*\(?'([^']+)'", text)
    assert all(re.fullmatch(r"\./[\w-]+\.mjs", name) for name in imports)
    for wrong in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval("):
        assert wrong not in text
    addresses = set(re.findall(r"https?://[^'\s]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", EVENT_SCHEMA["$id"]}
    assert path.name == "strings.mjs" or len(text.splitlines()) < 400


def test_every_word_that_is_used_is_there() -> None:
    strings = (PANEL / "strings.mjs").read_text()
    known = set(re.findall(r"^  (\w+):", strings, re.MULTILINE))
    used = {
        name for path in PANEL.glob("*.mjs") for name in re.findall(r"\bS\.(\w+)", path.read_text())
    }
    assert used <= known
    assert known - used <= {"past", "now", "next"}  # these are looked up by what a bar is
