"""A kernel's share, from its grant to its end, whoever is killed in between."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from conftest import end_leads, lead_process, until
from freeing_jobs import free, resume
from kernel_shares import QUARTER, Kernel, check_books, held_folder, kernel, owner, until_state

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.client.releasing import release
from gpuqueue.client.shares import acquire
from gpuqueue.client.wishes import Wish, change_size
from gpuqueue.errors import NoShare, NoSpace, NotAllowedNow
from gpuqueue.model import Grant, JobKind, JobState
from gpuqueue.paths import Home
from gpuqueue.run import kernelshare
from gpuqueue.run.kernelshare import own_share, without_share
from gpuqueue.run.process import alive, environment_of, identify, send_signal

if os.name != "posix":
    pytest.skip("signals and /proc", allow_module_level=True)

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")


def ended(client: LocalClient, job: int, state: JobState, words: str = "") -> None:
    """A job has ended so, and its share is free."""
    record = until_state(client, job, *ENDED)
    assert (record.state, words in record.reason) == (state, True), record
    check_books(client)


# -- admission -------------------------------------------------------------------------------------


def test_four_quarters_and_who_holds_them_when_the_fifth_comes(client: LocalClient) -> None:
    made = [kernel(client, path=f"/books/n{i}.ipynb") for i in range(4)]
    check_books(client)
    with pytest.raises(NoShare) as refused:
        acquire(client, QUARTER, path="/books/n4.ipynb")
    words = str(refused.value)
    assert words.startswith("There is no room now for a share of 0.25 of a GPU.\n")
    assert "GPU 0 has nothing left" in words
    for i, each in enumerate(made):
        assert f"notebook n{i}.ipynb (job {each.job}, " in words
    assert "has 0.25 and 20G" in words
    assert "%" not in words
    made[2].end()
    ended(client, made[2].job, JobState.SUCCEEDED)
    again = kernel(client, path="/books/n4.ipynb")
    check_books(client)
    for each in (*made, again):
        each.end()


def test_a_share_is_over_before_a_controller_knows_it(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = acquire(client, QUARTER, path="/books/n.ipynb")
    before = client.job(lease.job)
    with monkeypatch.context() as patch:
        patch.setattr(client, "job", lambda _: before)
        assert not lease.is_over(client)
        kernelshare.release(lease.folder, detached=True)
        assert lease.is_over(client)
    lease.release()
    until_state(client, lease.job, *ENDED)
    assert lease.is_over(client)


def test_what_is_left_is_told(client: LocalClient) -> None:
    big = kernel(client, Wish(700, 30 << 30), path="/books/big.ipynb")
    with pytest.raises(NoShare, match=r"GPU 0 has 0\.3 of its compute and 50G left"):
        acquire(client, Wish(500))
    big.end()


def test_a_kernel_takes_no_slot_and_a_job_still_runs_beside_it(
    home: Home, client: LocalClient
) -> None:
    home.config.write_text("slots = 1\n")
    made = [kernel(client) for _ in range(2)]
    job = gpuqueue.submit(["true"], share=0.5, mem="10G")
    assert job.wait(60) == 0
    assert gpuqueue.status().slots_used == 0
    for each in made:
        each.end()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(250, 90 << 30), "asks for 90G of device memory, the largest GPU has 80G"),
        (Wish(250, gpus=2), "asks for 2 GPUs, this machine has 1"),
    ],
)
def test_what_can_never_be_is_told_as_such(client: LocalClient, wish: Wish, words: str) -> None:
    with pytest.raises(NoShare, match=words):
        acquire(client, wish)
    assert client.store.jobs() == []


def test_two_that_come_at_once_are_not_both_let_in(client: LocalClient) -> None:
    """Each has looked before the other was there; the controller decides, and nobody is queued."""
    made: list[Kernel] = []
    refused: list[NoShare] = []
    gate = threading.Barrier(6)

    def come(number: int) -> None:
        gate.wait()
        try:
            made.append(Kernel(acquire(client, QUARTER, path=f"/books/{number}.ipynb")))
        except NoShare as error:
            refused.append(error)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (4, 2)
    assert all("There is no room now" in str(error) for error in refused)
    assert not [job for job in client.store.live() if job.state is JobState.QUEUED]
    check_books(client)
    for each in made:
        each.end()


def test_without_a_controller_it_is_refused_after_the_bounded_wait(
    home: Home, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.config.write_text("kernel_wait = 0.3\nautostart = false\n")
    with pytest.raises(NoShare, match=r"No controller has answered within 0\.3 s"):
        acquire(client, QUARTER)
    home.config.write_text("kernel_wait = 10\n")
    job = gpuqueue.submit(["true"])  # starts a controller, which takes the other one in
    job.wait(60)
    (first,) = [each for each in client.store.jobs() if each.kind is JobKind.KERNEL]
    ended(client, first.id, JobState.CANCELLED)


def test_free_mode_and_agents_are_no_way_in(client: LocalClient) -> None:
    free()
    with pytest.raises(NoShare, match="free mode: nothing starts until"):
        acquire(client, QUARTER)
    resume()
    kernel(client).end()


# -- the environment -------------------------------------------------------------------------------


def test_what_a_kernel_is_told_and_what_it_starts_is_not(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    made = kernel(client)
    until(lambda: "GPUQUEUE_COMPUTE" in environment_of(made.process.pid), what="it has begun")
    env = environment_of(made.process.pid)
    assert (env["CUDA_VISIBLE_DEVICES"], env["GPUQUEUE_COMPUTE"]) == ("0", "0.25")
    assert env["GPUQUEUE_MEMORY"] == str(20 << 30)
    assert own_share(env)["job"] == made.job
    assert not {"GPUQUEUE_JOB_ID", "GPUQUEUE_ATTEMPT_DIR", "GPUQUEUE_RUN_DIR"} & set(env)
    assert without_share(env) == dict(os.environ)
    folder = held_folder(client, made.job)
    assert (folder / "grant.json").stat().st_mode & 0o777 == 0o600
    # a job that the kernel submits is no part of its share, and neither is a controller
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    job = gpuqueue.submit("env > told", cwd=tmp_path, preset="cpu")
    job.wait(60)
    told = dict(line.partition("=")[::2] for line in (tmp_path / "told").read_text().splitlines())
    assert not {"GPUQUEUE_SHARE", "GPUQUEUE_COMPUTE", "GPUQUEUE_MEMORY"} & set(told)
    assert told["CUDA_VISIBLE_DEVICES"] == ""
    end_leads(client.home)
    gpuqueue.submit(["true"], preset="cpu").wait(60)
    lead = until(lambda: lead_process(client.home))
    assert "GPUQUEUE_SHARE" not in environment_of(lead.pid)
    made.end()


# -- the end ---------------------------------------------------------------------------------------


def test_a_restart_keeps_the_share(client: LocalClient) -> None:
    made = kernel(client)
    before = client.job(made.job)
    made.kill()
    made.start()
    until(lambda: client.job(made.job).process.pid == made.process.pid, what="its new process")
    after = client.job(made.job)
    assert (after.state, after.started, after.attempt) == (JobState.RUNNING, before.started, 1)
    check_books(client)
    made.end()
    ended(client, made.job, JobState.SUCCEEDED)


def test_a_restart_in_another_size(home: Home, client: LocalClient) -> None:
    home.config.write_text("slots = 1\n")
    full = gpuqueue.submit(["sleep", "600"], preset="cpu")
    until(lambda: full.state is JobState.RUNNING)
    made = kernel(client)
    told = change_size(client, client.job(made.job), Wish(500, 30 << 30))
    assert "share 0.5" in told
    placement = client.job(made.job).placement
    assert (placement.grants, placement.slots) == ((Grant("FAKE-0", 500, 30 << 30),), 0)
    check_books(client)
    made.kill()
    made.lease.hold_on()
    made.lease.await_grant(client)
    made.start()
    until(lambda: "GPUQUEUE_COMPUTE" in environment_of(made.process.pid), what="it has begun")
    env = environment_of(made.process.pid)
    assert (env["GPUQUEUE_COMPUTE"], env["GPUQUEUE_MEMORY"]) == ("0.5", str(30 << 30))
    other = kernel(client, Wish(400))
    with pytest.raises(NotAllowedNow, match="cannot grow"):
        change_size(client, client.job(made.job), Wish(750))
    other.end()
    made.end()


def test_a_restart_may_take_its_time(client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says that it starts its kernel again is waited for, for as long as it lives."""
    made = kernel(client)
    made.kill()
    made.lease.hold_on()
    # the controller has looked several times since
    for _ in range(3):
        kernel(client).end()
    assert client.job(made.job).state is JobState.RUNNING
    made.start()
    made.end()


