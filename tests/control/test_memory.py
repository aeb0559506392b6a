"""Device memory: recorded, learned, used for placing, run again once, and told where it is more.

Jobs are real; the memory that they seem to hold is written into the file of pretend processes.
"""

import os
import time

import pytest
from conftest import until

import gpuqueue
from gpuqueue.model import JobState
from gpuqueue.store import Store

MIB = 1024**2
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture
def uses(home, tmp_path, monkeypatch):
    """Makes the program of a job hold so many MiB of a GPU from now on."""
    file = tmp_path / "processes"
    file.touch()
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(file))

    def hold(job, mib):
        until(lambda: job.state is JobState.RUNNING)
        record = job.record
        index = record.placement.gpus[0].removeprefix("FAKE-")
        part = file.with_suffix(".new")
        part.write_text(f"{record.process.pid}:{index}:{mib}\n")
        part.replace(file)

    def clear():
        file.write_text("")
        until(
            lambda: not any(reading.processes for reading in gpuqueue.status().machine.readings),
            what="nobody is seen on the GPUs",
        )

    hold.clear = clear
    return hold


def _waiter(folder, name="w"):
    """A command that goes on until told, and then ends well."""
    return ["sh", "-c", f"until test -e '{folder}/{name}'; do sleep 0.02; done"]


def _finish(job, folder, name="w", code=0):
    """End a run of ``_waiter`` once it has lasted long enough to teach."""
    until(lambda: time.time() - job.record.started > 3.1)
    (folder / name).touch()
    assert job.wait(60) == code
    (folder / name).unlink()


def _events(job, kind):
    return [event for event in job._client.store.events(job_id=job.id) if event.kind == kind]


def test_the_peak_is_recorded_and_learned_and_jobs_are_packed_by_it(home, tmp_path, uses):
    home.config.write_text("gpus = [0]\nslots = 8\n")
    command = _waiter(tmp_path)
    first = gpuqueue.submit(command)
    uses(first, 4000)
    until(lambda: first.record.peak == 4000 * MIB, what="its peak is recorded")
    uses.clear()
    _finish(first, tmp_path)
    # the most, not the last
    assert first.record.peak == 4000 * MIB
    assert first.to_dict()["peak"] == 4000 * MIB
    learned = int(4000 * MIB * 1.55)

    # a whole GPU is a whole GPU, whatever was learned
    whole = gpuqueue.submit(command)
    until(lambda: whole.state is JobState.RUNNING)
    assert whole.record.learned_memory == learned
    assert whole.record.placement.grants[0].whole
    whole.cancel()
    until(lambda: whole.state is JobState.CANCELLED)

    # --mem wins
    told = gpuqueue.submit(command, share=0.1, mem="2G")
    until(lambda: told.state is JobState.RUNNING)
    assert told.record.placement.grants[0].memory == 2 * 1024**3
    assert told.record.learned_memory is None
    # of 24G a share of 0.1 has 2.4G in proportion; what was learned fits three times
    shares = [gpuqueue.submit(command, share=0.1) for _ in range(4)]
    until(lambda: all(job.state is JobState.RUNNING for job in shares[:3]))
    for job in shares[:3]:
        assert job.record.placement.grants[0].memory == learned
    until(lambda: shares[3].record.learned_memory)
    assert shares[3].state is JobState.QUEUED
    assert "waits for 6.1G on one GPU" in shares[3]._client.why(shares[3].id).sentence
    for job in (*shares, told):
        job.cancel()


def test_who_waits_for_a_whole_gpu_is_told_what_would_be_enough(home, tmp_path, uses):
    home.config.write_text("gpus = [0]\nslots = 8\n")
    command = _waiter(tmp_path)
    first = gpuqueue.submit(command)
    uses(first, 4000)
    until(lambda: first.record.peak)
    uses.clear()
    _finish(first, tmp_path)
    blocker, other = (gpuqueue.submit(["sleep", "600"], mem="10G") for _ in range(2))
    until(lambda: blocker.state is other.state is JobState.RUNNING)
    job = gpuqueue.submit(command)
    until(lambda: job.record.learned_memory)
    assert job.state is JobState.QUEUED
    assert job._client.why(job.id).hint == ""
    other.cancel()
    until(lambda: other.state is JobState.CANCELLED)
    assert job._client.why(job.id).hint == (
        "--mem 7G should be enough, by earlier runs of this command; with it, it could share "
        "GPU 0 now"
    )
    for each in (blocker, job):
        each.cancel()


def _fails_until_it_has(folder, mib, last="exit 1"):
    """Runs out of memory unless it was given so much; otherwise it goes on until told."""
    return [
        "sh", "-c",
        f"echo $GPUQUEUE_MEMORY >> '{folder}/had'; "
        f"if test $GPUQUEUE_MEMORY -lt {mib * MIB}; then echo '{OOM}'; {last}; fi; "
        f"until test -e '{folder}/w'; do sleep 0.02; done",
    ]  # fmt: skip


