"""Whether cells give under ``%%gpu`` what they give without it.

    python bench/transparency.py NOTEBOOK...      a .ipynb, or a .py with "# %%" between cells
    python bench/transparency.py -v NOTEBOOK...   with both sides of each difference

Each notebook runs plainly and with ``%%gpu`` on every code cell, each time in a kernel of its own
in a copy of its folder. After each cell everything that a later cell could see is compared: the
outputs as a notebook would store them, the widgets' state as a front end has it, every variable
(with what is shared between them), and the surroundings (working directory, environment, import
path, random states, library settings).

A cell *agrees* if its outputs are the same and it leaves the same variables and surroundings; a
difference that an earlier cell left behind is not counted again. Addresses, times and rates are
left out by their look; what else differs between two plain runs is not compared, and the cells
that have it are counted as *loose*.

With ``--spare``, each cell after the first waits until the notebook's spare kernel can take it.

The queue has a state directory of its own and pretend GPUs, unless ``--real`` is given. The last
line printed is one JSON object; the exit code is 0 if all cells agree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

__all__ = ["Compared", "Plain", "compare", "no_ports", "own_queue", "wait_for_spare"]

_PROBE = Path(__file__).with_name("transparency_probe.py")
_LARGEST_FOLDER = 50 << 20
_BLURS = [
    (re.compile(r"\x1b\[[\d;]*m"), ""),
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x"),
    (re.compile(r"/tmp/transparency-\w+/(plain|again|magic)"), "/tmp/here"),
    (re.compile(r"ipykernel_\d+/\d+\.py(:\d+)?"), "ipykernel.py"),
    (re.compile(r"\((\d+\.py|Cell In\[\d+\]), line \d+\)"), "(LINE)"),
    (re.compile(r"(Wall time|CPU times|Compiler|user|sys|total): .*"), r"\1"),
    (re.compile(r"[\d.]+ ?([mnuµμ]?s|min|h)\b( ± [^\n]*)?"), "TIME"),
    (re.compile(r"(\d+ loops?|mean ± std)[^\n]*"), "LOOPS"),
    (re.compile(r"\d\d:\d\d(:\d\d)?(<[\d:?]+)?"), "TIME"),
    (re.compile(r"[\d.?]+ ?[kM]?(it|B|s)/(s|it)"), "RATE"),
    (re.compile(r"\|[\u2588-\u258f#\d ]+\|"), "|BAR|"),  # as wide as the rate leaves room
    (re.compile(r"\d{4}-\d\d-\d\d[ T][\d:.,]*"), "DATE"),
]


def _blur(text: str) -> str:
    for pattern, word in _BLURS:
        text = pattern.sub(word, text)
    return text


def _final(text: str) -> str:
    """What a line shows in the end."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for state in line.split("\r"):
            shown = state + shown[len(state) :]
        lines.append(shown)
    return "\n".join(lines)


def _error_lines(traceback: Sequence[str]) -> list[str]:
    """The user's lines that a traceback points at."""
    text = _blur("\n".join(traceback))
    found = re.findall(r"^-+> *\d+ (.*)$", text, re.MULTILINE)
    return [line.strip() for line in found if not line.lstrip().startswith("get_ipython()")]


