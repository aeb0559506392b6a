"""Compute that idle notebooks lend, with real processes: stopped as a cell begins, on after it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import end_leads, lead_process, until
from freeing_jobs import free, resume
from kernel_shares import Kernel, check_books, held_folder, until_state

import gpuqueue
from gpuqueue.client import LocalClient
from gpuqueue.client.shares import acquire
from gpuqueue.client.wishes import Wish, change_size
from gpuqueue.errors import NoShare
from gpuqueue.model import Job, JobState
from gpuqueue.paths import Home
from gpuqueue.run.freezing import are_frozen
from gpuqueue.run.kernelshare import Busy, is_lending, keep_for_restart
from gpuqueue.run.process import alive, descendants, send_signal

if os.name != "posix":
    pytest.skip("signals and /proc", allow_module_level=True)

G = 1 << 30
RULES = "lend_after = 1\nlend_again = 0.2\n"


@pytest.fixture(autouse=True)
def one_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G")
    home.config.write_text(RULES)


class Book(Kernel):
    """A notebook's kernel that tells of its cells, as the extension does."""

    def tell(self, client: LocalClient, *, busy: bool) -> None:
        Busy(held_folder(client, self.job)).tell(busy=busy)


def book(client: LocalClient, name: str, share: int = 250, memory: int = 10 * G) -> Book:
    """A notebook that idles."""
    made = Book(acquire(client, Wish(share, memory), path=f"/books/{name}.ipynb"))
    until_state(client, made.job, JobState.RUNNING)
    made.tell(client, busy=False)
    return made


def books(client: LocalClient, count: int = 4, share: int = 250) -> list[Book]:
    return [book(client, name, share) for name in "abcdefgh"[:count]]


FAMILY = ["sh", "-c", "sleep 600 & sleep 600 & wait"]


def borrower(client: LocalClient, share: float = 0.5, **options: object) -> gpuqueue.Job:
    """A job of several processes that runs on lent compute."""
    made = gpuqueue.submit(FAMILY, share=share, mem="10G", **options)  # type: ignore[arg-type]
    until_state(client, made.id, JobState.RUNNING)
    until(lambda: len(below(client.job(made.id))) >= 3, what="its processes are there")
    return made


def below(job: Job) -> list[int]:
    return [] if job.process is None else sorted(descendants(job.process.pid))


def states(job: Job) -> set[str]:
    """The states of all processes of a job, as the kernel tells them."""
    found = set()
    for pid in below(job):
        text = Path(f"/proc/{pid}/stat").read_text()
        found.add(text.rpartition(")")[2].split()[0])
    return found


def paused(client: LocalClient, job: int) -> Job:
    """The job, once it stands still with all that it has started."""
    record = until_state(client, job, JobState.FROZEN)
    assert states(record) == {"T"}
    return record


def goes(client: LocalClient, job: int) -> Job:
    record = until_state(client, job, JobState.RUNNING)
    assert "T" not in states(record)
    return record


def test_a_job_runs_on_what_notebooks_lend_and_stands_still_for_a_cell(
    client: LocalClient,
) -> None:
    made = books(client)
    job = borrower(client)
    record = client.job(job.id)
    assert record.loan is not None
    assert record.borrows
    assert record.reason.startswith("runs on compute that notebooks a.ipynb and b.ipynb lend on ")
    assert "borrows" in [event.kind for event in client.store.events(job_id=job.id)]
    assert job.id not in client.plan().waits
    check_books(client)
    until(lambda: all(is_lending(held_folder(client, each.job)) for each in made))
    for each in made[:3]:
        began = time.time()
        each.tell(client, busy=True)
    record = paused(client, job.id)
    assert record.asked == "pause"
    assert record.reason == "paused: notebooks a.ipynb, b.ipynb and c.ipynb compute on GPU 0"
    stopped = [e for e in client.store.events(job_id=job.id) if e.kind == "paused"]
    assert stopped[0].at - began < 1.0  # the ring of the first that is in the way is enough
    check_books(client)
    assert not is_lending(held_folder(client, made[0].job))
    for each in made[:3]:
        each.tell(client, busy=False)
    record = goes(client, job.id)
    assert record.asked == ""
    assert record.frozen > 0
    assert record.reason.startswith("runs on compute that")
    job.cancel()
    until_state(client, job.id, JobState.CANCELLED)
    until(lambda: all(client.job(each.job).loan is None for each in made))
    check_books(client)
    for each in made:
        each.end()


