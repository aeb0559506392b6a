"""A pretend MPS that has one process, for tests of how that process is ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from python_programs import python_program

from gpuqueue.run.files import MPS, write_json

CONTROL = """import os, sys
command = sys.stdin.readline().strip()
with open("{folder}/asked", "a") as file:
    file.write(command + "\\n")
if command == "get_server_list" or command.startswith("get_client_list"):
    print(open("{folder}/client").read() if "client" in command else 1)
if command.startswith("terminate_client"):
    open("{folder}/client", "w").close()
if command == "get_default_active_thread_percentage":
    print(25.0)
"""
"""A program in place of MPS's own, for which MPS has the process that a file names."""


def put_under_mps(folder: Path, pid: int, place: Path) -> Callable[[], bool]:
    """Have it that MPS has a process of an attempt; whether it was told to let go of it.

    The folder ``place`` must be on the ``PATH`` of whoever ends the process.
    """
    program = place / "nvidia-cuda-mps-control"
    python_program(program, CONTROL.format(folder=place))
    (place / "client").write_text(str(pid))
    (place / "state" / "pipe").mkdir(parents=True)
    write_json(folder / MPS, {"gpu": "GPU-1", "pipe": str(place / "state" / "pipe")})
    asked = place / "asked"
    wanted = f"terminate_client 1 {pid}"
    return lambda: asked.exists() and wanted in asked.read_text().splitlines()
