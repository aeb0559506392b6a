"""The notebook goes away in the middle of a cell; the job does not."""

import os
import time

import pytest
from conftest import until
from jupyter_client.manager import KernelManager

import gpuqueue
from gpuqueue.model import JobState

CELL = """%%gpu
import os, time
for step in range(2000):
    print("epoch", step, flush=True)
    if os.path.exists("enough"):
        break
    time.sleep(0.02)
final = 42
"""


class Kernel:
    """A kernel as a server starts it, and a front end that may drop off."""

    def __init__(self, folder):
        self.manager = KernelManager(kernel_name="python3")
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(cwd=str(folder), env=env)
        self.connect()

    def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(60)

    def start(self, source):
        self.started = self.client.execute(source)

    def wait(self):
        """Until the cell that was started has its reply."""
        while True:
            reply = self.client.get_shell_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == self.started:
                return reply["content"]

    def run(self, source):
        seen = []
        reply = self.client.execute_interactive(source, timeout=120, output_hook=seen.append)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(m["content"].get("text", "") for m in seen if m["msg_type"] == "stream")

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(home, tmp_path):
    made = Kernel(tmp_path)
    made.run("%reload_ext gpuqueue")
    yield made
    made.close()


def running_job():
    job = until(lambda: gpuqueue.jobs() and gpuqueue.jobs()[0], what="the cell is a job")
    until(lambda: "epoch 3\n" in job.logs(), what="it runs and prints")
    return job


def finish(job, tmp_path):
    assert job.state is JobState.RUNNING
    (tmp_path / "enough").write_text("")
    assert job.wait(60) == 0


def lines_of(text):
    return [line for line in text.splitlines() if line.startswith("epoch ")]


def complete(lines):
    assert lines == [f"epoch {number}" for number in range(len(lines))]
    assert len(lines) > 3


@pytest.mark.parametrize("now", [False, True], ids=["gently", "at once"])
def test_a_restart_of_the_kernel_leaves_the_job_alone(kernel, tmp_path, now):
    kernel.start(CELL)
    job = running_job()
    kernel.client.stop_channels()
    kernel.manager.restart_kernel(now=now)
    kernel.connect()
    kernel.run("%reload_ext gpuqueue")
    printed = len(lines_of(job.logs()))
    until(lambda: len(lines_of(job.logs())) > printed, what="it still prints")
    finish(job, tmp_path)
    complete(lines_of(kernel.run(f"%gpu logs {job.id}")))
    assert kernel.run(f"%gpu pull {job.id}\nprint(final)").endswith("42\n")


def test_a_shutdown_of_the_kernel_leaves_the_job_alone(kernel, tmp_path):
    kernel.start(CELL)
    job = running_job()
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()
    finish(job, tmp_path)
    complete(lines_of(job.logs()))
    assert job.result()["final"] == 42


def test_a_front_end_that_drops_off_and_comes_back_misses_nothing(kernel, tmp_path):
    kernel.start(CELL)
    job = running_job()
    kernel.client.stop_channels()  # a closed browser: the kernel goes on, nobody listens
    printed = len(lines_of(job.logs()))
    until(lambda: len(lines_of(job.logs())) > printed)
    finish(job, tmp_path)
    kernel.connect()
    complete(lines_of(kernel.run(f"%gpu logs {job.id}")))
    assert kernel.run("print(final)") == "42\n"


def test_an_interrupt_by_the_person_ends_it_soon(kernel):
    kernel.start(CELL)
    job = running_job()
    began = time.monotonic()
    kernel.manager.interrupt_kernel()
    job.wait(60)
    assert job.state is JobState.CANCELLED
    assert time.monotonic() - began < 60
    assert kernel.wait()["ename"] == "KeyboardInterrupt"
    assert kernel.run("print('usable')") == "usable\n"
