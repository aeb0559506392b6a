"""A cell's processes: the one that looks after it and the kernel, without a controller."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import until

from gpuqueue.client.cell import cell_payload
from gpuqueue.run.process import marked
from gpuqueue.run.values import load_file


class Attempt:
    """One run of a cell in a folder, as a runner would start it."""

    def __init__(self, folder: Path, source: str, **namespace: Any) -> None:
        payload = cell_payload(source, namespace, cwd=folder)
        self.folder = folder / "1"
        (self.folder / "run").mkdir(parents=True)
        for name, content in payload.files.items():
            (folder / name).write_bytes(b"".join(content) if name == "payload" else content)
        self.objects = payload.objects
        (folder / "spec.json").write_text(json.dumps(payload.spec()))
        env = {**payload.env, "GPUQUEUE_ATTEMPT_DIR": str(self.folder), "GPUQUEUE_JOB_ID": "7"}
        env.pop("PYTEST_CURRENT_TEST", None)
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                payload.argv, executable=payload.program, env=env, cwd=payload.cwd,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def end(self) -> int:
        code = self.process.wait(60)
        until(lambda: not marked("GPUQUEUE_ATTEMPT_DIR", str(self.folder)), what="nothing is left")
        return code

    @property
    def outputs(self) -> list[dict[str, Any]]:
        text = (self.folder / "outputs.jsonl").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return [output for output in found if output["output_type"] != "over"]

    @property
    def text(self) -> str:
        return "".join(o["text"] for o in self.outputs if o["output_type"] == "stream")

    @property
    def outcome(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "outcome.json").read_text()))

    @property
    def values(self) -> dict[str, Any]:
        found = load_file(self.folder / "result", origins=self.objects).values
        return {name: value for name, value in found.items() if name != "<around>"}


Start = Callable[..., Attempt]


@pytest.fixture
def start(tmp_path: Path) -> Any:
    folder = tmp_path / ("a long folder with ünusual letters " * 4)
    folder.mkdir()
    begun: list[Attempt] = []

    def begin(source: str, **namespace: Any) -> Attempt:
        begun.append(Attempt(folder, source, **namespace))
        return begun[-1]

    yield begin
    for attempt in begun:
        for pid in marked("GPUQUEUE_ATTEMPT_DIR", str(attempt.folder)):
            os.kill(pid, signal.SIGKILL)
        attempt.process.wait(10)


def test_a_cell_from_start_to_end(start: Start) -> None:
    cell = start("import os\nos.system('echo child')\nprint('hi ')\ny = x + 1\nx", x=1)
    assert cell.end() == 0
    # (a child's line may come between the text that print writes and its line's end)
    assert sorted(cell.text.split()) == ["child", "hi"]
    assert cell.outputs[-1]["data"] == {"text/plain": "1"}
    assert cell.outcome["reason"] == ""
    assert cell.outcome["names"] == ["y"] or set(cell.outcome["names"]) == {"y", "os"}
    assert cell.values["y"] == 2
    assert cell.values["<out>"] == 1
    # all of the text, once
    assert sorted(cell.log.read_text().split()) == ["1", "child", "hi"]


def test_a_cell_tells_how_much_device_memory_it_used(start: Start) -> None:
    cell = start("import gpuqueue.run.cellwork as work\nwork.peak_of_torch = lambda: 12345")
    assert cell.end() == 0
    assert cell.outcome["peak"] == 12345


@pytest.mark.parametrize("words", ["CUDA out of memory. Tried to allocate 2.00 GiB.", "no"])
def test_a_cell_says_whether_device_memory_ran_out(start: Start, words: str) -> None:
    cell = start(f"raise RuntimeError({words!r})")
    assert cell.end() == 1
    assert cell.outcome["out_of_memory"] is (words != "no")


def test_an_exception(start: Start) -> None:
    cell = start("before = 1\nprint('x', end='')\nraise ValueError('boo')\nafter = 1")
    assert cell.end() == 1
    assert cell.outcome["reason"] == "ValueError: boo"
    assert cell.values.keys() == {"before", "<error>"}
    assert isinstance(cell.values["<error>"], ValueError)
    assert [o["output_type"] for o in cell.outputs] == ["stream", "error"]
    assert cell.log.read_text().startswith("x\n----")


def test_what_comes_after_an_exception_is_marked(start: Start) -> None:
    cell = start(
        "get_ipython().run_cell('1 / 0')\n"
        "get_ipython().events.register('post_execute', lambda: display('later'))\n"
        "print('x')\nraise KeyError('k')"
    )
    assert cell.end() == 1
    lines = (cell.folder / "outputs.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["output_type"] for line in lines]
    assert kinds == ["error", "stream", "error", "over", "display_data"]


def test_interrupted_while_it_runs(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    cell = start(f"import time\na = 1\nopen({str(mark)!r}, 'w').close()\ntime.sleep(600)")
    until(mark.exists)
    os.kill(cell.process.pid, signal.SIGINT)
    assert cell.end() == 130
    assert cell.outcome["reason"] == "KeyboardInterrupt"
    assert cell.values["a"] == 1


def test_interrupted_before_it_runs(start: Start, tmp_path: Path) -> None:
    cell = start(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    until(lambda: len(marked("GPUQUEUE_ATTEMPT_DIR", str(cell.folder))) > 1, what="its kernel")
    os.kill(cell.process.pid, signal.SIGINT)
    assert cell.end() in (130, 0)
    assert (tmp_path / "ran").exists() == (cell.process.returncode == 0)


@pytest.mark.parametrize(
    ("death", "code", "words"),
    [
        ("os.kill(os.getpid(), 9)", -9, "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", -11, "SIGSEGV"),
        ("os._exit(3)", 3, "exit code 3"),
        ("os._exit(0)", 1, "exit code 0"),
    ],
)
def test_its_kernel_dies(start: Start, death: str, code: int, words: str) -> None:
    cell = start(f"import os\nprint('still here', flush=True)\n{death}")
    assert cell.end() == code
    assert words in cell.outcome["reason"]
    assert "still here" in cell.text


def test_the_kernel_ends_when_it_is_left_alone(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    cell = start(f"import time\nopen({str(mark)!r}, 'w').close()\ntime.sleep(2)")
    until(mark.exists)
    cell.process.kill()
    assert cell.end() == -9


def test_a_cancelled_cell_leaves_no_sockets_behind(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Path(tempfile.mkdtemp(prefix="t-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    try:
        mark = tmp_path / "mark"
        cell = start(f"import time\nopen({str(mark)!r}, 'w').close()\ntime.sleep(600)")
        until(lambda: any(short.iterdir()), what="its sockets")
        until(mark.exists)
        assert not any(short.iterdir())
        cell.process.terminate()
        assert cell.process.wait(60) == -signal.SIGTERM
        until(lambda: not marked("GPUQUEUE_ATTEMPT_DIR", str(cell.folder)))
    finally:
        shutil.rmtree(short)


def test_exit_ends_the_cell_and_not_what_it_made(start: Start) -> None:
    cell = start("kept = 1\nexit()")
    assert cell.end() == 0
    assert cell.values["kept"] == 1


def test_modules_of_the_users_folder_do_not_disturb_ours(start: Start, tmp_path: Path) -> None:
    folder = next(tmp_path.iterdir())
    for name in ("queue", "json", "zmq", "signal", "select"):
        (folder / f"{name}.py").write_text("raise RuntimeError('not this one')")
    (folder / "mine.py").write_text("V = 5")
    cell = start("import mine, sys\nv = mine.V", sys=1)
    # the import path of this process does not have that folder; a notebook's has
    spec = json.loads((folder / "spec.json").read_text())
    assert cell.end() == (0 if str(folder) in spec["sys_path"] else 1)


def test_an_input_that_cannot_be_loaded_is_told_and_the_cell_does_not_run(
    start: Start, tmp_path: Path
) -> None:
    class Here:
        def __reduce__(self) -> Any:
            return eval, ("1/0",)

    cell = start(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nthing", thing=Here())
    assert cell.end() == 1
    assert "thing" in cell.outcome["reason"]
    assert "ZeroDivisionError" in cell.outcome["reason"]
    assert not (tmp_path / "ran").exists()