def test_one_cell_in_the_way_is_named_and_one_that_is_not_changes_nothing(
    client: LocalClient,
) -> None:
    made = books(client)
    job = borrower(client, 0.75)
    made[3].tell(client, busy=True)  # 0.75 are left
    until(lambda: not is_lending(held_folder(client, made[3].job)))
    assert client.job(job.id).state is JobState.RUNNING
    made[0].tell(client, busy=True)
    record = paused(client, job.id)
    assert record.reason == "paused: notebooks a.ipynb and d.ipynb compute on GPU 0"
    made[3].tell(client, busy=False)
    goes(client, job.id)
    job.cancel()
    for each in made:
        each.end()


def test_it_is_an_owner_once_a_notebook_has_gone(client: LocalClient) -> None:
    made = books(client, 2, 500)
    job = borrower(client)
    made[1].tell(client, busy=True)
    made[0].tell(client, busy=True)
    paused(client, job.id)
    made[0].end()
    record = goes(client, job.id)
    assert (record.loan, record.reason, record.asked) == (None, "", "")
    assert "settled" in [event.kind for event in client.store.events(job_id=job.id)]
    check_books(client)
    made[1].tell(client, busy=False)
    until(lambda: is_lending(held_folder(client, made[1].job)))
    assert client.job(made[1].job).loan is None
    made[1].end()


def test_a_kernel_that_starts_again_has_its_compute_until_it_tells(client: LocalClient) -> None:
    made = books(client, 1, 900)
    job = borrower(client)
    keep_for_restart(held_folder(client, made[0].job))
    made[0].kill()
    paused(client, job.id)
    made[0].start()
    assert client.job(job.id).state is JobState.FROZEN
    made[0].tell(client, busy=False)
    goes(client, job.id)
    job.cancel()
    made[0].end()


def test_a_cancel_ends_one_that_stands_still(client: LocalClient) -> None:
    made = books(client, 1, 900)
    job = borrower(client)
    made[0].tell(client, busy=True)
    paused(client, job.id)
    job.cancel()
    until_state(client, job.id, JobState.CANCELLED)
    check_books(client)
    made[0].end()


@pytest.mark.parametrize("computes", [False, True])
def test_the_next_lead_goes_on_with_it(client: LocalClient, home: Home, computes: bool) -> None:
    made = books(client, 1, 900)
    job = borrower(client)
    if computes:
        made[0].tell(client, busy=True)
        paused(client, job.id)
    first = lead_process(home)
    assert first is not None
    send_signal(first, signal.SIGKILL)
    until(lambda: not alive(first))
    made[0].tell(client, busy=not computes)
    other = gpuqueue.submit(["true"], preset="cpu")
    assert other.wait(60) == 0
    (goes if computes else paused)(client, job.id)
    check_books(client)
    made[0].tell(client, busy=False)
    goes(client, job.id)
    job.cancel()
    made[0].end()


def test_one_that_a_dead_lead_had_stopped_unrecorded_goes_on(
    client: LocalClient, home: Home
) -> None:
    made = books(client, 1, 900)
    job = borrower(client)
    end_leads(home, signal.SIGKILL)
    for pid in below(client.job(job.id)):
        os.kill(pid, signal.SIGSTOP)
    process = client.job(job.id).process
    assert process is not None
    assert until(lambda: are_frozen([process]))
    assert gpuqueue.submit(["true"], preset="cpu").wait(60) == 0
    until(lambda: "T" not in states(client.job(job.id)))
    job.cancel()
    made[0].end()


