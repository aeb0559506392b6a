"""Meetings of two things at once, and states that only an accident leaves behind."""

import asyncio
import errno
import json
import os
import signal
import sqlite3
import threading
import time

import pytest
from conftest import end_leads, lead_process, leads_of, until

import gpuqueue
from gpuqueue.client import default_client
from gpuqueue.control.lead import spawn_headless
from gpuqueue.control.outcome import void
from gpuqueue.model import IntentKind, JobState, ProcessId
from gpuqueue.run.files import VOID, read_claim, read_exit, read_payload, take_claim
from gpuqueue.run.process import alive, send_signal
from gpuqueue.run.runner import Runner
from gpuqueue.store import Store
from gpuqueue.store.schema import VERSION


def running(job):
    return until(lambda: job.state is JobState.RUNNING, what=f"{job} runs")


def test_a_cancel_that_meets_the_end_of_its_job_stops_nothing(home):
    job = gpuqueue.submit(["sleep", "0.3"])
    running(job)
    end_leads(home)
    store = Store(home.database)
    (number,) = store.intend(IntentKind.CANCEL, [job.id])
    until(lambda: read_exit(home.attempt(job.id, 1)))
    other = default_client().store  # a job behind it must not be held up
    spawn_headless(home)
    assert gpuqueue.submit(["true"]).wait(60) == 0
    assert job.state is JobState.SUCCEEDED
    assert "has ended" in other.intent(number).error
    store.close()


def test_cancelling_many_starts_none_of_them(home):
    runs = gpuqueue.map(time.sleep, [60] * 30)
    until(lambda: any(job.state is JobState.RUNNING for job in runs))
    runs.cancel()
    runs.wait(60, progress=False)
    assert sum(job.record.attempt > 0 for job in runs) <= 4
    assert {job.state for job in runs} == {JobState.CANCELLED}


def test_a_database_that_was_moved_away_leaves_the_job_directories(home):
    job = gpuqueue.submit(["true"])
    job.wait(60)
    end_leads(home)
    default_client().close()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (home.root / name).unlink(missing_ok=True)
    from gpuqueue.client import Job, LocalClient
    from gpuqueue.client.payload import script_payload
    from gpuqueue.client.request import options_from

    client = LocalClient(home)
    record = client.submit([(script_payload(["true"]), options_from({}))])[0]
    assert record.id > job.id
    assert Job(client, record.id).wait(60) == 0
    assert (home.job(job.id) / "1" / "exit.json").exists()
    client.close()


def test_an_interrupt_as_it_starts_is_not_lost(home):
    ended = []
    for _ in range(10):
        job = gpuqueue.submit(["sleep", "600"])
        job.interrupt()
        job.wait(60)
        ended.append(job.state)
    assert set(ended) == {JobState.CANCELLED}


@pytest.mark.parametrize("claim", [b"", b'{"pid": 1'])
def test_a_claim_cut_short_by_a_power_cut_does_not_hold_the_gpu(home, claim):
    gpuqueue.submit(["true"]).wait(60)
    end_leads(home)
    store = Store(home.database)
    job = gpuqueue.submit.__globals__["Job"](default_client(), 1)
    with store.transaction() as db:
        db.execute(
            "UPDATE jobs SET state = 'starting', attempt = 2, returncode = NULL, ended = NULL, "
            "process = NULL WHERE id = 1"
        )
    store.close()
    folder = home.attempt(1, 2)
    folder.mkdir()
    (folder / "claim").write_bytes(claim)
    spawn_headless(home)
    job.wait(60)
    assert job.state is JobState.FAILED
    assert gpuqueue.submit(["true"]).wait(60) == 0


def test_a_void_attempt_is_nobody_s(home, tmp_path):
    folder = tmp_path / "7"
    assert void(folder)
    assert not void(folder)
    assert read_claim(folder) == VOID
    assert not Runner({"attempt_dir": str(folder)}).claim()


def test_a_claim_is_one_runner_s_without_symbolic_links_too(tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not on this file system")

    monkeypatch.setattr(os, "symlink", none)
    folder = tmp_path / "1"
    folder.mkdir()
    first, second = ProcessId(7, 70, "boot"), ProcessId(8, 80, "boot")
    assert take_claim(str(folder), first)
    assert not take_claim(str(folder), second)
    assert read_claim(folder) == first
    assert [path.name for path in folder.iterdir()] == ["claim"]


def test_a_long_chain_falls_at_once(home):
    first = gpuqueue.submit(["sleep", "600"])
    chain = [first]
    for _ in range(300):
        chain.append(gpuqueue.submit(["true"], after=chain[-1]))
    first.cancel()
    chain[-1].wait(60)
    assert {job.state for job in chain} == {JobState.CANCELLED}


def test_what_a_newer_client_writes_is_refused_and_stops_nothing(home):
    first = gpuqueue.submit(["true"])
    first.wait(60)
    origin = first.record.origin
    store = Store(home.database)
    with store.transaction() as db:
        db.execute("INSERT INTO intents (kind, job, value, at) VALUES ('thaw', NULL, '{}', 1)")
        db.execute("UPDATE jobs SET origin = json_set(origin, '$.more', 1)")
    assert gpuqueue.submit(["true"]).wait(60) == 0
    until(lambda: "older" in store.intent(1).error, what="the wish is refused")
    assert first.record.origin == origin
    store.close()


def test_a_lead_gives_way_to_a_newer_schema(home):
    gpuqueue.submit(["true"]).wait(60)
    lead = lead_process(home)
    with sqlite3.connect(home.database) as db:
        db.execute("PRAGMA user_version = 99")
    until(lambda: lead_process_is_idle(home, lead), what="it leads no longer")
    with sqlite3.connect(home.database) as db:
        db.execute(f"PRAGMA user_version = {VERSION}")


def lead_process_is_idle(home, lead):
    with sqlite3.connect(home.database) as db:
        fact = json.loads(db.execute("SELECT value FROM facts WHERE name = 'lead'").fetchone()[0])
    return not (fact["pid"] == lead.pid and fact["leading"])


def test_gpus_of_a_lead_that_is_gone_are_not_believed(home, monkeypatch):
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "none")
    gpuqueue.submit(["true"], preset="cpu").wait(60)
    with pytest.raises(gpuqueue.DoesNotFit):
        gpuqueue.submit(["true"])
    end_leads(home)
    monkeypatch.setenv("GPUQUEUE_FAKE_GPUS", "24G")
    assert gpuqueue.submit(["true"]).wait(60) == 0


