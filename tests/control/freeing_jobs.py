"""Jobs for the tests of free mode, and what is asked of them."""

from __future__ import annotations

from conftest import until

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.client.freeing import wait_for
from gpuqueue.model import (
    JobState,
)
from gpuqueue.run.files import is_resumable
from gpuqueue.run.freezing import are_frozen
from gpuqueue.run.process import descendants

TRAIN = """
import os, sys, time
from pathlib import Path
from gpuqueue import checkpoint

folder = checkpoint.checkpoint_dir()
last = checkpoint.latest_checkpoint(folder, "step*.txt")
step = int(Path(last).read_text()) if last else 0
with open("seen", "a") as file:
    print(step, os.environ["GPUQUEUE_RESUME"], checkpoint.resuming(), file=file)
while not Path("go").exists():
    step += 1
    if checkpoint.should_stop():
        with checkpoint.atomic_path(folder / f"step{step}.txt") as path:
            Path(path).write_text(str(step))
        sys.exit(0)
    time.sleep(0.01)
"""

DEAF = """
import time
from pathlib import Path
from gpuqueue import checkpoint
checkpoint.should_stop()
Path("looked").touch()
while not Path("go").exists():
    time.sleep(0.01)
"""

COUNT = """
import os, time
number = 0
while not os.path.exists("go"):
    number += 1
    with open("count.new", "w") as file:
        file.write(str(number))
    os.rename("count.new", "count")
    time.sleep(0.005)
"""

FAMILY = """
import os, sys, time
def daemon():
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    daemon()
os.wait()
if os.fork() == 0:
    time.sleep(600)
open("up", "w").close()
time.sleep(600)
"""


def free(**options):
    """Take the GPUs back; the answer once nothing is left to be done, however slow the machine."""
    return wait_for(default_client(), gpuqueue.free(**options), 60)


def resume():
    """Give them to the queue again; the answer once that has been done."""
    return wait_for(default_client(), gpuqueue.resume(), 60)


def python(folder, text, **options):
    """A job of this script in a folder of its own, once it runs."""
    folder.mkdir()
    (folder / "job.py").write_text(text)
    job = gpuqueue.submit(["python", "job.py"], cwd=folder, **options)
    until(lambda: job.state is JobState.RUNNING)
    return job


def resumable(folder, text, **options):
    job = python(folder, text, **options)
    until(lambda: is_resumable(default_client().home.attempt(job.id, 1)))
    # a question that came during its first look it would hear
    until(lambda: text is TRAIN or (folder / "looked").exists())
    return job


def count(folder):
    return int((folder / "count").read_text()) if (folder / "count").exists() else 0


def stands_still(job):
    return are_frozen([job.record.process]) and bool(descendants(job.record.process.pid))


def kinds(job):
    return [event.kind for event in default_client().store.events(job_id=job.id)]
