"""A notebook without a front end: cells run one by one, outputs as a notebook would keep them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from conftest import until
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from transparency import no_ports, wait_for_spare


class Ran:
    """What one cell showed."""

    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs

    def stream(self, name: str | None = None) -> str:
        return "".join(
            output.text
            for output in self.outputs
            if output.output_type == "stream" and name in (None, output.name)
        )

    @property
    def error(self) -> tuple[str, str] | None:
        for output in self.outputs:
            if output.output_type == "error":
                return output.ename, output.evalue
        return None

    @property
    def traceback(self) -> str:
        return "\n".join(
            line for o in self.outputs if o.output_type == "error" for line in o.traceback
        )

    @property
    def result(self) -> str | None:
        for output in self.outputs:
            if output.output_type == "execute_result":
                return str(output.data["text/plain"])
        return None

    @property
    def kinds(self) -> list[str]:
        return [output.output_type for output in self.outputs]


class Notebook:
    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def run(self, source: str) -> Ran:
        cell = nbformat.v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        return Ran(cell.outputs)

    def ok(self, source: str) -> Ran:
        ran = self.run(source)
        assert ran.error is None, ran.error
        return ran

    def gpu(self, source: str, options: str = "") -> Ran:
        return self.run(f"%%gpu {options}\n{source}")

    def run_interrupted(self, source: str, when: Any) -> Ran:
        """Run a cell, and interrupt the kernel as soon as ``when()`` is true."""

        def interrupt() -> None:
            until(when, what="the moment to interrupt")
            os.killpg(self._client.km.provisioner.process.pid, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            return self.run(source)
        finally:
            thread.join()


@contextmanager
def notebook(folder: Path) -> Iterator[Notebook]:
    """A new notebook in a folder, with the magics loaded."""
    folder.mkdir(exist_ok=True)
    client = NotebookClient(
        nbformat.v4.new_notebook(),
        kernel_name="python3",
        allow_errors=True,
        timeout=120,
        resources={"metadata": {"path": str(folder)}},
    )
    # ipykernel does not watch the descriptors of a process that it takes for a test
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    with no_ports(client), client.setup_kernel(env=env):
        made = Notebook(client)
        made.ok("%reload_ext gpuqueue")
        if os.environ.get("GPUQUEUE_TESTS_SPARE"):
            # as in a notebook that has run cells before: what comes now can come to its spare
            # kernel. Tests that expect a job to be the first one do not hold then
            made.ok("%%gpu\npass")
            wait_for_spare(os.environ["GPUQUEUE_HOME"])
        yield made
