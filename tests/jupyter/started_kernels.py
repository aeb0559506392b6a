"""Kernels of a server in this process, as its kernel manager starts them; to import from."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until
from gpuqueue_jupyter.extension import GpuqueueExtension

from gpuqueue.client import LocalClient
from gpuqueue.model import ACTIVE, Job, JobKind
from gpuqueue.run.process import environment_of

__all__ = ["Start", "Talk", "book", "held", "manager", "of", "specs", "start"]

Start = Callable[..., Any]


@pytest.fixture
def manager(extension: GpuqueueExtension) -> Any:
    return extension.serverapp.kernel_manager


@pytest.fixture
def specs(tmp_path: Path, jp_environ: Any, jp_data_dir: Path) -> Callable[..., str]:
    """Add a kernelspec of a process that only lives; its name."""

    def add(name: str, *, language: str = "python", argv: Any = None, **metadata: Any) -> str:
        folder = jp_data_dir / "kernels" / name
        folder.mkdir(parents=True)
        program = [sys.executable, "-c", "import time; time.sleep(600)", "{connection_file}"]
        spec = {
            "argv": argv or program, "display_name": name, "language": language,
            "metadata": metadata,
        }  # fmt: skip
        (folder / "kernel.json").write_text(json.dumps(spec))
        return name

    return add


@pytest.fixture
def start(manager: Any, jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[Start]:
    """Start a kernel; its manager."""
    begun: list[str] = []

    def start(name: str, path: str | Path = "") -> Any:
        # where that is set, ipykernel does not show what is written to its standard error
        env = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        if path:
            env["JPY_SESSION_NAME"] = str(path)
        begun.append(
            jp_asyncio_loop.run_until_complete(manager.start_kernel(kernel_name=name, env=env))
        )
        return manager.get_kernel(begun[-1])

    yield start
    for kernel in begun:
        if kernel in manager:
            jp_asyncio_loop.run_until_complete(manager.shutdown_kernel(kernel, now=True))


def held(client: LocalClient) -> list[Job]:
    """The kernels that hold a share."""
    return [j for j in client.store.live() if j.kind is JobKind.KERNEL and j.state in ACTIVE]


def of(kernel: Any) -> dict[str, str]:
    """The environment of a kernel's process."""
    return environment_of(kernel.provisioner.process.pid)


def book(folder: Path, **asked: Any) -> Path:
    path = folder / "a.ipynb"
    path.write_text(json.dumps({"metadata": {"gpuqueue": asked}, "cells": []}))
    return path


class Talk:
    """Runs cells in a kernel."""

    def __init__(self, kernel: Any) -> None:
        self._client = kernel.blocking_client()
        self._client.start_channels()
        until(self._answers, what="the kernel answers")

    def _answers(self) -> bool:
        try:
            self._client.wait_for_ready(60)
        except RuntimeError:
            return False
        return True

    def run(self, source: str) -> tuple[str, str]:
        """What a cell prints, and what it writes to the standard error; its error is there, too."""
        said = {"stdout": "", "stderr": ""}

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                said[content["name"]] += content["text"]
            if message["msg_type"] == "error":
                said["stderr"] += f"{content['ename']}: {content['evalue']}"

        self._client.execute_interactive(source, timeout=120, output_hook=hear)
        return said["stdout"], said["stderr"]

    def close(self) -> None:
        self._client.stop_channels()