def test_free_mode_has_borrowers_step_aside_or_stand_as_all_others(client: LocalClient) -> None:
    made = books(client, 1, 900)
    job = borrower(client)
    made[0].tell(client, busy=True)
    paused(client, job.id)
    free()
    record = until(lambda: (j := client.job(job.id)).reason == "frozen by free mode" and j)
    assert (record.state, record.asked) == (JobState.FROZEN, "")
    resume()
    until(lambda: client.job(job.id).asked == "pause")
    paused(client, job.id)
    made[0].tell(client, busy=False)
    goes(client, job.id)
    free()
    until_state(client, job.id, JobState.FROZEN)
    resume()
    goes(client, job.id)
    job.cancel()
    made[0].end()


def test_a_lender_may_grow_and_shrink(client: LocalClient) -> None:
    made = books(client, 1, 500)
    job = borrower(client, 0.75)
    assert dict(client.job(made[0].job).loan.away) == {"FAKE-0": 250}  # type: ignore[union-attr]
    change_size(client, client.job(made[0].job), Wish(900, 10 * G))
    until(lambda: (loan := client.job(made[0].job).loan) and dict(loan.away) == {"FAKE-0": 650})
    check_books(client)
    change_size(client, client.job(made[0].job), Wish(250, 10 * G))
    until(lambda: client.job(job.id).loan is None)
    check_books(client)
    job.cancel()
    made[0].end()


