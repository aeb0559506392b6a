"""What ``make demo`` and ``make lab`` run: the quickstart, on real GPUs or pretend ones."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

import gpuqueue
from gpuqueue.control.lead import lead_of
from gpuqueue.gpus import detect
from gpuqueue.model import JobKind, JobState, ProcessId
from gpuqueue.paths import find_home
from gpuqueue.run.process import alive, send_signal
from gpuqueue.store import Store
from gpuqueue.units import format_bytes, format_duration

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
EXECUTED = ROOT / ".demo" / "quickstart.ipynb"
PRETEND = "80G,80G"

# What the notebook queues, in order, and how each job must end.
EXPECTED = [
    (JobKind.CELL, JobState.SUCCEEDED),
    (JobKind.SCRIPT, JobState.SUCCEEDED),
    *[(JobKind.FUNCTION, JobState.SUCCEEDED)] * 5,
    (JobKind.FUNCTION, JobState.FAILED),
    (JobKind.CELL, JobState.FAILED),
]


def find_gpus() -> bool:
    """See to it that there are GPUs, and say which; whether they are real."""
    devices = detect()
    gpus = devices.gpus()
    problem = devices.problem
    devices.close()
    if gpus and not gpus[0].fake:
        names = ", ".join(f"{gpu.index}: {gpu.name}, {format_bytes(gpu.memory)}" for gpu in gpus)
        print(f"GPUs of this machine: {names}")
        return True
    spec = os.environ.get("GPUQUEUE_FAKE_GPUS") or PRETEND
    os.environ["GPUQUEUE_FAKE_GPUS"] = spec
    print(f"Pretend GPUs ({spec}); the training runs on the CPU. {problem}".rstrip())
    return False


def demo() -> int:
    """Run the notebook headless, print what became of each job; 0 if all went as it should."""
    find_gpus()
    home = Path(tempfile.mkdtemp(prefix="gpuqueue-demo-"))
    os.environ["GPUQUEUE_HOME"] = str(home)
    began = time.monotonic()
    print(f"Running {NOTEBOOK.relative_to(ROOT)} ...", flush=True)
    problems = []
    try:
        problems += execute(home)
        problems += report()
    finally:
        end_controller()
    print(f"The notebook with its outputs: {EXECUTED.relative_to(ROOT)}")
    if problems:
        print("\n".join(["", "This is not as it should be:", *problems, f"State kept in {home}"]))
        return 1
    shutil.rmtree(home, ignore_errors=True)
    print(f"All as it should be, in {format_duration(time.monotonic() - began)}.")
    return 0


def execute(home: Path) -> list[str]:
    """Run the notebook and keep it with its outputs; what went wrong."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        # nobody but this user can reach a socket in that directory
        config=Config(ConnectionFileMixin={"transport": "ipc", "ip": str(home / "kernel")}),
    )
    problems = []
    try:
        client.execute()
    except CellExecutionError as error:
        problems.append(f"the notebook stopped: {error}")
    EXECUTED.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, EXECUTED)

    accuracy = float(printed(notebook, "evaluate").partition(" ")[2] or 0)
    print(f"Accuracy of the model that came back into the notebook: {accuracy:.3f}\n")
    if accuracy <= 0.9:
        problems.append(f"the model's accuracy is {accuracy}, not above 0.9")
    return problems


def printed(notebook: nbformat.NotebookNode, cell_id: str) -> str:
    """What a cell wrote on standard output."""
    return "".join(
        output["text"]
        for cell in notebook.cells
        if cell.id == cell_id
        for output in cell.outputs
        if output["output_type"] == "stream" and output["name"] == "stdout"
    )


def report() -> list[str]:
    """Print a table of the jobs; which of them did not end as they should."""
    jobs = gpuqueue.jobs()[::-1]
    index = {gpu.uuid: gpu.index for gpu in gpuqueue.status().managed}
    rows = [("job", "what", "where", "waited", "ran", "state", "what came back")]
    for job in jobs:
        record = job.record
        where = "none"
        if record.placement is not None and record.placement.gpus:
            where = "GPU " + ", ".join(str(index[uuid]) for uuid in record.placement.gpus)
        waited = ran = "-"
        if record.started is not None:
            waited = f"{record.started - record.submitted:.2f}s"
            ran = f"{(record.ended or time.time()) - record.started:.1f}s"
        what = f"{record.kind} {shorten(record.command, 34)}"
        rows.append((str(job.id), what, where, waited, ran, str(record.state), came_back(job)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )
    print()

    found = [(job.record.kind, job.state) for job in jobs]
    if found == EXPECTED:
        return []
    told = [", ".join(f"{kind} {state}" for kind, state in pairs) for pairs in (EXPECTED, found)]
    return [f"expected: {told[0]}", f"found:    {told[1]}"]


def came_back(job: gpuqueue.Job) -> str:
    """What a job gave back, or why it did not, in a few words."""
    if job.state is not JobState.SUCCEEDED:
        return shorten(job.why(), 60)
    if job.record.kind is JobKind.SCRIPT:
        lines = job.logs(1).split("\n")
        return f"log: {shorten(lines[0], 50)}"
    value = job.result()
    if job.record.kind is JobKind.CELL:
        return ", ".join(f"{name} ({type(thing).__name__})" for name, thing in value.items())
    return shorten(repr(value), 60)


def shorten(text: str, width: int) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def end_controller() -> None:
    """End the controller that the notebook's first submit started, and wait until it is gone."""
    import signal

    store = Store(find_home().database)
    lead = lead_of(store)
    store.close()
    if lead is None:
        return
    process = ProcessId(lead["pid"], lead["start"], lead["boot"])
    send_signal(process, signal.SIGTERM)
    deadline = time.monotonic() + 15
    while alive(process) and time.monotonic() < deadline:
        time.sleep(0.05)


def lab(arguments: list[str]) -> None:
    """Become JupyterLab with the quickstart open."""
    real = find_gpus()
    if not real and not os.environ.get("GPUQUEUE_HOME"):
        # keep pretend GPUs out of the queue that this user may have for real work
        home = Path(tempfile.gettempdir()) / f"gpuqueue-lab-{os.getuid()}"
        os.environ["GPUQUEUE_HOME"] = str(home)
        print(f"This queue's state: {home}")
    # by its address rather than as a file, so that the link that is printed leads there too
    address = f"/lab/tree/{NOTEBOOK.relative_to(ROOT).as_posix()}"
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url={address}",
    ]
    if os.geteuid() == 0:
        command.append("--allow-root")
    sys.stdout.flush()
    os.execv(sys.executable, [*command, *arguments])  # noqa: S606


if __name__ == "__main__":
    if sys.argv[1:2] == ["lab"]:
        lab(sys.argv[2:])
    sys.exit(demo())