def test_a_spec_for_pretend_gpus_that_is_wrong_is_told_and_cpu_work_goes_on(home, monkeypatch):
    monkeypatch.delenv("GPUQUEUE_FAKE_GPUS")
    home.config.write_text('fake_gpus = "lots"\n')
    spawn_headless(home)
    until(lambda: lead_process(home))
    until(lambda: "fake_gpus" in gpuqueue.status().machine.problem)
    assert gpuqueue.submit(["true"], preset="cpu").wait(60) == 0


TITLED = """
import ctypes, ctypes.util, os, sys, time
for name in list(os.environ):
    address = ctypes.CDLL(None).getenv
    address.restype = ctypes.c_void_p
    at = address(name.encode())
    if at:
        ctypes.memset(at - len(name) - 1, 0, len(name) + 1 + len(os.environ[name]))
print("up", flush=True)
time.sleep(600)
"""


def test_a_payload_that_hides_its_environment_is_found_all_the_same(home, tmp_path):
    (tmp_path / "t.py").write_text(TITLED)
    job = gpuqueue.submit(["python", "t.py"], cwd=tmp_path)
    until(lambda: "up" in job.logs())
    until(lambda: read_payload(home.attempt(job.id, 1)))
    payload = read_payload(home.attempt(job.id, 1))
    send_signal(job.record.process, signal.SIGKILL)
    job.wait(60)
    assert "lost" in job.reason
    assert not alive(payload)


def test_a_job_that_submits_leaves_no_controller_in_its_tree(home):
    def nested():
        import gpuqueue as inner

        return inner.submit(["true"], preset="cpu").wait(60)

    assert gpuqueue.submit(nested).result(60) == 0
    until(lambda: len(leads_of(home)) == 1)


def test_await_does_not_keep_a_program_from_ending(home):
    job = gpuqueue.submit(["sleep", "600"])

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.1)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    job.cancel()


def test_a_job_handle_travels_and_survives_a_fork(home):
    job = gpuqueue.submit(["true"])
    assert gpuqueue.submit(lambda other: other.wait(60), job, preset="cpu").result(60) == 0
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if job.state is JobState.SUCCEEDED else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert job.returncode == 0


def test_names_that_are_not_utf8_run_and_can_be_shown(home, tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    job = gpuqueue.submit(["pwd"], cwd=os.fsdecode(folder))
    assert job.wait(60) == 0
    assert "\N{REPLACEMENT CHARACTER}" in job.record.cwd
    assert "\N{REPLACEMENT CHARACTER}" in job.logs()


def test_a_directory_that_others_use_is_not_locked_to_them(home, tmp_path):
    team = tmp_path / "team"
    team.mkdir(mode=0o755)
    team.chmod(0o755)
    (team / "data").write_text("")
    from gpuqueue.paths import find_home

    with pytest.raises(gpuqueue.GpuqueueError, match="holds other files"):
        find_home(team)
    assert team.stat().st_mode & 0o777 == 0o755
    assert find_home(team / "gpuqueue").root == team / "gpuqueue"


def test_secrets_among_arguments_are_not_shown(home):
    def use(api_key):
        return len(api_key)

    job = gpuqueue.submit(use, api_key="sk-very-secret", preset="cpu")
    assert job.result(60) == 14
    assert "sk-very" not in json.dumps(job.to_dict())


def test_files_a_job_makes_have_the_submitter_s_umask(home, tmp_path):
    before = os.umask(0o027)
    try:
        job = gpuqueue.submit(["touch", "made"], cwd=tmp_path)
    finally:
        os.umask(before)
    job.wait(60)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def test_a_restartable_job_that_loses_its_runner_again_and_again_is_given_up(home):
    job = gpuqueue.submit(["sleep", "600"], restartable=True)
    for attempt in range(1, 6):
        until(lambda attempt=attempt: job.record.attempt == attempt and job.record.process)
        send_signal(job.record.process, signal.SIGKILL)
        until(lambda attempt=attempt: job.record.attempt > attempt or job.done())
    assert job.state is JobState.FAILED
    assert job.record.attempt == 5
    assert "lost" in job.reason