def test_one_that_stands_still_for_long_starts_where_there_is_room(
    client: LocalClient, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G,80G")
    home.config.write_text(f"{RULES}lend_patience = 0.5\n")
    made = books(client, 1, 900)
    whole = gpuqueue.submit(["sleep", "600"])
    until_state(client, whole.id, JobState.RUNNING)
    job = borrower(client, restartable=True)
    made[0].tell(client, busy=True)
    until_state(client, job.id, JobState.FROZEN)
    whole.cancel()
    record = until(lambda: (j := client.job(job.id)).attempt == 2 and j)
    until_state(client, job.id, JobState.RUNNING)
    assert record.placement is not None
    assert record.placement.gpus == ("FAKE-1",)
    assert record.loan is None
    check_books(client)
    job.cancel()
    made[0].end()


def test_one_that_makes_room_for_another_is_asked_once(
    client: LocalClient, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has stood still for so long that it would be put back into the queue anyway."""
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "80G,80G")
    home.config.write_text(f"{RULES}lend_patience = 0.5\n")
    made = [book(client, "a", 600, 20 * G)]
    beside = gpuqueue.submit(["sleep", "600"], share=0.5, mem="30G")
    until_state(client, beside.id, JobState.RUNNING)
    full = gpuqueue.submit(["sleep", "600"], share=0.5, mem="50G")
    until_state(client, full.id, JobState.RUNNING)
    loose = gpuqueue.submit(
        ["sleep", "600"], share=0.5, mem="40G", restartable=True, preemptible=True
    )
    until_state(client, loose.id, JobState.RUNNING)
    made[0].tell(client, busy=True)
    since = until_state(client, loose.id, JobState.FROZEN).frozen_at
    until(lambda: time.time() - since > 1)
    lead, runner = lead_process(home), client.job(full.id).process
    send_signal(lead, signal.SIGSTOP)
    try:  # of both it hears at once: of room elsewhere, and of who needs this one's
        send_signal(runner, signal.SIGTERM)
        until(lambda: not alive(runner))
        high = gpuqueue.submit(["sleep", "600"], share=0.25, mem="55G", priority=5)
    finally:
        send_signal(lead, signal.SIGCONT)
    until_state(client, high.id, JobState.RUNNING)
    until(lambda: (j := client.job(loose.id)).attempt == 2 and j.state is JobState.RUNNING)
    kinds = [event.kind for event in client.store.events(job_id=loose.id)]
    assert kinds.count("evicting") == 1
    check_books(client)
    for job in (high, beside, loose):
        job.cancel()
    made[0].end()


def test_what_is_lent_is_on_the_books_of_who_uses_it(client: LocalClient) -> None:
    made = books(client, 1, 800)
    job = borrower(client, 0.5)
    until(lambda: client.job(made[0].job).loan is not None)
    made[0].tell(client, busy=True)
    paused(client, job.id)
    made[0].tell(client, busy=False)
    goes(client, job.id)
    job.cancel()
    until_state(client, job.id, JobState.CANCELLED)
    until(lambda: client.job(made[0].job).loan is None)
    made[0].end()
    until_state(client, made[0].job, JobState.SUCCEEDED, JobState.CANCELLED, JobState.FAILED)
    stays = client.store.stays(0)
    edges = sorted({at for stay in stays for at in (stay.since, stay.until) if at is not None})
    seen = set()
    for begin, finish in pairwise(edges):
        there = [s for s in stays if s.since <= begin and finish <= (s.until or finish)]
        used = {s.job: 0 if s.frozen else s.compute - s.lent for s in there}
        assert sum(used.values()) <= 1000
        seen.add((used.get(made[0].job), used.get(job.id)))
    assert {(800, None), (500, 500), (800, 0)} <= seen


def test_a_notebook_whose_thread_computes_does_not_idle(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No cell runs, and the driver sees its process at work."""
    seen = tmp_path / "processes"
    monkeypatch.setenv("GPUQUEUE_FAKE_PROCS", str(seen))
    made = books(client, 1, 900)
    seen.write_text(f"{made[0].process.pid}:0:1024@40\n")
    until(lambda: (client.machine().users or client.machine().used or {}).get(made[0].job))
    job = gpuqueue.submit(FAMILY, share=0.5, mem="10G")
    until(lambda: job.id in client.plan().waits)
    folder = held_folder(client, made[0].job)
    since = (folder / "busy").stat().st_mtime
    until(lambda: time.time() > since + 3)  # three times as long as a cell would have to be over
    assert client.job(job.id).state is JobState.QUEUED
    assert not is_lending(folder)
    seen.write_text(f"{made[0].process.pid}:0:1024@0\n")
    until_state(client, job.id, JobState.RUNNING)
    job.cancel()
    made[0].end()


def let_in(client: LocalClient, name: str) -> Book | None:
    """A notebook, once the controller has read the settings anew."""
    with contextlib.suppress(NoShare):
        return book(client, name)
    return None


def test_more_notebooks_than_compute_take_turns(client: LocalClient, home: Home) -> None:
    made = books(client)
    with pytest.raises(NoShare):
        acquire(client, Wish(250, 10 * G), path="/books/e.ipynb")
    home.config.write_text(f"{RULES}kernel_overcommit = 1.5\n")
    until(lambda: client.settings.kernel_overcommit == 1.5)
    juniors = [until(partial(let_in, client, name)) for name in "ef"]
    with pytest.raises(NoShare):
        acquire(client, Wish(250, 10 * G), path="/books/g.ipynb")
    assert all(client.job(each.job).borrows for each in juniors)
    check_books(client)

    def lent() -> list[int]:
        stays = {stay.job: stay for stay in client.store.stays(0)}
        return [stays[each.job].lent for each in juniors]

    until(lambda: lent() == [250, 250], what="what does not compute has no compute on the books")
    for each in (*made[:3], *juniors):
        each.tell(client, busy=True)
    record = until_state(client, juniors[1].job, JobState.FROZEN)
    assert record.reason == (
        "paused: notebooks a.ipynb, b.ipynb, c.ipynb and e.ipynb compute on GPU 0"
    )
    senior = client.job(juniors[0].job)
    assert (senior.state, senior.reason) == (JobState.RUNNING, "")
    check_books(client)
    made[0].tell(client, busy=False)
    until_state(client, juniors[1].job, JobState.RUNNING)
    check_books(client)
    for each in (*made, *juniors):
        each.end()
