"""The front end's files are whole, and agree with the rest of the package."""

import json
import tomllib
from pathlib import Path

import gpuqueue_jupyter
from gpuqueue_jupyter.extension import EVENT_SCHEMA
from gpuqueue_jupyter.handlers import API

import gpuqueue

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "jupyter_ext" / "labextension"
PACKAGE = json.loads((FOLDER / "package.json").read_text())
ENTRY = (FOLDER / "static" / "remoteEntry.js").read_text()


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
    assert shared["widgets/panel/panel.mjs"] == f"{place}/static/panel.mjs"
    assert all((ROOT / source).exists() for source in shared)


def test_it_speaks_to_this_extension_below_the_base_url() -> None:
    assert f"'{EVENT_SCHEMA['$id']}'" in ENTRY
    assert f"'{API}/status'" in ENTRY
    assert "'/" not in ENTRY.replace("'/>", "")
    assert "fetch(" not in ENTRY


def test_the_view_stands_alone() -> None:
    view = (ROOT / "widgets" / "panel" / "panel.mjs").read_text()
    assert not [line for line in view.splitlines() if line.startswith("import ")]
    assert "innerHTML" not in view
    assert "http:" not in view
    assert "https:" not in view