def _taught(folder, command, uses, mib=2000):
    """A first run of a command, which teaches that so much is enough."""
    first = gpuqueue.submit(command)
    uses(first, mib)
    until(lambda: first.record.peak)
    uses.clear()
    _finish(first, folder)
    (folder / "had").unlink()


def test_a_job_that_ran_out_of_what_was_learned_runs_once_more(home, tmp_path, uses):
    home.config.write_text("gpus = [0]\nslots = 8\n")
    command = _fails_until_it_has(tmp_path, 9000)
    _taught(tmp_path, command, uses)
    learned = int(2000 * MIB * 1.55)
    job = gpuqueue.submit(command, share=0.1)
    until(lambda: job.record.attempt == 2 and job.state is JobState.RUNNING)
    assert [int(line) for line in (tmp_path / "had").read_text().split()] == [learned, 24 * 1024**3]
    (requeued,) = _events(job, "requeued")
    assert requeued.data["reason"] == (
        "ran out of device memory with the 3G that earlier runs had taught; it runs once more, "
        "with all of a GPU's memory"
    )
    assert job.record.lacked == learned
    _finish(job, tmp_path)
    assert job.record.returncode == 0
    # and what was too little is known to be
    again = gpuqueue.submit(command, share=0.1)
    until(lambda: again.record.learned_memory)
    assert again.record.learned_memory > learned
    again.cancel()


def test_it_runs_again_once_only(home, tmp_path, uses):
    home.config.write_text("gpus = [0]\nslots = 8\n")
    # the first run is told all of the GPU's memory, as the last one
    mark = tmp_path / "always"
    command = [
        "sh", "-c",
        f"echo $GPUQUEUE_MEMORY >> '{tmp_path}/had'; test -e '{mark}' && echo '{OOM}' && exit 3; "
        f"until test -e '{tmp_path}/w'; do sleep 0.02; done",
    ]  # fmt: skip
    _taught(tmp_path, command, uses)
    mark.touch()
    job = gpuqueue.submit(command, share=0.1)
    assert job.wait(60) == 3
    assert job.record.attempt == 2
    assert len(_events(job, "requeued")) == 1
    assert job.reason == "exit code 3"


@pytest.mark.parametrize("asked", [{"mem": "3G"}, {}], ids=["told", "whole"])
def test_nobody_else_runs_again(home, tmp_path, uses, asked):
    home.config.write_text("gpus = [0]\nslots = 8\n")
    mark = tmp_path / "always"
    command = [
        "sh", "-c",
        f"echo x >> '{tmp_path}/had'; test -e '{mark}' && echo '{OOM}' && exit 3; "
        f"until test -e '{tmp_path}/w'; do sleep 0.02; done",
    ]  # fmt: skip
    _taught(tmp_path, command, uses)
    mark.touch()
    job = gpuqueue.submit(command, **asked)
    assert job.wait(60) == 3
    assert job.record.attempt == 1


def test_another_failure_is_not_taken_for_it(home, tmp_path, uses):
    home.config.write_text("gpus = [0]\nslots = 8\n")
    command = [
        "sh", "-c",
        f"echo x >> '{tmp_path}/had'; test -e '{tmp_path}/bad' && echo 'MemoryError' && exit 3; "
        f"until test -e '{tmp_path}/w'; do sleep 0.02; done",
    ]  # fmt: skip
    _taught(tmp_path, command, uses)
    (tmp_path / "bad").touch()
    job = gpuqueue.submit(command, share=0.1)
    assert job.wait(60) == 3
    assert job.record.attempt == 1


def test_a_function_says_itself_that_memory_ran_out(home, tmp_path, uses):
    home.config.write_text("gpus = [0]\nslots = 8\n")
    folder = str(tmp_path)

    def train():
        import os
        import time

        with open(f"{folder}/had", "a") as file:
            file.write("x\n")
        if os.path.exists(f"{folder}/always"):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        while not os.path.exists(f"{folder}/w"):
            time.sleep(0.02)
        return os.environ["GPUQUEUE_MEMORY"]

    _taught(tmp_path, train, uses)
    (tmp_path / "always").touch()
    job = gpuqueue.submit(train, share=0.1)
    until(lambda: job.record.attempt == 2)
    with pytest.raises(Exception, match="CUDA out of memory"):
        job.result(60)
    assert job.record.attempt == 2
    assert job.record.lacked