def _comparable(outputs: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for output in outputs:
        kind = output.output_type
        if kind == "stream":
            if found and found[-1][:2] == ["stream", output.name]:
                found[-1][2] += output.text
            else:
                found.append(["stream", output.name, output.text])
        elif kind == "error":
            found.append(
                ["error", output.ename, _blur(output.evalue), _error_lines(output.traceback)]
            )
        else:
            data = {
                mime: _blur(value) if isinstance(value, str) and "image" not in mime else value
                for mime, value in output.data.items()
                if "widget" not in mime
            }
            found.append([kind, data, dict(output.get("metadata", {}))])
    for one in found:
        if one[0] == "stream":
            one[2] = _blur(_final(one[2]))
    return found


@dataclass
class Compared:
    """How one notebook did.

    Attributes
    ----------
    cells, agree
        Numbers of code cells.
    loose, loose_for
        Cells of which something is not repeatable even without the magic, and what that is.
    reasons
        By the cell's number, from 0: what differs, and both sides of it.
    """

    notebook: str
    cells: int = 0
    agree: int = 0
    loose: int = 0
    loose_for: set[str] = field(default_factory=set)
    reasons: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def no_ports(client: NotebookClient) -> Iterator[None]:
    """Have a notebook's kernel talk through files.

    Of kernels that are started at the same time, one now and then finds the port taken by another
    that was free when it was chosen.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        client.config = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/k"}})
        yield


class _Side:
    """A notebook on its way through a kernel."""

    def __init__(self, folder: Path, magic: str, timeout: float, *, spare: bool) -> None:
        self.magic = magic
        self._spare = spare
        self._report = folder.parent / "state.json"
        self._client = NotebookClient(
            nbformat.v4.new_notebook(),
            kernel_name="python3",
            allow_errors=True,
            timeout=timeout,
            resources={"metadata": {"path": str(folder)}},
        )

    @contextlib.contextmanager
    def kernel(self) -> Iterator[None]:
        env = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
        env |= {"PYTHONHASHSEED": "0"}
        with no_ports(self._client), self._client.setup_kernel(env=env):
            self.run("%reload_ext gpuqueue")
            if self._spare:
                # without a trace, as the probe
                self._client.kc.execute(
                    "get_ipython().run_cell_magic('gpu', '', 'pass')", silent=True,
                    store_history=False,
                )  # fmt: skip
                wait_for_spare(os.environ["GPUQUEUE_HOME"])
            yield

    def run(self, source: str) -> list[Any]:
        cell = nbformat.v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        return list(cell.outputs)

    def step(self, source: str) -> tuple[list[Any], dict[str, Any]]:
        if self._spare:
            wait_for_spare(os.environ["GPUQUEUE_HOME"])
        outputs = self.run(f"{self.magic}\n{source}" if self.magic else source)
        # without a trace: no execution count, nothing in the history
        kc = self._client.kc
        code = f"exec(open({str(_PROBE)!r}).read(), {{'report': {str(self._report)!r}}})"
        self._report.unlink(missing_ok=True)
        kc.execute(code, silent=True, store_history=False)
        deadline = time.monotonic() + 60
        while not self._report.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        state = json.loads(self._report.read_text()) if self._report.exists() else {"": "no answer"}
        state["<widgets>"] = self._widgets()
        return _comparable(outputs), state

    def _widgets(self) -> list[str]:
        """The widgets as a front end has them now, in the order in which they were made."""
        text = json.dumps(list(self._client.widget_state.values()), sort_keys=True)
        for number, model in enumerate(self._client.widget_state):
            text = text.replace(model, f"widget {number}")
        return [_blur(json.dumps(state)) for state in json.loads(text)]


def _sources(path: Path) -> list[str]:
    if path.suffix == ".py":
        parts = re.split(r"^# %%.*\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return [part.strip("\n") for part in parts[1:] if part.strip()]
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return [c.source for c in notebook.cells if c.cell_type == "code" and c.source.strip()]


def _copy(path: Path, target: Path) -> None:
    size = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
    if size > _LARGEST_FOLDER:
        target.mkdir(parents=True)
        shutil.copy(path, target)
    else:
        shutil.copytree(path.parent, target)


Step = tuple[list[Any], dict[str, Any]]


def _outputs_differ(plain: list[Any], gpu: list[Any]) -> str:
    kinds = [[one[1] if one[0] == "stream" else one[0] for one in side] for side in (plain, gpu)]
    if kinds[0] != kinds[1]:
        return f"outputs are {kinds[1]} instead of {kinds[0]}"
    for at, (one, other) in enumerate(zip(plain, gpu, strict=True)):
        if one != other:
            return f"output {at} ({kinds[0][at]}) differs"
    return ""


def _left(plain: Mapping[str, Any], gpu: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {
        name: (plain.get(name, "absent"), gpu.get(name, "absent"))
        for name in sorted(plain.keys() | gpu.keys())
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def compare(
    path: Path, *, timeout: float = 600, options: str = "", spare: bool = False
) -> Compared:
    """Run a notebook plainly, plainly again and with the magic, and compare."""
    plain = Plain(path, timeout)
    return plain.compare(options=options, spare=spare)


class Plain:
    """A notebook that has run plainly, twice, to be compared with the magic any number of times."""

    def __init__(self, path: Path, timeout: float = 600) -> None:
        self.path, self.timeout = path, timeout
        self.sources = _sources(path)
        self.seconds: dict[str, float] = {}
        self.steps = {name: self._run(name, "", self.seconds) for name in ("plain", "again")}

    def _run(
        self, name: str, magic: str, seconds: dict[str, float], *, spare: bool = False
    ) -> list[Step]:
        with tempfile.TemporaryDirectory(prefix="transparency-") as scratch:
            folder = Path(scratch) / name / "here"
            _copy(self.path, folder)
            side = _Side(folder, magic, self.timeout, spare=spare)
            began = time.monotonic()
            with side.kernel():
                steps = [side.step(source) for source in self.sources]
            seconds[name] = round(time.monotonic() - began, 2)
        return steps

    def compare(self, *, options: str = "", spare: bool = False) -> Compared:
        """Run it with the magic, and compare."""
        result = Compared(str(self.path), seconds=dict(self.seconds))
        magic = f"%%gpu {options}".strip()
        found = self._run("magic", magic, result.seconds, spare=spare)
        known: dict[str, Any] = {}
        for index, (plain, again, gpu) in enumerate(
            zip(self.steps["plain"], self.steps["again"], found, strict=True)
        ):
            loose = _left(plain[1], again[1])
            reasons = []
            if plain[0] == again[0] and (words := _outputs_differ(plain[0], gpu[0])):
                reasons.append((words, _both(plain[0], gpu[0])))
            left = _left(plain[1], gpu[1])
            reasons += [
                (f"{name} differs", _both(*pair))
                for name, pair in left.items()
                if name not in loose and known.get(name) != pair
            ]
            known = left
            result.cells += 1
            if loose or plain[0] != again[0]:
                result.loose += 1
                result.loose_for.update([*loose, *(["outputs"] if plain[0] != again[0] else [])])
            if reasons:
                result.reasons[index] = reasons
            else:
                result.agree += 1
        return result


def _both(plain: Any, gpu: Any) -> str:
    one, other = str(plain), str(gpu)
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    start = max(0, at - 150)
    return f"plain {one[start : at + 350]}\n      %%gpu {other[start : at + 350]}"


@contextlib.contextmanager
def own_queue(*, real: bool) -> Iterator[None]:
    """A queue with a state directory of its own, ended afterwards; with ``real``, the user's."""
    if real:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="transparency-queue-") as home:
        before = dict(os.environ)
        os.environ |= {"GPUQUEUE_HOME": home, "GPUQUEUE_FAKE_GPUS": "80G"}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            from gpuqueue.run.process import marked

            for pid in marked("GPUQUEUE_HOME", home):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 20
            while marked("GPUQUEUE_HOME", home) and time.monotonic() < deadline:
                time.sleep(0.05)


