"""A ``cuda-checkpoint`` without a driver, for tests: it records, hangs, fails and lies as told.

``Stub`` makes the program in a folder of its own. How an action goes may be told: ``fail`` refuses,
``hang`` does not answer, ``lie`` says that it is done, ``keep`` does it and leaves the memory where
it is, ``wait`` does it once it is let ``go``.
"""

from __future__ import annotations

from pathlib import Path

from python_programs import python_program

__all__ = ["Stub"]

_PROGRAM = r"""import os, sys, time
here = {here!r}
words = dict(zip(sys.argv[1::2], sys.argv[2::2])) if sys.argv[1] != "--get-state" else {{}}
pid = sys.argv[sys.argv.index("--pid") + 1]

def path(name):
    return os.path.join(here, name)

def read(name, otherwise=""):
    try:
        with open(path(name)) as file:
            return file.read()
    except FileNotFoundError:
        return otherwise

def write(name, text):
    with open(path(name + ".new"), "w") as file:
        file.write(text)
    os.rename(path(name + ".new"), path(name))

state = read("state-" + pid, "running")
if not words:
    print(state)
    sys.exit(0)
action = words["--action"]
with open("/proc/" + pid + "/stat") as file:
    stopped = file.read().rpartition(")")[2].split()[0] == "T"
with open(path("log"), "a") as file:
    print(action, pid, "stopped" if stopped else "moves", file=file)
how = read("told-" + action).strip()
if how == "fail":
    sys.exit("could not " + action)
if how == "hang":
    time.sleep(600)
if how == "lie":
    sys.exit(0)
while how == "wait" and not os.path.exists(path("go-" + action)):
    time.sleep(0.01)
before, after = {{
    "lock": ("running", "locked"), "checkpoint": ("locked", "checkpointed"),
    "restore": ("checkpointed", "locked"), "unlock": ("locked", "running"),
}}[action]
if state != before:
    sys.exit("the process is " + state)
procs = read("procs").splitlines()
if action == "checkpoint" and how != "keep":
    write("held-" + pid, "\n".join(line for line in procs if line.startswith(pid + ":")))
    write("procs", "".join(line + "\n" for line in procs if not line.startswith(pid + ":")))
if action == "restore":
    write("procs", "".join(line + "\n" for line in procs + read("held-" + pid).splitlines()))
write("state-" + pid, after)
"""


class Stub:
    """One, with its record. ``procs`` is the file of pretend processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.program = folder / "cuda-checkpoint"
        python_program(self.program, _PROGRAM.format(here=str(folder)))
        self.procs = folder / "procs"
        self.procs.touch()

    def tell(self, action: str, how: str) -> None:
        """How this action goes from now on; empty for well."""
        (self.folder / f"told-{action}").write_text(how)

    def go(self, action: str) -> None:
        """Let one that waits be done."""
        (self.folder / f"go-{action}").touch()

    def state(self, pid: int, now: str = "") -> str:
        """The state of a process, which may be set."""
        file = self.folder / f"state-{pid}"
        if now:
            file.write_text(now)
        return file.read_text() if file.exists() else "running"

    def done(self, pid: int) -> list[str]:
        """What was done with a process: the actions, and whether it was stopped then."""
        log = self.folder / "log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [f"{action} {how}" for action, other, how in lines if int(other) == pid]

    def hold(self, pid: int, gpu: int, size: int) -> None:
        """A process takes MiB of a pretend GPU."""
        with self.procs.open("a") as file:
            print(f"{pid}:{gpu}:{size}", file=file)

    def let_go(self, pid: int) -> None:
        """It has none any more."""
        lines = self.procs.read_text().splitlines(keepends=True)
        kept = "".join(line for line in lines if not line.startswith(f"{pid}:"))
        self.procs.write_text(kept)
