"""A notebook whose kernel free mode concerns says so above its cells, in a real JupyterLab."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from lab_server import TOKEN, Server, jupyter, server
from panel_browser import *  # noqa: F403
from panel_browser import FILES, picture, site, watched
from test_lab_notebooks import EXTENSION, kernel_of, notebook, talk

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.model import JobState
from gpuqueue.paths import Home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PAUSED = "This notebook's kernel is paused. The GPUs are free for the person at the machine."
CELL = """import itertools, pathlib, time
for number in itertools.count():
    pathlib.Path('count').write_text(str(number)); time.sleep(0.05)"""


@pytest.fixture
def procs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of pretend processes on the one pretend GPU."""
    file = tmp_path / "procs"
    file.touch()
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(file))
    return file


@pytest.fixture(params=["lab", "notebook"])
def made(home: Home, procs: Path, tmp_path: Path, request: Any) -> Iterator[Server]:
    """JupyterLab, or Notebook 7, with this checkout's panel."""
    there = tmp_path / "data" / "labextensions" / "jupyter-gpuqueue"
    shutil.copytree(EXTENSION, there)
    shutil.copytree(FILES, there / "files" / "panel")
    command = jupyter(request.param, "--LabApp.news_url=None")
    env = {"JUPYTER_PATH": str(tmp_path / "data")}
    with server(home, tmp_path / "work", *command, env=env) as found:
        found.application = request.param  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def page(browser: Any, made: Server) -> Iterator[Any]:
    """A notebook that has asked for a share, open in it."""
    notebook(made, "a b.ipynb", {"share": "0.25", "mem": "20G"})
    shown = watched(browser.new_page(viewport={"width": 1100, "height": 600}))
    shown.set_default_timeout(90_000)
    places = {"lab": "lab/tree/a%20b.ipynb?reset&", "notebook": "notebooks/a%20b.ipynb?"}
    shown.goto(f"{made.url}{places[made.application]}token={TOKEN}")  # type: ignore[attr-defined]
    yield shown
    # a page that is left while its kernel stands still gives up what it has asked the kernel
    assert [words for words in shown.problems if "Canceled future" not in words] == []
    shown.close()


def banner(page: Any) -> Any:
    return page.locator(".gq-paused")


def count(made: Server) -> int:
    text = (made.folder / "count").read_text() if (made.folder / "count").exists() else ""
    return int(text or 0)


def inside(page: Any) -> bool:
    """Whether the whole banner can be seen, with nothing of the cells over it."""
    return bool(
        page.evaluate(
            """() => {
              const node = document.querySelector('.gq-paused');
              const box = node.getBoundingClientRect();
              const seen = [box.top + 3, box.bottom - 3].map(y =>
                document.elementFromPoint(box.left + 10, y));
              return box.height > 20 && seen.every(one => node.contains(one));
            }"""
        )
    )


def dark(made: Server, page: Any) -> None:
    """The page once more, in Jupyter's dark theme."""
    asked = {"raw": '{"theme": "JupyterLab Dark"}'}
    status, answer = made.ask(
        "PUT", "lab/api/settings/@jupyterlab/apputils-extension:themes", asked
    )
    assert status == 204, answer
    page.reload()
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")