def test_a_kernel_that_died_and_is_not_started_again(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(client)
    made.kill()
    made.lease.release(died=True)  # all its automatic restarts are used up
    ended(client, made.job, JobState.FAILED, "its kernel died")


def test_a_released_share_is_kept_while_its_process_lives(client: LocalClient) -> None:
    made = kernel(client)
    made.lease.release()
    other = kernel(client)  # the controller has had a turn since
    assert client.job(made.job).state is JobState.RUNNING
    made.kill()
    ended(client, made.job, JobState.SUCCEEDED)
    other.end()


def test_a_process_that_goes_on_without_its_share(client: LocalClient) -> None:
    made = kernel(client)
    made.lease.release(detached=True)
    ended(client, made.job, JobState.SUCCEEDED)
    assert made.process.poll() is None
    made.kill()


def test_a_share_that_is_released_from_outside(client: LocalClient) -> None:
    made = kernel(client, Wish(1000))
    told = release(client, made.job)
    assert told.settled
    assert told.message.startswith(f"the share of job {made.job} is given back; its kernel goes on")
    ended(client, made.job, JobState.SUCCEEDED)
    assert made.process.poll() is None
    other = kernel(client, Wish(1000))  # its room is free
    with pytest.raises(NotAllowedNow, match="has succeeded, and holds nothing"):
        release(client, made.job)
    made.end()
    other.end()


def test_what_a_released_kernel_still_holds_is_told_and_counted(
    home: Home, client: LocalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = tmp_path / "processes"
    processes.touch()
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(processes))
    made = kernel(client)
    processes.write_text(f"{made.process.pid}:0:3072\n")
    until(lambda: made.job in (client.machine().used or {}), what="the driver tells of it")
    told = release(client, made.job)
    assert list(told.holds.values()) == [3 << 30]
    assert "It holds 3G of GPU memory, which cannot be taken from it" in told.message
    (gpu,) = told.holds
    until(lambda: gpu in client.machine().outside, what="it counts as used outside the queue")
    assert client.machine().outside[gpu][0] == 3 << 30
    made.end()


def test_what_cannot_be_released_says_why(client: LocalClient) -> None:
    job = gpuqueue.submit(["sleep", "600"], share=0.25)
    until(lambda: job.state is JobState.RUNNING)
    with pytest.raises(NotAllowedNow, match="is a script, not a notebook's kernel"):
        release(client, job.id)
    lease = acquire(client, QUARTER)
    with pytest.raises(NotAllowedNow, match="is about to start"):
        release(client, lease.job)
    lease.release(died=True)
    made = kernel(client)
    made.lease.hold_on()
    with pytest.raises(NotAllowedNow, match="is about to start again"):
        release(client, made.job)
    made.lease.name(identify(made.process.pid))
    gpuqueue.free(soft=True)
    until(lambda: client.job(made.job).state is JobState.FROZEN)
    with pytest.raises(NotAllowedNow, match="is frozen"):
        release(client, made.job)
    gpuqueue.resume()
    until(lambda: client.job(made.job).state is JobState.RUNNING)
    made.end()
    job.cancel()


def test_a_release_that_cannot_be_written_is_no_release(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(client)
    with monkeypatch.context() as patch:
        full(patch)
        with pytest.raises(NoSpace, match="cannot be written to"):
            release(client, made.job)
    assert client.job(made.job).state is JobState.RUNNING
    made.end()


def test_a_start_that_fails_leaves_nothing(client: LocalClient) -> None:
    lease = acquire(client, QUARTER)
    lease.release(died=True)
    ended(client, lease.job, JobState.FAILED, "its kernel could not be started")


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full for what this process writes of its share."""

    def write(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kernelshare, "write_json", write)


def test_a_start_that_fails_on_a_full_disk_leaves_nothing(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner lives on, and can write nothing: what it has let go of is its lock."""
    lease = acquire(client, QUARTER)
    full(monkeypatch)
    lease.release(died=True)
    ended(client, lease.job, JobState.FAILED, "its kernel could not be started")


def test_a_restart_that_fails_on_a_full_disk_leaves_nothing(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(client)
    made.kill()
    made.lease.hold_on()
    full(monkeypatch)
    made.lease.release(died=True)
    ended(client, made.job, JobState.FAILED, "its kernel died")


@pytest.mark.parametrize("step", ["granted", "launched", "named"])
def test_a_server_that_is_killed_leaves_no_lease(client: LocalClient, step: str) -> None:
    server, numbers = owner(step)
    job = numbers[0]
    server.kill()
    server.wait()
    # its kernel ends as it notices; until then the share is not given away
    state = until_state(client, job, JobState.FAILED)
    assert len(numbers) == 1 or identify(numbers[1]) is None or not alive(identify(numbers[1]))
    assert state.ended is not None
    check_books(client)


def test_a_kernel_that_outlives_its_server_keeps_its_share(client: LocalClient) -> None:
    server, (job, pid) = owner("named")
    kernel_process = identify(pid)
    assert kernel_process is not None
    send_signal(kernel_process, signal.SIGSTOP)  # it does not notice
    server.kill()
    server.wait()
    other = kernel(client)
    assert client.job(job).state is JobState.RUNNING
    send_signal(kernel_process, signal.SIGKILL)
    ended(client, job, JobState.FAILED)
    other.end()


def test_nobody_comes_for_a_grant(
    home: Home, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has asked was killed before it could take what it was granted."""
    code = (
        "import os, sys, time\n"
        "from gpuqueue.client import LocalClient, shares\n"
        "shares.Lease.take = lambda self: (print(self.job, flush=True), os._exit(0))\n"
        "shares.acquire(LocalClient(), shares.Wish(250))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ended(client, int(done.stdout), JobState.CANCELLED, "who asked for it has gone")


@pytest.mark.chaos
def test_leads_that_are_killed_forget_nothing(home: Home, client: LocalClient) -> None:
    random = Random(7)
    there: list[Kernel] = []
    for _ in range(30):
        step = random.choice(["come", "come", "go", "restart", "die", "kill lead"])
        if step == "kill lead":
            end_leads(home, signal.SIGKILL)
            gpuqueue.submit(["true"], preset="cpu")
        elif step == "come":
            # by who is there, or by one whose end no lead has taken in yet
            with contextlib.suppress(NoShare):
                there.append(Kernel(acquire(client, Wish(random.choice([250, 400, 500])))))
        elif there:
            one = there[random.randrange(len(there))]
            if step == "restart":
                one.kill()
                one.start()
                continue
            there.remove(one)
            one.kill()
            one.lease.release(died=step == "die")
    want = {one.job for one in there}
    until(
        lambda: {j.id for j in client.store.live() if j.kind is JobKind.KERNEL} == want,
        what="only those live that do",
    )
    check_books(client)
    for one in there:
        one.end()
    until(lambda: not client.store.live(), what="all are gone")
    check_books(client)