def _spare_is_ready(home: str) -> bool:
    """Whether a spare kernel of that state directory has a kernel waiting for a job."""
    from gpuqueue.run.process import children_map, descendants, marked

    found = {pid for pid in marked("GPUQUEUE_HOME", home) if _is_spare(pid)}
    children = children_map() or {}
    forked = {child for pid in found for child in children.get(pid, ())}
    # a runner, its payload and the kernel
    return any(len(descendants(pid, children)) >= 3 for pid in found - forked)


def _is_spare(pid: int) -> bool:
    try:
        return b"gpuqueue.run.spare " in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def wait_for_spare(home: str, timeout: float = 60.0) -> bool:
    """Wait until it is; whether it was in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if _spare_is_ready(home):
            return True
        time.sleep(0.02)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument("-v", "--verbose", action="store_true", help="show both sides")
    parser.add_argument("--real", action="store_true", help="use this user's own queue and GPUs")
    parser.add_argument("--options", default="", help="options for %%%%gpu, such as --cpu")
    parser.add_argument("--spare", action="store_true", help="wait for the spare kernel")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one cell")
    asked = parser.parse_args()
    all_of_them = []
    with own_queue(real=asked.real):
        for path in asked.notebooks:
            one = compare(path, timeout=asked.timeout, options=asked.options, spare=asked.spare)
            all_of_them.append(one)
            print(f"{one.agree} of {one.cells} cells agree in {path}", flush=True)
            for index, reasons in one.reasons.items():
                for reason, both in reasons:
                    print(f"  cell {index}: {reason}", flush=True)
                    if asked.verbose:
                        print(f"      {both}", flush=True)
    cells, agree = (sum(getattr(one, key) for one in all_of_them) for key in ("cells", "agree"))
    told = {
        "cells": cells,
        "agree": agree,
        "fraction": round(agree / cells, 4) if cells else None,
        "notebooks": [
            {
                "notebook": one.notebook, "cells": one.cells, "agree": one.agree,
                "loose": one.loose, "loose_for": sorted(one.loose_for), "seconds": one.seconds,
                "reasons": {at: [why for why, _ in some] for at, some in one.reasons.items()},
            }
            for one in all_of_them
        ],
    }  # fmt: skip
    print(json.dumps(told))
    return 0 if agree == cells else 1


if __name__ == "__main__":
    sys.exit(main())