def test_a_busy_kernel_is_paused_until_resume_and_an_idle_one_may_be_started_again(
    made: Server, client: LocalClient, page: Any, procs: Path
) -> None:
    share = kernel_of(client, "a b.ipynb")
    (session,) = until(lambda: made.ask("GET", "api/sessions")[1], what="the page has a session")
    number = session["kernel"]["id"]
    kernel = talk(made, number)
    kernel.execute(CELL)
    until(lambda: count(made) > 3, what="the cell runs")
    assert banner(page).count() == 0

    gpuqueue.free()
    banner(page).get_by_text(PAUSED).wait_for()
    until(lambda: client.job(share.id).state is JobState.FROZEN)
    assert inside(page)
    name = made.application  # type: ignore[attr-defined]
    picture(page, f"paused-{name}-light")
    page.reload()
    banner(page).get_by_text(PAUSED).wait_for()
    stands = count(made)
    assert banner(page).get_by_role("button", name="Release").count() == 0
    page.set_viewport_size({"width": 420, "height": 600})
    until(lambda: inside(page), what="it grows where it is narrow")
    page.set_viewport_size({"width": 1100, "height": 600})
    banner(page).get_by_role("button", name="Resume").click()
    banner(page).wait_for(state="detached")
    until(lambda: count(made) > stands, what="the cell goes on")
    assert client.store.mode().normal

    # idle: it keeps what it has, and may be started again to let go of it
    kernel.stop_channels()
    process = client.job(share.id).process
    made.ask("POST", f"api/kernels/{number}/interrupt", {})
    until(lambda: made.ask("GET", f"api/kernels/{number}")[1]["execution_state"] == "idle")
    assert process is not None
    procs.write_text(f"{process.pid}:0:6144\n")
    until(lambda: (client.machine().used or {}).get(share.id), what="it holds some memory")
    gpuqueue.free()
    banner(page).get_by_text("This notebook still holds 6G of GPU 0").wait_for()
    picture(page, f"holds-{name}-light")
    dark(made, page)
    banner(page).get_by_text("This notebook still holds 6G of GPU 0").wait_for()
    assert inside(page)
    picture(page, f"holds-{name}-dark")
    banner(page).get_by_role("button", name="Release").click()
    assert client.job(share.id).process == process
    banner(page).get_by_role("button", name="Restart its kernel? Variables are lost").click()
    until(lambda: client.job(share.id).process not in (None, process), what="it is started again")
    procs.write_text("")
    assert client.job(share.id).state is JobState.RUNNING
    gpuqueue.resume()
    banner(page).wait_for(state="detached")


def test_what_a_notebook_is_told(browser: Any) -> None:
    shown = site(watched(browser.new_page()))
    told = shown.evaluate(
        """async () => {
          const { toldOf } = await import('./paused.mjs');
          const row = memory => ({job: 1, tag: 'a', gpu: 0, memory});
          const job = (state, reason = '') => ({id: 1, state, reason});
          const mode = more => ({mode: {name: 'free', by: 'person', program: '', holding: [],
            moved: [], ...more}});
          const say = (...about) => {
            const told = toldOf(...about);
            return told && [told.kind, told.words];
          };
          return {
            quiet: say(job('running'), mode({name: 'normal'})),
            none: say(job('running'), {}),
            nothing: say(job('running'), mode({})),
            other: say(job('running'), mode({holding: [{...row(1), job: 2}]})),
            starting: say(job('starting'), mode({holding: [row(1)]})),
            paused: say(job('frozen'), mode({by: 'automatic', program: 'blender'})),
            unknown: say(job('running'), mode({holding: [row(null)]})),
            moved: say(job('running'), mode({moved: [row(6 * 2 ** 30)]})),
            waits: say(job('running', 'its memory waits'), mode({name: 'normal'})),
            frozen: say(job('frozen', 'no room'), mode({name: 'normal'})),
          };
        }"""
    )
    person = "The GPUs are free for the person at the machine"
    assert [told[name] for name in ("quiet", "none", "nothing", "other", "starting")] == [None] * 5
    assert told["paused"] == [
        "paused", "This notebook's kernel is paused. The GPUs are free for blender.",
    ]  # fmt: skip
    assert told["unknown"] == [
        "holds",
        f"{person}. This notebook still holds memory of GPU 0; a cell that runs now is paused "
        "until Resume.",
    ]
    assert told["moved"] == [
        "moved",
        f"{person}. 6G of this notebook's GPU memory are on the host: cells that use the GPU wait "
        "until Resume.",
    ]
    going = "This notebook's kernel cannot go on yet: "
    assert told["waits"] == ["waits", f"{going}its memory waits."]
    assert told["frozen"] == ["waits", f"{going}no room."]
    shown.close()