@pytest.mark.parametrize("fails", [False, True], ids=["ends well", "fails"])
def test_a_function_tells_what_the_allocator_held(home, fails):
    def work():
        import sys
        from types import SimpleNamespace

        sys.modules["torch"] = SimpleNamespace(
            cuda=SimpleNamespace(
                is_initialized=lambda: True,
                device_count=lambda: 2,
                max_memory_reserved=lambda number: [5, 3][number] * 1024**3,
            )
        )
        if fails:
            raise ValueError("on purpose")

    job = gpuqueue.submit(work, mem="4G")
    assert job.wait(60) == int(fails)
    assert job.record.peak == 5 * 1024**3
    # nobody saw it while it ran
    (event,) = _events(job, "excess")
    assert event.data == {"memory": 4 * 1024**3, "peak": 5 * 1024**3}


def test_a_cpu_job_and_one_that_nobody_saw_have_no_peak(home):
    for job in (gpuqueue.submit(["true"], preset="cpu"), gpuqueue.submit(["true"])):
        assert job.wait(60) == 0
        assert job.record.peak is None
        assert job.to_dict()["excess"] == 0


def test_use_beyond_what_was_asked_for_is_told_once(home, tmp_path, uses):
    job = gpuqueue.submit(_waiter(tmp_path), mem="2G")
    uses(job, 2048)
    until(lambda: job.record.peak == 2048 * MIB)
    assert job.record.excess == 0
    uses(job, 3072)
    until(lambda: job.record.excess == 1024 * MIB)
    uses(job, 5120)
    until(lambda: job.record.excess == 3072 * MIB)
    (event,) = _events(job, "excess")
    assert event.data == {"memory": 2048 * MIB, "peak": 3072 * MIB}
    assert "has used 5G of GPU memory, --mem was 2G" in str(gpuqueue.status())
    _finish(job, tmp_path)
    assert len(_events(job, "excess")) == 1
    assert "has used 5G of GPU memory, --mem was 2G" in str(gpuqueue.status())


def test_one_on_a_gpu_that_it_was_not_given_is_named_and_in_nobody_s_way(
    home, tmp_path, monkeypatch
):
    file = tmp_path / "processes"
    file.touch()
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(file))
    home.config.write_text("slots = 8\n")
    neighbour = gpuqueue.submit(_waiter(tmp_path), share=0.25, mem="4G")
    stray = gpuqueue.submit(_waiter(tmp_path), gpus=1)
    until(lambda: {neighbour.state, stray.state} == {JobState.RUNNING})
    (wrong,) = neighbour.record.placement.gpus
    assert stray.record.placement.gpus != (wrong,)
    index = int(wrong.removeprefix("FAKE-"))
    file.write_text(f"{stray.record.process.pid}:{index}:{16 * 1024}\n")
    words = f", uses GPU {index}, which it was not given"
    until(lambda: words in str(gpuqueue.status()))
    until(lambda: _events(stray, "astray"))
    # its memory there is not promised to anybody
    later = gpuqueue.submit(["true"], share=0.25, mem="6G")
    assert f"job {stray.id}, which was not given it (16G)" in later.why()
    file.write_text("")
    assert later.wait(60) == 0
    for job in (neighbour, stray):
        (tmp_path / "w").touch()
        assert job.wait(60) == 0
    (event,) = _events(stray, "astray")
    assert event.data == {"gpus": [index]}
    assert not _events(neighbour, "astray")


def test_a_new_lead_knows_what_the_last_one_learned(home, tmp_path, uses):
    from conftest import lead_process, leads_of

    command = _fails_until_it_has(tmp_path, 9000)
    _taught(tmp_path, command, uses)
    job = gpuqueue.submit(command, share=0.1)
    until(lambda: job.record.attempt == 2 and job.state is JobState.RUNNING)
    _finish(job, tmp_path)
    blocker = gpuqueue.submit(["sleep", "600"], preset="exclusive")
    until(lambda: blocker.state is JobState.RUNNING)
    before = gpuqueue.submit(command, share=0.1)
    until(lambda: before.record.learned_memory)
    for pid in leads_of(home):
        os.kill(pid, 9)
    old = before.record.learned_memory
    after = gpuqueue.submit(command, share=0.1)
    until(lambda: lead_process(home))
    until(lambda: after.record.learned_memory)
    assert after.record.learned_memory == old
    for each in (before, after, blocker):
        each.cancel()


def test_lessons_are_what_succeeded_and_what_ran_out(home, tmp_path, uses):
    assert gpuqueue.submit(["true"]).wait(60) == 0
    assert gpuqueue.submit(["false"]).wait(60) == 1
    store = Store(home.database)
    try:
        assert [job.command for job in store.lessons(10)] == ["true"]
        with store.transaction() as db:
            db.execute("UPDATE jobs SET lacked = 5 WHERE id = 2")
        assert [job.command for job in store.lessons(10)] == ["true", "false"]
    finally:
        store.close()
