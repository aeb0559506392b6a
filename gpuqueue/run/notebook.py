"""The payload of a ``notebook`` job: run it from top to bottom, keep it with its outputs.

The executed notebook is ``run/output.ipynb`` in the attempt, written anew after each cell.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from gpuqueue.run.files import write_json
from gpuqueue.run.kernels import remove_when_told_to_end, short_folder

__all__ = ["inject", "run"]

OUTPUT = "output.ipynb"


def run(job_dir: str, attempt: str, spec: Mapping[str, Any]) -> NoReturn:
    """Run the notebook; exit 0 if every cell did, 1 if one failed, 130 if it was interrupted."""
    nbformat: Any = import_module("nbformat")
    with open(os.path.join(job_dir, "payload"), encoding="utf-8") as file:
        notebook = nbformat.read(file, as_version=4)
    inject(notebook, spec.get("parameters") or {})
    sys.exit(_NotebookRun(notebook, attempt).run())


# -- parameters -------------------------------------------------------------------------------


def inject(notebook: Any, parameters: Mapping[str, Any]) -> None:
    """Set parameters in a cell after the one tagged ``parameters``, or before all others.

    As papermill does, so that notebooks written for it work; a cell that an earlier run has
    injected is replaced.
    """
    if not parameters:
        return
    nbformat: Any = import_module("nbformat")
    lines = [f"{name} = {_literal(value)}" for name, value in parameters.items()]
    cell = nbformat.v4.new_code_cell("\n".join(["# Parameters", *lines]))
    cell.metadata["tags"] = ["injected-parameters"]
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        cell.pop("id", None)
    cells = notebook.cells
    for index, other in enumerate(cells):
        if "injected-parameters" in _tags(other):
            cells[index] = cell
            return
    for index, other in enumerate(cells):
        if "parameters" in _tags(other):
            cells.insert(index + 1, cell)
            return
    cells.insert(0, cell)


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", ()))


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(part)}" for key, part in value.items()) + "}"
    return repr(value)


# -- running ----------------------------------------------------------------------------------


class _NotebookRun:
    def __init__(self, notebook: Any, attempt: str) -> None:
        self.notebook = notebook
        self.attempt = attempt
        self.interrupted = False
        self.folder = tempfile.mkdtemp(prefix="gq-", dir=short_folder())
        self.client: Any = None
        remove_when_told_to_end(self.folder)
        signal.signal(signal.SIGINT, self._on_interrupt)

    def _on_interrupt(self, *_: Any) -> None:
        self.interrupted = True
        with contextlib.suppress(Exception):  # the kernel may not be there yet, or no longer
            os.killpg(self._process().pid, signal.SIGINT)

    def _process(self) -> Any:
        return self.client.km.provisioner.process

    def run(self) -> int:
        """Run all cells; the exit code."""
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        self.client = self._make_client()
        code_cells = [
            (index, cell)
            for index, cell in enumerate(self.notebook.cells)
            if cell.cell_type == "code" and cell.source.strip()
        ]
        for _, cell in code_cells:
            cell.outputs, cell.execution_count = [], None
        self._write()
        number, total = 0, len(code_cells)
        try:
            with self.client.setup_kernel():
                for number, (index, cell) in enumerate(code_cells, 1):
                    if self.interrupted:
                        return self._fail(number, total, "KeyboardInterrupt", 130)
                    started = time.monotonic()
                    self.client.execute_cell(cell, index)
                    self._write()
                    print(
                        f"cell {number}/{total} done, {time.monotonic() - started:.1f} s",
                        flush=True,
                    )
        except CellExecutionError as error:
            code = 130 if error.ename == "KeyboardInterrupt" else 1
            return self._fail(number, total, f"{error.ename}: {error.evalue}".rstrip(": "), code)
        except DeadKernelError:
            return self._fail(number, total, f"its kernel died{self._cause()}", 1)
        finally:
            self._write()
            shutil.rmtree(self.folder, ignore_errors=True)
        return 0

    def _cause(self) -> str:
        with contextlib.suppress(Exception):
            code = self._process().poll()
            if code == -signal.SIGKILL:
                return " of SIGKILL; most often the machine was out of memory"
            if code is not None and code < 0:
                return f" of {signal.Signals(-code).name}"
        return ""

    def _fail(self, number: int, total: int, reason: str, code: int) -> int:
        words = f"cell {number} of {total}: {reason}" if number else reason
        write_json(
            os.path.join(self.attempt, "outcome.json"), {"reason": words[:2000], "cell": number}
        )
        print(words, flush=True)
        return code

    def _write(self) -> None:
        """Write the notebook as it is now, whole or not at all."""
        nbformat: Any = import_module("nbformat")
        path = os.path.join(self.attempt, "run", OUTPUT)
        with contextlib.suppress(OSError):  # a full disk costs a look in between, never the job
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".part", "w", encoding="utf-8") as file:
                file.write(nbformat.writes(self.notebook))
            os.rename(path + ".part", path)

    def _make_client(self) -> Any:
        from nbclient import NotebookClient

        return NotebookClient(
            self.notebook,
            km=self._make_manager(),
            timeout=None,
            startup_timeout=120,
            resources={"metadata": {"path": os.getcwd()}},
        )

    def _make_manager(self) -> Any:
        from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager

        metadata = self.notebook.metadata.get("kernelspec", {})
        language = metadata.get("language") or "python"

        class OwnPython(KernelSpecManager):
            """The interpreter that submitted the notebook, whatever its kernel is called."""

            def get_kernel_spec(self, name: str) -> Any:
                if language.lower() != "python":
                    return super().get_kernel_spec(name)
                flags = ["-Xfrozen_modules=off"] if sys.version_info >= (3, 11) else []
                return KernelSpec(
                    argv=[
                        sys.executable, *flags, "-m", "ipykernel_launcher",
                        "-f", "{connection_file}", "--HistoryManager.enabled=False",
                    ],
                    language="python",
                    display_name="Python 3",
                )  # fmt: skip

        return AsyncKernelManager(
            kernel_name=metadata.get("name") or "python3",
            kernel_spec_manager=OwnPython(),
            transport="ipc",
            ip=os.path.join(self.folder, "k"),
            connection_file=os.path.join(self.folder, "kernel.json"),
        )
