"""Moving what a process holds of GPU memory to the host, and back, through NVIDIA's driver.

The driver does it in steps, of which it keeps the state by process: *lock* (calls of CUDA wait, and
what was submitted ends), *checkpoint* (memory goes to the host and the GPU is let go), *restore*,
*unlock*. A thread inside the process does the work, so the process must not be stopped meanwhile:
it is stopped after the checkpoint and goes on before the restore.

What is done follows from the state that the driver tells, so any step may be repeated, also by
another process than the one that began.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.errors import GpuqueueError
from gpuqueue.run.limited import run_limited

__all__ = ["DeviceTool", "NotMoved", "bring_back", "find_tool", "move_out"]

LOCKING = 10.0
"""Seconds that what was submitted to the GPU has to end."""
_ANSWER = 10.0
"""Seconds for the driver to answer what takes it no time, and beyond its own time limit."""
_SETTLE = 0.05


class NotMoved(GpuqueueError):
    """The GPU memory of a process could not be moved; the message says at which step and why.

    ``stuck`` says that its calls of CUDA may wait until somebody brings it back.
    """

    def __init__(self, words: str, *, stuck: bool = False) -> None:
        super().__init__(words)
        self.stuck = stuck


@dataclass(frozen=True, slots=True)
class DeviceTool:
    """A program that asks the driver: the words before its options."""

    words: tuple[str, ...]

    def state(self, pid: int) -> str:
        """``running``, ``locked``, ``checkpointed``, ``failed``, or what else the driver says.

        Raises
        ------
        NotMoved
            It does not tell.
        """
        return self._run("state", ["--get-state", "--pid", str(pid)], _ANSWER).strip()

    def act(self, action: str, pid: int, patience: float) -> None:
        """Take one step, ``patience`` seconds at most.

        Raises
        ------
        NotMoved
            It was refused, or took too long.
        """
        words = ["--action", action, "--pid", str(pid)]
        if action == "lock":
            words += ["--timeout", str(int(patience * 1000))]
            patience += _ANSWER  # it keeps to that by itself
        self._run(action, words, patience)

    def _run(self, step: str, words: list[str], patience: float) -> str:
        try:
            done = run_limited(
                [*self.words, *words], patience, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotMoved(f"{step}: no answer in {patience:.0f} s") from None
        except OSError as error:
            raise NotMoved(f"{step}: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise NotMoved(f"{step}: {said[-1][:200] if said else f'exit {done.returncode}'}")
        return str(done.stdout)


def find_tool() -> DeviceTool:
    """NVIDIA's own program where it is on the path, else ours."""
    if found := shutil.which("cuda-checkpoint"):
        return DeviceTool((found,))
    ours = str(Path(__file__).with_name("cudastate.py"))
    return DeviceTool((sys.executable, "-I", "-S", ours))


def move_out(tool: DeviceTool, pid: int, patience: float) -> None:
    """Lock a process and move its GPU memory to the host; ``patience`` seconds for the copy.

    Raises
    ------
    NotMoved
        It was not moved. The process goes on as before, if the driver lets it.
    """
    try:
        state = _settled(tool, pid, patience)
        if state == "running":
            tool.act("lock", pid, LOCKING)
            state = tool.state(pid)
        if state == "locked":
            tool.act("checkpoint", pid, patience)
            state = tool.state(pid)
        if state != "checkpointed":
            raise NotMoved(f"the driver says it was done, and the process is {state!r}")
    except NotMoved as error:
        if problem := _let_go(tool, pid, patience):
            raise NotMoved(f"{error}; and it may wait for ever ({problem})", stuck=True) from None
        raise


def bring_back(tool: DeviceTool, pid: int, patience: float) -> None:
    """Move a process's GPU memory back and let its calls of CUDA go on.

    Raises
    ------
    NotMoved
        It was not; what is on the host may still be there.
    """
    state = _settled(tool, pid, patience)
    if state == "checkpointed":
        tool.act("restore", pid, patience)
        state = tool.state(pid)
    if state == "locked":
        tool.act("unlock", pid, _ANSWER)
        state = tool.state(pid)
    if state != "running":
        raise NotMoved(f"the driver says it was done, and the process is {state!r}")


def _settled(tool: DeviceTool, pid: int, patience: float) -> str:
    """The state once no step is under way: one may have been begun by a process that has died."""
    deadline = time.monotonic() + patience
    while (state := tool.state(pid)) in ("checkpointing", "restoring"):
        if time.monotonic() > deadline:
            raise NotMoved(f"it is still {state} after {patience:.0f} s")
        time.sleep(_SETTLE)
    return state


def _let_go(tool: DeviceTool, pid: int, patience: float) -> str:
    """Let the process go on as if it had not been asked; why that failed, empty if it did not."""
    try:
        if tool.state(pid) != "running":
            bring_back(tool, pid, patience)
    except NotMoved as error:
        return str(error)
    return ""
